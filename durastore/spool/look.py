"""A look at a spool from outside: what its journal says and what lies in it, without opening it for work.

Duty: columns for an inventory, read only. Must never write, take over or wait for a spool, and never take a journal
that cannot be read for an empty one.
"""

from __future__ import annotations

import os
import sqlite3
import stat as stat_module
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from durastore.errors import DiskFailed, FormatUnsupported, SpoolUnreadable
from durastore.formats.journal import check_version
from durastore.formats.spool_root import LOCK_NAME, PACKS_NAME, QUARANTINE_NAME, parse_spool_name
from durastore.fsio.folder import Folder
from durastore.fsio.lock import FlockedFile
from durastore.spool.journal_db import connect
from durastore.spool.journal_errors import SQLITE_ERRORS
from durastore.spool.journal_file import newest_journal

__all__ = ["FileColumns", "PackColumns", "SpoolLook", "look_at_spool", "spool_names"]

_CHUNK_ROWS = 50_000


@dataclass(slots=True)
class FileColumns:
    """Names and sizes of the files in one folder; what is no file is in `odd`."""

    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)


@dataclass(slots=True)
class PackColumns:
    """The journal's packs, a list a column. Sizes are -1 and texts empty where the journal has none."""

    names: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)
    """Keys of the manifest segments that the packs' rows are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLook:
    """One spool as it was seen."""

    name: str
    is_held: bool
    """A live process works in it (the kernel's lock says so)."""
    packs: PackColumns
    facts: Mapping[str, str]
    writers: frozenset[str]
    files: FileColumns
    quarantined: FileColumns
    fault: str | None = None
    """Why the journal could not be read; its columns are empty then."""


def spool_names(root: Folder) -> list[str]:
    """The spools of a root, sorted."""
    return [name for name in root.names() if parse_spool_name(name) is not None]


def look_at_spool(root: Folder, name: str) -> SpoolLook:
    """Read one spool. `SpoolUnreadable` where its folders cannot be read; a journal that cannot be is told as `fault`.

    The spool's lock is held meanwhile if it is free, so that nobody begins to work there between two reads.
    """
    try:
        with root.child(name) as folder:
            lock = FlockedFile.try_lock(folder, LOCK_NAME) if folder.has(LOCK_NAME) else None
            try:
                is_held = lock is None and folder.has(LOCK_NAME)
                return _look(folder, name, is_held=is_held)
            finally:
                if lock is not None:
                    lock.close()
    except (OSError, DiskFailed) as exc:
        raise SpoolUnreadable(f"spool {root.path / name}: {exc}") from exc


def _look(folder: Folder, name: str, *, is_held: bool) -> SpoolLook:
    packs, facts, writers = PackColumns(), dict[str, str](), frozenset[str]()
    fault = None
    try:
        packs, facts, writers = _read_journal(folder)
    except (*SQLITE_ERRORS, FormatUnsupported, TypeError, ValueError) as exc:
        fault = f"its journal cannot be read: {exc}"
    return SpoolLook(
        name=name,
        is_held=is_held,
        packs=packs,
        facts=facts,
        writers=writers,
        files=_files(folder, PACKS_NAME),
        quarantined=_files(folder, QUARANTINE_NAME),
        fault=fault,
    )


def _read_journal(folder: Folder) -> tuple[PackColumns, dict[str, str], frozenset[str]]:
    journal = newest_journal(folder)
    packs = PackColumns()
    if journal is None:
        return packs, {}, frozenset()
    with closing(connect(folder, journal, is_read_only=True)) as connection:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (user_version,) = connection.execute("PRAGMA user_version").fetchone()
        if (application_id, user_version) == (0, 0):
            return packs, {}, frozenset()
        check_version(application_id, user_version)
        connection.execute("BEGIN")  # one state for all that is read
        _read_packs(connection, packs)
        facts = {str(key): str(value) for key, value in connection.execute("SELECT name, value FROM facts")}
        writers = frozenset(str(writer) for (writer,) in connection.execute("SELECT writer FROM writers"))
    return packs, facts, writers


def _read_packs(connection: sqlite3.Connection, packs: PackColumns) -> None:
    rows = connection.execute(
        "SELECT name, state, coalesce(size_bytes, -1), coalesce(key, ''), coalesce(digest, ''),"
        " coalesce(manifested_in, '') FROM packs"
    )
    once: dict[str, str] = {}  # a segment is named by thousands of packs
    while chunk := rows.fetchmany(_CHUNK_ROWS):
        names, states, sizes, keys, digests, segments = zip(*chunk, strict=True)
        packs.names.extend(map(str, names))
        packs.states.extend(map(str, states))
        packs.sizes.extend(map(int, sizes))
        packs.keys.extend(map(str, keys))
        packs.digests.extend(map(str, digests))
        packs.segments.extend(once.setdefault(str(key), str(key)) for key in segments)


def _files(folder: Folder, name: str) -> FileColumns:
    found = FileColumns()
    if not folder.has(name):
        return found
    with folder.child(name) as below, os.scandir(below.fd) as entries:
        for entry in entries:
            stat = entry.stat(follow_symlinks=False)
            if stat_module.S_ISREG(stat.st_mode) and entry.name.isprintable():  # lone surrogates are not
                found.names.append(entry.name)
                found.sizes.append(stat.st_size)
            else:
                found.odd.append(entry.name)
    return found
