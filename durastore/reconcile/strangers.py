"""What lies in a spool root, or in a folder's private one, and is nothing that durastore puts there.

Duty: names and kinds of entries against those that are ours. Whoever clears a root after exit code 0 must not lose what
somebody else put into it. Opens no file, changes nothing.
"""

from __future__ import annotations

import os
import re
import stat as stat_module
from collections.abc import Iterator

from durastore.formats.spool_root import BALLAST_NAME, GOING_NAME, LOCK_NAME, PACKS_NAME, QUARANTINE_NAME
from durastore.fsio.folder import Folder
from durastore.migrate.scan import PRIVATE_NAME as MIGRATE_NAME
from durastore.reconcile.local import OddEntry
from durastore.spool.look import spool_names

__all__ = ["is_own_in_spool", "strangers_in"]

_ROOT_FILE = re.compile(
    r"durastore-root\.json|(probe|reclaim-stop|reclaim-lift)-[0-9a-f]{16,32}\.json"
    r"|hashed-[0-9a-f]{16}-[0-9a-f]{16}\.log|extract\.log|failures\.jsonl"
    r"|extract\.alive|extract\.sqlite(-wal|-shm)?|doctor\.log"
)
_SPOOL_FILE = re.compile(
    rf"{LOCK_NAME}|{BALLAST_NAME}|(store|worker)\.status|journal-[0-9]+\.(sqlite(-wal|-shm|-journal)?|failed)"
)
_SPOOL_FOLDERS = (PACKS_NAME, QUARANTINE_NAME)
_JOURNAL = re.compile(r"journal-[0-9]+\.(sqlite(-wal|-shm|-journal)?|failed)(\.[0-9]+)*")


def is_own_in_spool(name: str) -> bool:
    """Whether a name in quarantine is that of a journal put aside, not of somebody's file."""
    return _JOURNAL.fullmatch(name) is not None


def strangers_in(root: Folder, *, under: str = "", is_private: bool = False) -> tuple[OddEntry, ...]:
    """All of them, paths beginning with `under`. `is_private`: the root is the one inside a folder. OSError passes."""
    spools = spool_names(root)
    folders = {*spools, GOING_NAME} if is_private else {*spools, MIGRATE_NAME}
    found = list(_odd_names(root, files=_ROOT_FILE, folders=folders, under=under))
    for name in spools:
        try:
            spool = root.child(name)
        except NotADirectoryError:
            continue  # told above
        with spool:
            found += _odd_names(spool, files=_SPOOL_FILE, folders=_SPOOL_FOLDERS, under=f"{under}{name}/")
    return tuple(found)


def _odd_names(
    folder: Folder, *, files: re.Pattern[str], folders: set[str] | tuple[str, ...], under: str
) -> Iterator[OddEntry]:
    for name in folder.names():
        try:
            stat = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            continue  # a journal's side file of a live process
        is_folder = stat_module.S_ISDIR(stat.st_mode)
        is_ours = name in folders if is_folder else stat_module.S_ISREG(stat.st_mode) and bool(files.fullmatch(name))
        if not is_ours:
            what = "is a folder" if is_folder else "is not put there by durastore"
            size = 0 if is_folder else stat.st_size
            yield OddEntry(path=os.fsencode(under + name), what=what, size_bytes=size)
