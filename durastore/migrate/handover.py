"""The end of a spool root at SRC, and its beginning at DST: never two that open, and never a root that is not whole.

Order (M6): names of DST that SRC no longer has are set aside -> DST's marker -> `MOVED-TO` in SRC -> a look for spools
made meanwhile -> `MIGRATING-FROM` leaves DST. A crash anywhere leaves a root that opens at SRC alone or nowhere, and
the same command goes on. Must never overwrite a marker.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from durastore.errors import NO_ROOM, DiskFailed, DurastoreError, SpoolLocked
from durastore.formats.spool_root import (
    BALLAST_NAME,
    INCOMING_NAME,
    MOVED_NAME,
    ROOT_MARKER_NAME,
    RootRecord,
    parse_root,
    parse_spool_name,
    render_root,
)
from durastore.fsio.append import DurableFile
from durastore.fsio.ballast import Ballast
from durastore.fsio.folder import Folder
from durastore.fsio.paths import open_folder, open_parent
from durastore.fsio.publish import publish
from durastore.fsio.relocate import relocate_shared
from durastore.fsio.space import filesystem_of
from durastore.fsio.sys import SYS
from durastore.migrate.existing import set_superseded
from durastore.migrate.outcome import Outcome
from durastore.migrate.places import Target
from durastore.migrate.roots import MARKER_LIMIT_BYTES, HeldRoot, below
from durastore.migrate.scan import scan_tree
from durastore.spool.nearby import spools_in
from durastore.spool.root import read_moved

__all__ = ["RootState", "begin_root", "end_root", "find_state", "path_at_target"]


class RootState(Enum):
    """How far the migration of one root is."""

    FRESH = "fresh"
    UNFINISHED = "unfinished"
    """DST has its `MIGRATING-FROM`."""
    DONE = "done"
    """It is at work in DST, and SRC says so."""


def path_at_target(target: Path, root: HeldRoot) -> Path:
    """Where the root will be."""
    return target / root.path if root.path else target


def find_state(target: Folder | None, root: HeldRoot, *, source_path: Path, target_path: Path) -> RootState | str:
    """The state, or why this root cannot go there. `target`: DST, None where it does not exist yet. OSError passes."""
    place = path_at_target(target_path, root)
    if root.moved_to not in (None, "", str(place)):
        return f"spool root {source_path / root.path} was moved to {root.moved_to}"
    try:
        folder = open_folder(target, root.path) if target is not None else None
    except FileNotFoundError:
        folder = None
    if folder is None:
        return f"{place} is gone, to which this root was moved" if root.moved_to is not None else RootState.FRESH
    with folder:
        if folder.has(INCOMING_NAME):
            is_ours = _incoming_id(folder) == root.record.root_id
            return RootState.UNFINISHED if is_ours else f"{place} is being filled with another spool root"
        if folder.has(ROOT_MARKER_NAME):
            record = parse_root(folder.read_bytes(ROOT_MARKER_NAME, limit_bytes=MARKER_LIMIT_BYTES))
            is_done = root.moved_to is not None and record.root_id == root.record.root_id
            return RootState.DONE if is_done else f"{place} is a spool root already"
        if root.moved_to is not None:
            return f"{place} has no marker of the root that was moved there"
        spools = spools_in(folder)
    return f"{place / spools[0]} looks like a spool already" if spools else RootState.FRESH


def begin_root(target: Target, root: HeldRoot, *, source: Path) -> None:
    """Before the first of its files: DST's root does not open until the end. Safe to repeat. `DiskFailed`, OSError."""
    with open_folder(target.folder, root.path) as folder:
        text = f"{root.record.root_id}\n".encode() + os.fsencode(source / root.path) + b"\n"
        try:
            publish(folder, INCOMING_NAME, chunks=[text])
        except FileExistsError:
            pass  # ours: looked at before


