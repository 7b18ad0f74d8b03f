"""What SQLite's errors say of a journal: damage, a disk without room, or that nothing can be told.

Duty: read error codes. Must never decide what is done about them.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from durastore.errors import DiskFailed

__all__ = ["SQLITE_ERRORS", "has_no_room", "is_corruption", "is_disk_full", "is_rollback_due", "no_room"]

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a statement raises. UnicodeDecodeError: SQLite's message quotes the file, and what it quotes is no text."""


def is_corruption(exc: BaseException) -> bool:
    """True if SQLite says that the file's content is wrong, as opposed to that it could not be read."""
    if isinstance(exc, UnicodeDecodeError):
        return True
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_rollback_due(exc: BaseException) -> bool:
    """True if a process was ended within a commit outside WAL mode: only a connection that may write can undo it."""
    return getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_ROLLBACK


def is_disk_full(exc: BaseException) -> bool:
    """True if SQLite found no room for a page (ENOSPC; a quota's EDQUOT it calls an I/O error). No sync had failed."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def has_no_room(exc: BaseException) -> bool:
    """True if a file that is being opened has no room: it, its WAL, or the shared memory beside it. Later than that the
    shared memory comes after the commit, and tells nothing of it.
    """
    return is_disk_full(exc) or getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHMSIZE


def no_room(path: Path, exc: BaseException) -> DiskFailed:
    """What to raise then."""
    return DiskFailed(f"journal {path}: {exc}", hint="free some space on this disk", errno=errno.ENOSPC)
