"""Spool roots in a tree: what may be copied while processes work there, and what their journals say.

Duty: lock the spools that nobody has, read every journal, and tell for each file whether it goes now, waits for a lock,
or is made anew at the other side. Must never wait for a lock, open a journal for writing, or take a journal that cannot
be read for one that knows of nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum

from durastore.errors import FormatUnsupported, IntegrityError, SpoolUnreadable
from durastore.formats.spool_root import (
    BALLAST_NAME,
    INCOMING_NAME,
    LOCK_NAME,
    MOVED_NAME,
    PACKS_NAME,
    QUARANTINE_NAME,
    ROOT_MARKER_NAME,
    RootRecord,
    parse_root,
    parse_spool_name,
)
from durastore.fsio.folder import Folder
from durastore.fsio.lock import FlockedFile
from durastore.fsio.paths import open_folder
from durastore.migrate.scan import Scan
from durastore.model import Digest
from durastore.spool.glance import opened_journal
from durastore.spool.journal_rows import load_packs
from durastore.spool.root import read_moved

__all__ = ["MARKER_LIMIT_BYTES", "Going", "HeldRoot", "below", "find_roots", "hold_root", "root_of"]

MARKER_LIMIT_BYTES = 65_536
_MADE_ANEW = re.compile(rf"{LOCK_NAME}|{BALLAST_NAME}|(store|worker)\.status|journal-[0-9]+\.sqlite-shm")
_DATA_FOLDERS = (PACKS_NAME, QUARANTINE_NAME)
_ROOT_FILES = frozenset({ROOT_MARKER_NAME, MOVED_NAME, INCOMING_NAME})


class Going(Enum):
    """What becomes of a file of a spool root."""

    NOW = "now"
    WAITING = "waiting"
    """For the lock of its spool, or of all of the root."""
    NOT = "not"
    """Its like is made at the other side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRoot:
    """One spool root of the source, with the locks that could be had."""

    path: str
    """Relative to the tree; empty for the tree itself."""
    record: RootRecord
    locks: dict[str, FlockedFile | None]
    """Spool -> its lock; None where another process has it."""
    seals: dict[str, Digest]
    """Path of a sealed pack, relative to the tree -> the journal's digest of it."""
    unread: dict[str, str]
    """Spool -> why its journal says nothing."""
    moved_to: str | None
    """What its `MOVED-TO` says, if there is one; empty where a full disk had no room for it."""

    @property
    def busy(self) -> list[str]:
        return sorted(name for name, lock in self.locks.items() if lock is None)

    def going_of(self, path: str) -> Going:
        """For a file below this root."""
        rest = path.removeprefix(f"{self.path}/") if self.path else path
        first, _, below = rest.partition("/")
        if not below:
            is_marker = first in _ROOT_FILES or first.startswith(f"{MOVED_NAME}.")
            return Going.NOT if is_marker else self._going_of_root()
        if first not in self.locks:
            return Going.WAITING if parse_spool_name(first) is not None else self._going_of_root()
        if _MADE_ANEW.fullmatch(below):
            return Going.NOT
        is_free = self.locks[first] is not None or (below.startswith(f"{PACKS_NAME}/") and path in self.seals)
        return Going.NOW if is_free else Going.WAITING

    def is_data(self, path: str) -> bool:
        """Whether a file below this root is a pack, or in quarantine."""
        parts = (path.removeprefix(f"{self.path}/") if self.path else path).split("/")
        return len(parts) > 2 and parts[0] in self.locks and parts[1] in _DATA_FOLDERS

    def _going_of_root(self) -> Going:
        """Logs and the like, which any process of the root may write to."""
        return Going.WAITING if self.busy else Going.NOW


def find_roots(scan: Scan) -> list[str]:
    """Paths of the spool roots in a tree, outer ones first."""
    marker = f"/{ROOT_MARKER_NAME}"
    found = [file.path.removesuffix(marker) for file in scan.files if file.path.endswith(marker)]
    return sorted(["" for file in scan.files if file.path == ROOT_MARKER_NAME] + found)


def root_of(roots: Sequence[HeldRoot], path: str) -> HeldRoot | None:
    """The innermost root that the path lies in."""
    inside = [root for root in roots if below(path, root.path)]
    return max(inside, key=lambda root: len(root.path), default=None)


def below(path: str, root: str) -> bool:
    """Whether the path is that of the root, or lies in it."""
    return root in ("", path) or path.startswith(f"{root}/")


def hold_root(source: Folder, path: str, *, stack: ExitStack) -> HeldRoot:
    """Read the marker, lock what can be locked until `stack` ends, and read the journals.

    `SpoolUnreadable`, `IntegrityError` or `FormatUnsupported` where the root itself cannot be understood.
    """
    locks: dict[str, FlockedFile | None] = {}
    seals: dict[str, Digest] = {}
    unread: dict[str, str] = {}
    try:
        with open_folder(source, path) as folder:
            record = parse_root(folder.read_bytes(ROOT_MARKER_NAME, limit_bytes=MARKER_LIMIT_BYTES))
            moved_to = read_moved(folder)
            for name in folder.names():
                if parse_spool_name(name) is None:
                    continue
                with folder.child(name) as spool:
                    locks[name] = _locked(spool, stack=stack)
                    try:
                        seals |= {f"{path}/{name}/{PACKS_NAME}/{k}".lstrip("/"): v for k, v in _seals(spool).items()}
                    except (SpoolUnreadable, IntegrityError, FormatUnsupported) as exc:
                        unread[name] = exc.message
    except OSError as exc:
        raise SpoolUnreadable(f"spool root {source.path / path}: {exc.strerror or exc}") from exc
    return HeldRoot(path=path, record=record, locks=locks, seals=seals, unread=unread, moved_to=moved_to)


def _locked(spool: Folder, *, stack: ExitStack) -> FlockedFile | None:
    """By a descriptor for reading: the disk may be read-only by now."""
    try:
        lock = FlockedFile.try_lock_existing(spool, LOCK_NAME)
    except FileNotFoundError:
        lock = FlockedFile.try_lock(spool, LOCK_NAME)  # a spool in the first moment of its life
    if lock is not None:
        stack.callback(lock.close)
    return lock


def _seals(spool: Folder) -> dict[str, Digest]:
    try:
        with opened_journal(spool) as conn:
            if conn is None:
                return {}
            return {record.name: record.digest for record in load_packs(conn, ()) if record.digest is not None}
    except OSError as exc:
        raise SpoolUnreadable(f"the journal of {spool.path}: {exc.strerror or exc}") from exc