def end_root(target: Target, root: HeldRoot, *, expected: Iterable[str], outcome: Outcome) -> None:
    """Hand over. `expected`: paths of all files that the root has now, every one proven. All spools are held.

    `SpoolLocked` if a process began to work there meanwhile (then SRC is as it was), `DiskFailed` or OSError if a step
    cannot be made; DST is not active then. Safe to repeat.
    """
    place = path_at_target(target.trees.target_path, root)
    _set_extras_aside(target, root, expected=set(expected), outcome=outcome)
    with open_folder(target.folder, root.path) as there, open_folder(target.trees.source, root.path) as here:
        target.check()
        _publish_marker(there, root, place=place)
        _publish_moved(here, root, place=place)
        made_meanwhile = [n for n in here.names() if parse_spool_name(n) is not None and n not in root.locks]
        if made_meanwhile:
            relocate_shared(here, MOVED_NAME, target=here, new_name=f"{MOVED_NAME}.withdrawn-{secrets.token_hex(4)}")
            raise SpoolLocked(
                f"a process began to work in {here.path / made_meanwhile[0]} meanwhile",
                hint=f"durastore stop --local {here.path}, then the same command again",
            )
        new_name = f"{secrets.token_hex(4)}-{INCOMING_NAME}"
        relocate_shared(there, INCOMING_NAME, target=target.superseded, new_name=new_name)


def _incoming_id(folder: Folder) -> str:
    text = folder.read_bytes(INCOMING_NAME, limit_bytes=MARKER_LIMIT_BYTES)
    return text.split(b"\n", 1)[0].decode("ascii", "replace")


def _set_extras_aside(target: Target, root: HeldRoot, *, expected: set[str], outcome: Outcome) -> None:
    """Packs that were copied while a process worked there, and that it freed or replaced afterwards: a file that no
    journal names would be read back as one that the journal had forgotten.
    """
    for file in scan_tree(target.folder, begin=root.path).files:
        rest = file.path.removeprefix(f"{root.path}/") if root.path else file.path
        is_in_spool = parse_spool_name(rest.partition("/")[0]) is not None and below(file.path, root.path)
        if is_in_spool and file.path not in expected:
            parent, name = open_parent(target.folder, file.path)
            with parent:
                set_superseded(target, parent, name=name, path=file.path, outcome=outcome)


def _publish_marker(there: Folder, root: HeldRoot, *, place: Path) -> None:
    """The root keeps its id: it is the same one in another place. Who copies it by other means gets another."""
    inode = os.fstat(there.fd).st_ino
    record = RootRecord(root_id=root.record.root_id, fs_uuid=filesystem_of(place).uuid, directory_inode=inode)
    try:
        publish(there, ROOT_MARKER_NAME, chunks=[render_root(record)])
    except FileExistsError:
        found = parse_root(there.read_bytes(ROOT_MARKER_NAME, limit_bytes=MARKER_LIMIT_BYTES))
        if (found.root_id, found.directory_inode) != (record.root_id, inode):
            raise DurastoreError(f"{place} got the marker of another root meanwhile") from None


def _publish_moved(here: Folder, root: HeldRoot, *, place: Path) -> None:
    text = os.fsencode(place) + b"\n"
    try:
        _publish_once(here, text)
    except DiskFailed as exc:
        if not exc.is_full:
            raise
        for name in root.locks:  # what keeps space for the record that a full disk needs most
            with here.child(name) as spool:
                Ballast(spool, BALLAST_NAME, size_bytes=0).release()
        _publish_where_full(here, text)


def _publish_where_full(here: Folder, text: bytes) -> None:
    """A link keeps a short path in its inode; a file without bytes needs no block at all, and refuses just as well."""
    try:
        _publish_once(here, text)
        return
    except DiskFailed as exc:
        if not exc.is_full:
            raise
    try:
        SYS.symlink(os.fsdecode(text.rstrip(b"\n")), MOVED_NAME, dir_fd=here.fd)
        here.sync()
    except OSError as exc:
        if exc.errno not in (*NO_ROOM, errno.ENAMETOOLONG):
            raise
        DurableFile.create(here, MOVED_NAME).close()


def _publish_once(here: Folder, text: bytes) -> None:
    try:
        publish(here, MOVED_NAME, chunks=[text])
    except FileExistsError:
        if read_moved(here) not in ("", os.fsdecode(text.rstrip(b"\n"))):
            raise DurastoreError(f"{here.path} was marked as moved elsewhere meanwhile") from None
