"""Which file is the journal, and how a failed or damaged one is followed by a new one.

The journal is the `journal-<n>.sqlite` with the highest n. If the marker `journal-<n>.failed` stands beside it, or its
content is damaged, it is copied into `journal-<n+1>.sqlite` and set aside. Order, so that a crash at any point leaves
one journal that holds everything: read the old one -> publish the copy (all or nothing) -> move the old names into
quarantine. Until the copy has its final name the old one is the highest; from then on the old names are leftovers.
Must never write to the old file, and never drop it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from durastore.errors import DiskFailed, JournalFailed
from durastore.fsio.append import DurableFile
from durastore.fsio.folder import Folder
from durastore.fsio.publish import publish
from durastore.fsio.relocate import relocate
from durastore.spool.journal_db import JournalDatabase, connect, failed_marker, has_tables, is_empty
from durastore.spool.journal_errors import SQLITE_ERRORS, has_no_room, is_corruption, is_rollback_due, no_room

__all__ = ["OpenedJournal", "newest_journal", "open_database", "reading_current", "set_aside"]

_NAME = re.compile(r"journal-([1-9][0-9]{0,8})\.(sqlite|sqlite-wal|sqlite-shm|sqlite-journal|failed)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedJournal:
    """An open journal file and what had to be done to get it."""

    database: JournalDatabase
    replaced: str | None
    """Name of the journal that this one follows, where that one had failed or was damaged."""


def open_database(folder: Folder, quarantine: Folder, *, is_wal: bool, fresh_facts: Mapping[str, str]) -> OpenedJournal:
    """Open the spool's journal, making the first or following up a failed one. Safe to repeat.

    `FormatUnsupported` for a newer major, before anything is changed; `JournalFailed` if it cannot be read or written.
    """
    number, replaced = _current(folder)
    database = _look(folder, number, is_wal=is_wal)
    is_fresh = _prepared(database, fresh_facts) if database is not None else None
    if database is None or is_fresh is None:
        replaced, number = _name(number), _follow_up(folder, number)
        database = JournalDatabase(folder, _name(number), is_wal=is_wal)
        try:
            database.prepare(fresh_facts)
        except JournalFailed:
            database.abandon()
            raise
        except BaseException:
            database.leave()
            raise
    try:
        _set_aside_older(folder, quarantine, number=number)
    except BaseException:
        database.close()
        raise
    return OpenedJournal(database=database, replaced=replaced)


@contextmanager
def reading_current(folder: Folder) -> Iterator[sqlite3.Connection]:
    """The journal that is in use in `folder`, perhaps by another process, for reading only. Nothing is changed.

    `JournalFailed` where there is none, or it failed or is damaged; `FormatUnsupported` for a newer major.
    """
    number = _highest(folder)
    if number == 0 or folder.has(failed_marker(_name(number))):
        raise JournalFailed(f"{folder.path} has no sound journal")
    try:
        connection = connect(folder, _name(number), is_read_only=True)
        try:
            if is_empty(connection):
                raise JournalFailed(f"journal {folder.path / _name(number)} is empty")
            yield connection
        finally:
            connection.close()
    except SQLITE_ERRORS as exc:
        raise JournalFailed(f"reading journal {folder.path / _name(number)}: {exc}") from exc


def _current(folder: Folder) -> tuple[int, str | None]:
    """Number of the journal to open, and the name of the failed one it was just made from."""
    number = _highest(folder)
    if number == 0:
        DurableFile.create(folder, _name(1)).close()
        return 1, None
    if folder.has(failed_marker(_name(number))):
        return _follow_up(folder, number), _name(number)
    return number, None


def _prepared(database: JournalDatabase, fresh_facts: Mapping[str, str]) -> bool | None:
    """Whether the prepared database is fresh; None if it is damaged, and then it is not touched any more."""
    try:
        return database.prepare(fresh_facts)
    except JournalFailed as exc:
        database.abandon()
        if exc.facts.get("is_corrupt"):
            return None
        raise
    except BaseException:
        database.leave()  # a full disk, Ctrl-C: the file is sound, and whoever comes next finds it free
        raise


def _name(number: int) -> str:
    return f"journal-{number}.sqlite"


def newest_journal(folder: Folder) -> str | None:
    """The name of the journal that the next open would go on with; None where there is none."""
    number = _highest(folder)
    return _name(number) if number else None


def _highest(folder: Folder) -> int:
    matches = (_NAME.fullmatch(name) for name in folder.names())
    return max((int(match[1]) for match in matches if match is not None and match[2] == "sqlite"), default=0)


def _look(folder: Folder, number: int, *, is_wal: bool) -> JournalDatabase | None:
    """The database if its version is known; None if the file is damaged beyond telling. Read-only until then: closing a
    connection that may write would fold the WAL of a newer format into its file. A commit that was cut off outside WAL
    mode is no such thing: undoing it gives back the file as it was, and `prepare` looks at its version before the rest.
    """
    try:
        probe = connect(folder, _name(number), is_read_only=True)
        try:
            is_empty(probe)
        finally:
            probe.close()
    except SQLITE_ERRORS as exc:
        if is_corruption(exc):
            return None
        if has_no_room(exc):
            raise no_room(folder.path / _name(number), exc) from exc
        if not is_rollback_due(exc):
            raise JournalFailed(f"opening journal {folder.path / _name(number)}: {exc}") from exc
    return JournalDatabase(folder, _name(number), is_wal=is_wal)


def _follow_up(folder: Folder, number: int) -> int:
    """Publish what journal `number` holds as the next one; an empty one where it holds nothing readable."""
    data = _content(folder, _name(number))
    following = _name(number + 1)
    if data:
        publish(folder, following, chunks=[data])  # INV-2: whole and durable under its name, or not there
    else:
        DurableFile.create(folder, following).close()
    return number + 1


def _content(folder: Folder, name: str) -> bytes | None:
    """All committed content of a journal as the bytes of a database file; None if it is damaged.

    `JournalFailed` if it cannot be read: that is not the same as damaged, and nothing may follow it up then.
    """
    memory = sqlite3.connect(":memory:", isolation_level=None)
    try:
        source = connect(folder, name, is_read_only=True)
        try:
            source.backup(memory)
        finally:
            source.close()
        is_whole = is_empty(memory) or has_tables(memory)
        if not is_whole or memory.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            return None
        return memory.serialize()
    except SQLITE_ERRORS as exc:
        if is_corruption(exc):
            return None
        raise JournalFailed(f"reading failed journal {folder.path / name}: {exc}") from exc
    finally:
        memory.close()


def _set_aside_older(folder: Folder, quarantine: Folder, *, number: int) -> None:
    for name in folder.names():
        match = _NAME.fullmatch(name)
        if match is not None and int(match[1]) < number:
            set_aside(folder, name, quarantine=quarantine)


def set_aside(folder: Folder, name: str, *, quarantine: Folder) -> str:
    """Move a doubtful file into quarantine under its own name, or with a number added if that is taken; returns the
    name it got. Never overwrites, never drops a last name. `DiskFailed` where that cannot be done.
    """
    for attempt in range(10_000):
        new_name = name if attempt == 0 else f"{name}.{attempt}"
        try:
            relocate(folder, name, target=quarantine, new_name=new_name)
        except FileExistsError:
            continue
        return new_name
    raise DiskFailed(f"{quarantine.path} holds ten thousand files called {name}", hint="release some of them")
