"""A journal's log as we read it, against what SQLite makes of the same bytes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from durastore.spool.journal_log import with_log

PAGE = 512


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A database and its log, as a kill leaves them: after growth, an overwritten log, and a shrunk file."""
    path = tmp_path_factory.mktemp("killed") / "a.sqlite"
    conn = sqlite3.connect(path, isolation_level=None)
    for statement in (f"PRAGMA page_size={PAGE}", "PRAGMA auto_vacuum=FULL", "PRAGMA journal_mode=WAL"):
        conn.execute(statement)
    conn.execute("PRAGMA wal_autocheckpoint=0")
    conn.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, x BLOB)")
    for n in range(40):
        conn.execute("INSERT INTO t VALUES (?, ?)", (n, bytes([n]) * 300))
    conn.execute("PRAGMA wal_checkpoint(RESTART)")  # what follows is written over the frames of before
    for n in range(40, 50):
        conn.execute("INSERT INTO t VALUES (?, ?)", (n, bytes([n]) * 300))
    conn.execute("DELETE FROM t WHERE n BETWEEN 3 AND 47")
    found = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    conn.close()
    return found


def rows_of(conn: sqlite3.Connection) -> list[tuple[int, bytes]]:
    with closing(conn):
        return conn.execute("SELECT n, x FROM t ORDER BY n").fetchall()


def ours(main: bytes, log: bytes) -> list[tuple[int, bytes]]:
    conn = sqlite3.connect(":memory:")
    conn.deserialize(with_log(main, log))
    assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return rows_of(conn)


def sqlites(folder: Path, main: bytes, log: bytes) -> list[tuple[int, bytes]]:
    folder.mkdir()
    (folder / "a.sqlite").write_bytes(main)
    (folder / "a.sqlite-wal").write_bytes(log)
    return rows_of(sqlite3.connect(folder / "a.sqlite"))


def test_a_log_cut_anywhere_gives_what_sqlite_sees(killed: tuple[bytes, bytes], tmp_path: Path) -> None:
    main, log = killed
    frame = PAGE + 24
    cuts = [0, 31, *range(32, len(log) + 1, frame), *range(32 + 20, len(log) + 1, 3 * frame)]
    seen = [ours(main, log[:cut]) for cut in cuts]
    assert seen == [sqlites(tmp_path / str(cut), main, log[:cut]) for cut in cuts]
    assert len({len(rows) for rows in seen}) > 8


def test_a_damaged_byte_ends_the_log_where_it_does_for_sqlite(killed: tuple[bytes, bytes], tmp_path: Path) -> None:
    main, log = killed
    counts = set()
    for at in [3, 7, 18, 30, *range(32, len(log), 997)]:
        damaged = bytearray(log)
        damaged[at] ^= 0x41
        rows = ours(main, bytes(damaged))
        assert rows == sqlites(tmp_path / str(at), main, bytes(damaged)), at
        counts.add(len(rows))
    assert len(counts) > 3
