"""One SQLite file, its one connection and its one lock: a commit that returned is on disk, an error is final.

Duty: open the file as it has to be (WAL, synchronous=FULL, checkpoints made and read by us), run transactions, and stop
for good at the first error. After a failed write or fsync page cache and disk may disagree, and every later
"success" on the same file would prove nothing: the connection is then never used, never checkpointed and never closed
again, and a marker makes the next open go on in a new file. A full disk is another matter (ADR 0006): SQLite says so
before anything was synced, and undoes the transaction. Must never retry a failed statement.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

from durastore.errors import DiskFailed, ForkedStore, JournalFailed, StoreClosed, UnsupportedFilesystem
from durastore.formats.journal import ADDED_COLUMNS, APPLICATION_ID, SCHEMA, USER_VERSION, check_version
from durastore.fsio.ballast import Ballast
from durastore.fsio.folder import Folder
from durastore.fsio.publish import publish, write_all
from durastore.fsio.space import free_bytes
from durastore.fsio.sys import SYS
from durastore.spool.journal_errors import SQLITE_ERRORS, has_no_room, is_corruption, is_disk_full, no_room

__all__ = [
    "JournalDatabase",
    "connect",
    "failed_marker",
    "has_tables",
    "is_empty",
]

_CHECKPOINT_BYTES = 16 << 20
_SLACK_BYTES = 64 << 10
_BUSY_MS = 10_000
_CHECKPOINT_BUSY_MS = 50  # a put waits behind this


def connect(folder: Folder, name: str, *, is_read_only: bool = False) -> sqlite3.Connection:
    """A connection to an existing file; no statement runs yet. A file that is gone is an error, not a new journal."""
    uri = f"file:{quote(str(folder.path / name))}?mode={'ro' if is_read_only else 'rw'}"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_MS / 1_000, isolation_level=None, check_same_thread=False)


def failed_marker(name: str) -> str:
    """Name of the marker that tells the next open that journal `name` must not be written any more."""
    return name.removesuffix(".sqlite") + ".failed"


def is_empty(connection: sqlite3.Connection) -> bool:
    """True if the database has no content yet. `FormatUnsupported` if it has, and is no journal of a known version."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (user_version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application_id, user_version, tables) == (0, 0, 0):
        return True
    check_version(application_id, user_version)
    return False


