"""A journal's log as we read it, against what SQLite makes of the same bytes."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from durastore.errors import SpoolUnreadable
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


def made_up(page_bytes: int, *, number: int, size: int) -> bytes:
    """A log of one commit whose sums are right: page `number` of a database of `size` pages."""

    def summed(data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
        first, second = sums
        for at in range(0, len(data) - 7, 8):
            one, other = struct.unpack_from("<2I", data, at)
            first = (first + one + second) & 0xFFFFFFFF
            second = (second + other + first) & 0xFFFFFFFF
        return first, second

    head = struct.pack(">6I", 0x377F0682, 3_007_000, page_bytes, 0, 5, 6)
    sums = summed(head, (0, 0))
    frame, page = struct.pack(">2I", number, size), bytes(page_bytes)
    after = summed(page, summed(frame, sums))
    return head + struct.pack(">2I", *sums) + frame + struct.pack(">4I", 5, 6, *after) + page


@pytest.mark.parametrize("page_bytes", [0, 4, 500, 1 << 17])
def test_a_log_whose_pages_are_none_counts_for_nothing(page_bytes: int) -> None:
    assert with_log(bytes(PAGE), made_up(page_bytes, number=1, size=1))[20:] == bytes(PAGE)[20:]


def test_sizes_that_nothing_has_are_not_allocated() -> None:
    assert len(with_log(bytes(PAGE), made_up(PAGE, number=2, size=2))) == 2 * PAGE
    assert len(with_log(bytes(PAGE), made_up(PAGE, number=0xFFFFFFFF, size=1))) == PAGE
    with pytest.raises(SpoolUnreadable, match="tells of a database of"):
        with_log(bytes(PAGE), made_up(PAGE, number=1, size=0xFFFFFFFF))
