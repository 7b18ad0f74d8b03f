"""The file that the processes of an extraction share: who works on what, what failed, and how each was started.

Duty: open `extract.sqlite` in the spool root, with its tables. What it says is never proof that a sample is done: only
the manifest is (INV-8). Losing the file costs forwards and the history of failures, no sample. Must never hold data.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from durastore.errors import DiskFailed, StoreMissing

__all__ = ["ALIVE_FILE", "WORK_FILE", "WorkDb"]

WORK_FILE = "extract.sqlite"
ALIVE_FILE = "extract.alive"
_BUSY_S = 60.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS worker (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_ns INTEGER NOT NULL,
    is_flushed INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS task (
    job TEXT NOT NULL,
    sample_id TEXT NOT NULL,
    input_digest TEXT NOT NULL,
    line INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    state TEXT NOT NULL,
    worker INTEGER,
    expires_s REAL,
    tensor_bytes INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    lapses INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (job, sample_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS task_order ON task (job, state, lapses, tokens DESC, sample_id);
CREATE TABLE IF NOT EXISTS job (
    job TEXT PRIMARY KEY,
    start INTEGER NOT NULL,
    workers INTEGER NOT NULL DEFAULT 0,
    inputs INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    ok INTEGER NOT NULL DEFAULT 0,
    done_before INTEGER NOT NULL DEFAULT 0,
    ended_ns INTEGER,
    exit_code INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failure (
    run TEXT NOT NULL,
    name TEXT NOT NULL,
    sample_id TEXT,
    line INTEGER NOT NULL,
    stage TEXT NOT NULL,
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    worker TEXT NOT NULL,
    time_ns INTEGER NOT NULL,
    settled_ns INTEGER,
    input_digest TEXT,
    PRIMARY KEY (run, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failure_told (
    run TEXT NOT NULL,
    name TEXT NOT NULL,
    line INTEGER NOT NULL,
    time_ns INTEGER NOT NULL DEFAULT 0,
    runs INTEGER NOT NULL DEFAULT 0,
    stored_id TEXT,
    is_settled INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS start (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time_ns INTEGER NOT NULL,
    facts TEXT NOT NULL
);
"""


class WorkDb:
    """One connection. Used from several threads of a process only under the lock of whoever owns it."""

    def __init__(self, root: Path, *, is_read_only: bool = False) -> None:
        """Make the file if there is none; read only: `StoreMissing` if there is none, and nothing is written."""
        self.path = root / WORK_FILE
        if is_read_only and not self.path.is_file():
            raise StoreMissing(f"no extraction has worked in {root}", hint="check the path: it is extract's --local")
        if not is_read_only:
            _ensure_private(self.path)
        with self._told("opening"):
            mode = "ro" if is_read_only else "rwc"
            self._conn = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
            if not is_read_only:
                # A power cut may take the last lines with it, whole: then samples are tried again, or found done.
                self._conn.execute("PRAGMA journal_mode = WAL")
                self._conn.execute("PRAGMA synchronous = NORMAL")
                self._conn.executescript(_SCHEMA)
                _ensure_columns(self._conn)

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that has the file to itself from its beginning; undone if the block raises."""
        with self._told("writing"):
            self._conn.execute("BEGIN IMMEDIATE")
            try:
                yield self._conn
            except BaseException:  # an interrupt too must leave no transaction open
                if self._conn.in_transaction:  # a full disk has undone it already, and is what is to be told
                    self._conn.execute("ROLLBACK")
                raise
            self._conn.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._told("reading"):
            yield self._conn

    def close(self) -> None:
        """Safe to repeat."""
        self._conn.close()

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            hint = "samples are safe; move the file away and run the same command again"
            raise DiskFailed(f"{what} {self.path}: {exc}", hint=hint) from exc


def _ensure_columns(conn: sqlite3.Connection) -> None:
    """A file of an older version has a table without them."""
    if _has_input_digest(conn):
        return
    conn.execute("BEGIN IMMEDIATE")
    if not _has_input_digest(conn):  # another process may have been as quick
        conn.execute("ALTER TABLE failure ADD COLUMN input_digest TEXT")
    conn.execute("COMMIT")


def _has_input_digest(conn: sqlite3.Connection) -> bool:
    return any(name == "input_digest" for _, name, *_ in conn.execute("PRAGMA table_info(failure)"))


def _ensure_private(path: Path) -> None:
    """An empty file of the owner's only: SQLite would make it, and its side files, by the umask.

    One that is there is not even opened: closing any descriptor of it would take this process's locks off it, other
    connections' included, and the next process to leave would drop a write-ahead log that is still written to.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        pass
    except OSError as exc:
        raise DiskFailed(f"opening {path}: {exc.strerror}", errno=exc.errno) from exc