def has_tables(connection: sqlite3.Connection) -> bool:
    """True if every table and column of the journal is there. More of them may be: a higher minor version adds some. A
    lower one lacks what was added since.
    """
    added = {(table, column) for table, column, _ in ADDED_COLUMNS}
    model = sqlite3.connect(":memory:")
    try:
        for statement in SCHEMA:
            model.execute(statement)
        tables = [name for (name,) in model.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        lacking = {
            (table, column)
            for table in tables
            if not table.startswith("sqlite_")
            for column in _columns(model, table) - _columns(connection, table)
        }
        return lacking <= added
    finally:
        model.close()


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


class JournalDatabase:
    """The connection. Thread-safe; in a forked child every call raises `ForkedStore` and nothing is closed."""

    def __init__(self, folder: Folder, name: str, *, is_wal: bool = True) -> None:
        self._folder = folder
        self._is_wal = is_wal
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._failure: JournalFailed | None = None
        self._is_closed = False
        self._checkpoint_at = _CHECKPOINT_BYTES
        self._on_commit: list[Callable[[], None]] = []
        self.name = name
        self.writes = 0
        """Transactions of this process so far, whatever came of them; nobody else writes to a live journal."""
        self.ballast: Ballast | None = None
        """Space that is given up when a transaction begins on a disk that is full."""
        try:
            self._connection = connect(folder, name)
        except SQLITE_ERRORS as exc:
            raise JournalFailed(f"opening journal {folder.path / name}: {exc}") from exc

    def prepare(self, fresh_facts: Mapping[str, str]) -> bool:
        """Check version and content and set the durability pragmas; makes the tables in an empty file.

        Returns True if the file was empty: then `fresh_facts` were recorded in the same transaction as the tables.
        `JournalFailed` on any trouble, with the fact `is_corrupt` telling damage from not being able to look.
        """
        conn = self._connection
        try:
            is_fresh = is_empty(conn)
            problem = conn.execute("PRAGMA quick_check(1)").fetchone()
            if problem == ("ok",) and not is_fresh and not has_tables(conn):
                problem = "it lacks a table or a column"
            if problem != ("ok",):
                raise JournalFailed(f"journal {self._folder.path / self.name} is damaged: {problem}", is_corrupt=True)
            self._set_pragmas()
            if is_fresh:
                self._create(fresh_facts)
            else:
                self._add_columns()
            # what a killed process left in the WAL is rewritten into the file and synced by us: after this nothing
            # rests on pages that an earlier process may have failed to sync
            if not self._checkpoint_if_room():
                self._rewrite_wal()
        except SQLITE_ERRORS as exc:
            if has_no_room(exc):
                raise self._no_room(exc) from exc
            raise JournalFailed(
                f"opening journal {self._folder.path / self.name}: {exc}", is_corrupt=is_corruption(exc)
            ) from exc
        return is_fresh

    def _set_pragmas(self) -> None:
        conn = self._connection
        mode = "WAL" if self._is_wal else "DELETE"
        (got,) = conn.execute(f"PRAGMA journal_mode={mode}").fetchone()
        if str(got).upper() != mode:
            raise UnsupportedFilesystem(f"the journal at {self._folder.path} cannot use {mode} mode (got {got})")
        # EXTRA in rollback mode: the removal of the rollback file is synced too, else a power cut undoes a commit
        conn.execute(f"PRAGMA synchronous={'FULL' if self._is_wal else 'EXTRA'}")
        (level,) = conn.execute("PRAGMA synchronous").fetchone()
        conn.execute("PRAGMA wal_autocheckpoint=0")  # automatic checkpoints swallow fsync errors
        conn.execute("PRAGMA foreign_keys=ON")
        conn.execute("PRAGMA temp_store=MEMORY")
        conn.execute("PRAGMA cell_size_check=ON")
        conn.execute("PRAGMA fullfsync=ON")  # macOS; without effect elsewhere
        conn.execute("PRAGMA checkpoint_fullfsync=ON")
        if level < 2:
            raise UnsupportedFilesystem(f"SQLite refused synchronous=FULL (got {level})")

    def _create(self, facts: Mapping[str, str]) -> None:
        conn = self._connection
        conn.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            conn.execute(statement)
        conn.executemany("INSERT INTO facts (name, value) VALUES (?, ?)", list(facts.items()))
        conn.execute(f"PRAGMA application_id={APPLICATION_ID}")
        conn.execute(f"PRAGMA user_version={USER_VERSION}")
        conn.execute("COMMIT")

    def _add_columns(self) -> None:
        """A journal of an earlier minor version gets what was added since, all of it or nothing. One of a later minor
        version has all of it, and keeps its number.
        """
        conn = self._connection
        lacking = [added for added in ADDED_COLUMNS if added[1] not in _columns(conn, added[0])]
        if not lacking:
            return
        conn.execute("BEGIN IMMEDIATE")
        for table, column, kind in lacking:
            conn.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
        conn.execute(f"PRAGMA user_version={USER_VERSION}")
        conn.execute("COMMIT")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: durable when the block was left without an error, without effect otherwise.

        `DiskFailed` with ENOSPC where the disk was full: undone, and to be tried again once there is room. Any other
        SQLite error raises `JournalFailed` and ends this journal; any other exception rolls back and passes.
        """
        with self._lock:
            self._require_alive()
            conn = self._connection
            self._on_commit = []
            if self.ballast is not None:
                self.ballast.release_if_scarce()
            try:
                conn.execute("BEGIN IMMEDIATE")
                try:
                    yield conn
                    conn.execute("COMMIT")
                except BaseException as exc:
                    if isinstance(exc, SQLITE_ERRORS) and not is_disk_full(exc):
                        raise
                    if conn.in_transaction:
                        conn.execute("ROLLBACK")
                    if is_disk_full(exc):
                        raise self._no_room(exc) from exc
                    raise
                for note in self._on_commit:
                    note()
                if self._is_wal and self._wal_bytes() >= self._checkpoint_at:
                    self._checkpoint_if_room()
            except SQLITE_ERRORS as exc:
                raise self._die(exc) from exc
            finally:
                self.writes += 1  # under the lock: whoever reads next sees the new count

    def on_commit(self, note: Callable[[], None]) -> None:
        """Inside of `writing`: what is kept in memory of the transaction changes with its commit, or not at all."""
        self._on_commit.append(note)

    def _no_room(self, exc: BaseException) -> DiskFailed:
        return no_room(self._folder.path / self.name, exc)

    def _checkpoint_if_room(self) -> bool:
        """The transactions are in the WAL and synced; where the file cannot grow they stay there for a later time.

        Not tried where it cannot end well: it would take the last room, which the next commits need to free some.
        """
        try:
            if self._is_wal and self._growth_bytes() > free_bytes(self._folder.fd):
                self._checkpoint_at = _CHECKPOINT_BYTES + self._wal_bytes()
                return False
            self._checkpoint()
        except sqlite3.Error as exc:
            if not is_disk_full(exc):
                raise
            self._checkpoint_at = _CHECKPOINT_BYTES + self._wal_bytes()
            return False
        return True

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Several SELECTs that see one state. An SQLite error raises `JournalFailed` and ends this journal."""
        with self._lock:
            self._require_alive()
            try:
                yield self._connection
            except SQLITE_ERRORS as exc:
                raise self._die(exc) from exc

    def close(self) -> None:
        """Checkpoint and close. A journal that failed, or one inherited by a fork, is left as it is. Safe to repeat."""
        with self._lock:
            if self._is_closed or self._failure is not None or os.getpid() != self._pid:
                return
            try:
                # with its result read here, the checkpoint inside close() has nothing left to do
                if self._checkpoint_if_room():
                    self._connection.close()
                else:
                    self._let_go()
            except SQLITE_ERRORS as exc:
                raise self._die(exc) from exc
            self._is_closed = True

    def leave(self) -> None:
        """Close the file as the kernel would close a killed process's, an open transaction undone: for a file that is
        sound, and whose disk is full. Safe to repeat.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._let_go()

    def _let_go(self) -> None:
        """Close without a checkpoint, whose result nobody would be told. The last connection makes one, so a reader
        stays until this one is gone; it may not write, and makes none.
        """
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if not self._wal_bytes():
                self._connection.close()  # it has nothing to write
                return
            reader = connect(self._folder, self.name, is_read_only=True)
            try:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM sqlite_master").fetchone()  # only now it holds the file
                self._connection.close()
            finally:
                reader.close()
        except SQLITE_ERRORS:
            _pin(self._connection)

    def abandon(self) -> None:
        """Never touch the file again through this connection: it is neither checkpointed nor closed. Safe to repeat."""
        _pin(self._connection)
        self._is_closed = True

    def _checkpoint(self) -> None:
        if not self._is_wal:
            return
        conn = self._connection
        conn.execute(f"PRAGMA busy_timeout={_CHECKPOINT_BUSY_MS}")
        busy, _, _ = conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        conn.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        # busy: another process is reading (a status command). The WAL keeps everything, and a later commit tries again
        self._checkpoint_at = _CHECKPOINT_BYTES + (self._wal_bytes() if busy else 0)

    def _growth_bytes(self) -> int:
        """By how much the file grows when the WAL is written into it; a little more, for the file system's own."""
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = self._connection.execute("PRAGMA page_size").fetchone()
        growth = pages * page_bytes - self._folder.identity(self.name).size_bytes
        return int(growth) + _SLACK_BYTES if growth > 0 else 0

    def _rewrite_wal(self) -> None:
        """The same bytes in the same places, written and synced by us: on a full disk this needs no room, and what is
        committed from now on rests on nothing that an earlier process may have failed to sync.
        """
        name = self.name + "-wal"
        try:
            fd = SYS.open(name, os.O_RDWR | os.O_NOFOLLOW, mode=0o600, dir_fd=self._folder.fd)
            try:
                at = 0
                while block := os.pread(fd, 1 << 20, at):
                    os.lseek(fd, at, os.SEEK_SET)
                    at += write_all(fd, [block])
                SYS.fsync(fd)
            finally:
                SYS.close(fd)
        except OSError as exc:
            raise JournalFailed(f"rewriting {self._folder.path / name}: {exc.strerror}", errno=exc.errno) from exc

    def _wal_bytes(self) -> int:
        try:
            return self._folder.identity(self.name + "-wal").size_bytes
        except FileNotFoundError:
            return 0

    def _require_alive(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedStore("this journal was opened by the parent process", hint="open a store in this process")
        if self._failure is not None:
            raise JournalFailed(f"the journal failed before: {self._failure.message}") from self._failure
        if self._is_closed:
            raise StoreClosed(f"journal {self.name} is closed")

    def _die(self, exc: BaseException) -> JournalFailed:
        _pin(self._connection)
        is_marked = self.mark_failed(str(exc))
        self._failure = JournalFailed(
            f"journal {self._folder.path / self.name}: {exc}",
            hint="free space or check the disk, then run the same command again; no acknowledged sample is lost",
            is_marked=is_marked,
        )
        return self._failure

    def mark_failed(self, why: str) -> bool:
        """Leave the marker that makes the next open go on in a new file. False if even that could not be written:
        then the next open reads this file, and its checkpoint writes all of it again.
        """
        try:
            publish(self._folder, failed_marker(self.name), chunks=[why.encode()])
        except FileExistsError:
            return True
        except (DiskFailed, OSError):
            return False
        return True


def _pin(connection: sqlite3.Connection) -> None:
    """Keep `connection` open until the process ends.

    Closing the last connection checkpoints the WAL and drops it. After a failed fsync that checkpoint may "succeed"
    with pages that never reached the disk, and the WAL was the only good copy.
    """
    import ctypes  # only on this rare path

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
