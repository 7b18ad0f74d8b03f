"""The journal's file: opened as it has to be, dead after its first error, followed by a new one, never guessed at."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from durastore.errors import DiskFailed, ForkedStore, FormatUnsupported, JournalFailed, StoreClosed
from durastore.formats.journal import USER_VERSION
from durastore.fsio.folder import Folder
from durastore.fsio.sys import SYS
from durastore.model import PackKind, PackState, WriterId
from durastore.spool import journal_db
from durastore.spool.journal import Journal
from durastore.spool.records import FACT_REBUILD, PackFile
from tests.unit.spool_lab import no_file_beyond

WRITER = WriterId("00000000000000aa")


def file_of(seq: int) -> PackFile:
    return PackFile(writer=WRITER, seq=seq, kind=PackKind.TAR)


@contextmanager
def journal_in(path: Path, *, is_wal: bool = True, has_packs: bool = False) -> Iterator[Journal]:
    with Folder.open(path) as folder, folder.ensure_child("quarantine") as quarantine:
        journal = Journal(folder, quarantine, writer=WRITER, is_wal=is_wal, has_packs=has_packs)
        try:
            yield journal
        finally:
            journal.close()


def names_in(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_file())


def connection_of(journal: Journal) -> sqlite3.Connection:
    return journal._db._connection


def test_what_was_recorded_is_there_at_the_next_open_and_for_nobody_else(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.add_open_pack(file_of(1))
    with journal_in(tmp_path) as journal:
        assert [record.name for record in journal.packs()] == [file_of(1).name]
        assert journal.replaced is None
        for name in names_in(tmp_path):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert names_in(tmp_path) == ["journal-1.sqlite"], "a clean close leaves no WAL behind"


@pytest.mark.parametrize("is_wal", [True, False])
def test_a_commit_that_was_cut_off_is_rolled_back(tmp_path: Path, is_wal: bool) -> None:
    """Outside WAL mode, and where a new file is switched to it, an ended process leaves a rollback file."""
    with journal_in(tmp_path, is_wal=False) as journal:
        journal.add_open_pack(file_of(1))
    pid = os.fork()
    if pid == 0:
        connection = sqlite3.connect(tmp_path / "journal-1.sqlite", isolation_level=None)
        connection.execute("PRAGMA cache_size=1")  # so that pages reach the file before the commit
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE packs SET name = 'half', seq = 77")
        connection.executemany("INSERT INTO facts VALUES (?, ?)", [(f"n{n}", "x" * 3_000) for n in range(50)])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (tmp_path / "journal-1.sqlite-journal").stat().st_size > 0
    with journal_in(tmp_path, is_wal=is_wal) as journal:
        assert [record.name for record in journal.packs()] == [file_of(1).name]
        assert journal.replaced is None


@pytest.mark.parametrize("is_wal", [True, False])
def test_every_commit_is_synced(tmp_path: Path, is_wal: bool) -> None:
    with journal_in(tmp_path, is_wal=is_wal) as journal:
        pragmas = {
            name: connection_of(journal).execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "wal_autocheckpoint", "foreign_keys")
        }
    assert pragmas == {
        "journal_mode": "wal" if is_wal else "delete",
        "synchronous": 2 if is_wal else 3,
        "wal_autocheckpoint": 0,
        "foreign_keys": 1,
    }


def test_a_reader_from_outside_only_delays_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_db, "_CHECKPOINT_BYTES", 1)
    wal = tmp_path / "journal-1.sqlite-wal"
    with journal_in(tmp_path) as journal:
        journal.set_fact("a", "1")
        assert wal.stat().st_size == 0
        with closing(sqlite3.connect(tmp_path / "journal-1.sqlite")) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM facts").fetchall()
            journal.set_fact("a", "2")
            assert wal.stat().st_size > 0
        journal.set_fact("a", "3")
        assert wal.stat().st_size == 0


def test_an_error_in_a_step_leaves_nothing_of_it(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        record = journal.add_open_pack(file_of(1))

        def interrupted() -> None:
            with journal._db.writing() as conn:
                conn.execute("UPDATE packs SET state = 'lost'")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert journal.packs() == [record]


# --- failure ---------------------------------------------------------------------------------------------------------


def fill(journal: Journal) -> None:
    """Let SQLite itself refuse the next page."""
    conn = connection_of(journal)
    (pages,) = conn.execute("PRAGMA page_count").fetchone()
    conn.execute(f"PRAGMA max_page_count={pages}")


def overflow(journal: Journal) -> None:
    journal.set_fact("big", "x" * 200_000)


def break_disk(journal: Journal) -> None:
    """A write that the kernel refuses, for another reason than room."""
    with no_file_beyond(65_536):
        overflow(journal)


def test_the_first_error_ends_the_journal_and_the_next_open_goes_on_in_a_new_file(tmp_path: Path) -> None:
    # case B68
    with journal_in(tmp_path) as journal:
        journal.add_open_pack(file_of(1))
        with pytest.raises(JournalFailed, match="I/O error"):
            break_disk(journal)
        for again in (journal.packs, lambda: journal.set_fact("a", "b"), lambda: journal.write_id(1)):
            with pytest.raises(JournalFailed):
                again()
        assert "journal-1.failed" in names_in(tmp_path)
        before = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path) if "shm" not in name}
        assert before["journal-1.sqlite-wal"], "the failed journal was checkpointed"
    # closing did not touch it either
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    for _ in range(2):
        with journal_in(tmp_path) as journal:
            assert journal.name == "journal-2.sqlite"
            assert [record.name for record in journal.packs()] == [file_of(1).name]
            assert journal.get_fact("big") is None
            journal.set_fact("a", "b")
        assert names_in(tmp_path) == ["journal-2.sqlite"]
    kept = {name: (tmp_path / "quarantine" / name).read_bytes() for name in before}
    assert kept == before, "the failed journal is kept as it was"


def test_a_failed_journal_that_is_let_go_is_not_checkpointed_either(tmp_path: Path) -> None:
    wal = tmp_path / "journal-1.sqlite-wal"

    def fail_and_forget() -> None:
        with Folder.open(tmp_path) as folder, folder.ensure_child("quarantine") as quarantine:
            journal = Journal(folder, quarantine, writer=WRITER)
            journal.add_open_pack(file_of(1))
            with pytest.raises(JournalFailed):
                break_disk(journal)

    fail_and_forget()
    gc.collect()
    assert wal.stat().st_size > 0, "collecting the connection folded its WAL into the file"


def test_an_error_whose_marker_cannot_be_written_is_still_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with journal_in(tmp_path) as journal:
        journal.add_open_pack(file_of(1))
        with monkeypatch.context() as patch:
            patch.setattr(SYS, "open", refuse)
            with pytest.raises(JournalFailed) as caught:
                break_disk(journal)
        assert caught.value.facts["is_marked"] is False
    with journal_in(tmp_path) as journal:
        assert (journal.name, len(journal.packs())) == ("journal-1.sqlite", 1)


def test_a_failing_read_ends_the_journal_too(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        with pytest.raises(JournalFailed), journal._db.reading() as conn:
            conn.execute("SELECT * FROM no_such_table")
        with pytest.raises(JournalFailed):
            journal.packs()


@pytest.mark.parametrize("crash_at", range(1, 26))
def test_following_up_a_failed_journal_can_stop_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    with journal_in(tmp_path) as journal:
        journal.add_open_pack(file_of(1))
        with pytest.raises(JournalFailed):
            break_disk(journal)
    left = [crash_at]

    def stopping(name: str) -> object:
        original = getattr(SYS, name)

        def call(*args: object, **kwargs: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(5, "Input/output error")
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("open", "writev", "fsync", "link", "link_fd", "unlink", "close"):
            patch.setattr(SYS, name, stopping(name))
        with suppress(DiskFailed, OSError), journal_in(tmp_path) as journal:
            assert len(journal.packs()) == 1
    with journal_in(tmp_path) as journal:
        assert journal.name == "journal-2.sqlite"
        assert [record.name for record in journal.packs()] == [file_of(1).name]
    assert names_in(tmp_path) == ["journal-2.sqlite"]


# --- a full disk -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_wal", [True, False])
def test_a_full_disk_undoes_one_transaction_and_ends_nothing(tmp_path: Path, is_wal: bool) -> None:
    # case B83
    with journal_in(tmp_path, is_wal=is_wal) as journal:
        journal.add_open_pack(file_of(1))
        journal.set_fact("before", "it")
        fill(journal)
        for _ in range(2):
            with pytest.raises(DiskFailed, match="full") as caught:
                overflow(journal)
            assert not isinstance(caught.value, JournalFailed)
            assert caught.value.is_full
        assert journal.get_fact("big") is None
        assert "journal-1.failed" not in names_in(tmp_path)
        connection_of(journal).execute("PRAGMA max_page_count=1000000")
        overflow(journal)
        journal.add_open_pack(file_of(2))
    with journal_in(tmp_path, is_wal=is_wal) as journal:
        assert journal.name == "journal-1.sqlite"
        assert [record.name for record in journal.packs()] == [file_of(1).name, file_of(2).name]
        assert (journal.get_fact("before"), len(journal.get_fact("big") or "")) == ("it", 200_000)


def test_what_a_full_disk_undid_does_not_come_back_after_a_kill(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with Folder.open(tmp_path) as folder, folder.ensure_child("quarantine") as quarantine:
            journal = Journal(folder, quarantine, writer=WRITER)
            journal.add_open_pack(file_of(1))
            fill(journal)
            with suppress(DiskFailed):
                overflow(journal)
            journal.set_fact("after", "it")
            with suppress(DiskFailed):
                overflow(journal)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (tmp_path / "journal-1.sqlite-wal").stat().st_size > 0
    with journal_in(tmp_path) as journal:
        assert [record.name for record in journal.packs()] == [file_of(1).name]
        assert (journal.get_fact("after"), journal.get_fact("big")) == ("it", None)


def test_a_checkpoint_without_room_costs_no_commit_and_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    wal = tmp_path / "journal-1.sqlite-wal"
    monkeypatch.setattr(journal_db, "_CHECKPOINT_BYTES", 20_000)
    with Folder.open(tmp_path) as folder, folder.ensure_child("quarantine") as quarantine:
        journal = Journal(folder, quarantine, writer=WRITER)
        with monkeypatch.context() as patch:
            patch.setattr(journal_db.JournalDatabase, "_checkpoint", full)
            journal.set_fact("a", "x" * 30_000)
            journal.close()
        assert wal.stat().st_size > 30_000, "a close checkpointed once more, and nobody read what came of it"
    with journal_in(tmp_path) as journal:
        assert wal.stat().st_size == 0
        assert len(journal.get_fact("a") or "") == 30_000


# --- versions and damage ---------------------------------------------------------------------------------------------


def patch_header(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(statement)


def test_a_newer_major_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.add_open_pack(file_of(1))
    patch_header(tmp_path / "journal-1.sqlite", f"PRAGMA user_version={USER_VERSION + 100}")
    before = (tmp_path / "journal-1.sqlite").read_bytes()
    with pytest.raises(FormatUnsupported, match=r"2\.01"), journal_in(tmp_path):
        pass
    assert (tmp_path / "journal-1.sqlite").read_bytes() == before
    (tmp_path / "journal-1.failed").write_bytes(b"")
    with pytest.raises(FormatUnsupported), journal_in(tmp_path):
        pass
    assert "journal-2.sqlite" not in names_in(tmp_path)
    assert (tmp_path / "journal-1.sqlite").read_bytes() == before


def test_a_newer_major_whose_wal_was_left_behind_is_not_folded_in(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.set_fact("a", "1")
    writer = sqlite3.connect(tmp_path / "journal-1.sqlite", isolation_level=None)
    writer.execute(f"PRAGMA user_version={USER_VERSION + 100}")
    before = {name: (tmp_path / name).read_bytes() for name in ("journal-1.sqlite", "journal-1.sqlite-wal")}
    with pytest.raises(FormatUnsupported), journal_in(tmp_path):
        pass
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    writer.close()


def test_a_newer_minor_is_read(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.add_open_pack(file_of(1))
    patch_header(tmp_path / "journal-1.sqlite", f"PRAGMA user_version={USER_VERSION + 1}")
    patch_header(tmp_path / "journal-1.sqlite", "ALTER TABLE packs ADD COLUMN later TEXT")
    with journal_in(tmp_path) as journal:
        assert len(journal.packs()) == 1
        journal.add_open_pack(file_of(2))


OLD_COLUMNS = "ALTER TABLE packs DROP COLUMN part_bytes"


@pytest.mark.parametrize("is_failed", [False, True])
def test_an_older_minor_is_opened_with_all_it_holds(tmp_path: Path, is_failed: bool) -> None:
    with journal_in(tmp_path) as journal:
        kept = journal.add_open_pack(file_of(1))
        journal.set_fact("a", "1")
    patch_header(tmp_path / "journal-1.sqlite", OLD_COLUMNS)
    patch_header(tmp_path / "journal-1.sqlite", "PRAGMA user_version=100")
    if is_failed:
        (tmp_path / "journal-1.failed").write_bytes(b"")
    name = "journal-2.sqlite" if is_failed else "journal-1.sqlite"
    for _ in range(2):
        with journal_in(tmp_path) as journal:
            assert journal.packs() == [kept]
            assert journal.get_fact("a") == "1"
            assert journal.name == name
    with closing(sqlite3.connect(tmp_path / name)) as conn:
        assert conn.execute("PRAGMA user_version").fetchone() == (USER_VERSION,)
        assert "part_bytes" in {row[1] for row in conn.execute("PRAGMA table_info(packs)")}


def test_what_an_older_minor_lacks_is_added_whole_or_not_at_all(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        kept = journal.add_open_pack(file_of(1))
    path = tmp_path / "journal-1.sqlite"
    patch_header(path, OLD_COLUMNS)
    patch_header(path, "PRAGMA user_version=100")
    before = path.read_bytes()
    with closing(sqlite3.connect(path, isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")  # as a full disk or a crash would: the change cannot be made
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("durastore.spool.journal_db._BUSY_MS", 1)
            patch.setattr("durastore.spool.journal_db._CHECKPOINT_BUSY_MS", 1)
            with pytest.raises(JournalFailed), journal_in(tmp_path):
                pass
        held.execute("ROLLBACK")
    assert path.read_bytes() == before
    with journal_in(tmp_path) as journal:
        assert journal.packs() == [kept]


def test_another_database_is_not_taken_for_a_journal(tmp_path: Path) -> None:
    patch_header(tmp_path / "journal-1.sqlite", "CREATE TABLE other (x)")
    before = (tmp_path / "journal-1.sqlite").read_bytes()
    with pytest.raises(FormatUnsupported, match="not a durastore journal"), journal_in(tmp_path):
        pass
    assert (tmp_path / "journal-1.sqlite").read_bytes() == before


@pytest.mark.parametrize("damage", ["header", "page", "cut"])
def test_a_damaged_journal_is_kept_and_followed_by_one_that_knows_it_was_lost(tmp_path: Path, damage: str) -> None:
    # case B121
    with journal_in(tmp_path) as journal:
        for seq in range(1, 200):
            journal.add_open_pack(file_of(seq))
    path = tmp_path / "journal-1.sqlite"
    data = bytearray(path.read_bytes())
    if damage == "header":
        data[:100] = b"\xff" * 100
    elif damage == "page":
        data[4_096 * 4 :] = b"\xff" * (len(data) - 4_096 * 4)
    else:
        data = data[: 4_096 * 3]
    path.write_bytes(data)
    with journal_in(tmp_path, has_packs=True) as journal:
        assert (journal.name, journal.replaced) == ("journal-2.sqlite", "journal-1.sqlite")
        assert journal.packs() == []
        assert journal.get_fact(FACT_REBUILD) == "pending"
    assert (tmp_path / "quarantine" / "journal-1.sqlite").read_bytes() == data


def test_a_lost_journal_is_told_from_a_first_one(tmp_path: Path) -> None:
    with journal_in(tmp_path, has_packs=True) as journal:
        assert journal.get_fact(FACT_REBUILD) == "pending"
    with journal_in(tmp_path, has_packs=True) as journal:
        assert journal.get_fact(FACT_REBUILD) == "pending", "a crash before the rebuild must not end it"
    (tmp_path / "other").mkdir()
    with journal_in(tmp_path / "other") as journal:
        assert journal.get_fact(FACT_REBUILD) is None


# --- processes and threads -------------------------------------------------------------------------------------------


def in_child(action: object) -> int:
    """Run in a forked child; its exit code, or minus the signal that ended it."""
    assert callable(action)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(int(action() or 0))
        except BaseException:  # noqa: BLE001 - the child must not come back into the test run
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_commits_survive_a_kill_and_a_lost_shared_memory_file(tmp_path: Path) -> None:
    def work() -> None:
        with Folder.open(tmp_path) as folder, folder.ensure_child("quarantine") as quarantine:
            journal = Journal(folder, quarantine, writer=WRITER)
            for seq in range(1, 6):
                journal.add_open_pack(file_of(seq))
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == -signal.SIGKILL
    assert (tmp_path / "journal-1.sqlite-wal").stat().st_size > 0
    (tmp_path / "journal-1.sqlite-shm").unlink()  # as after a power cut
    with journal_in(tmp_path) as journal:
        assert len(journal.packs(PackState.OPEN)) == 5


def test_a_forked_child_cannot_use_the_journal_nor_harm_it(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.add_open_pack(file_of(1))

        def child() -> int:
            for call in (journal.packs, lambda: journal.set_fact("a", "b")):
                try:
                    call()
                except ForkedStore:
                    continue
                return 1
            journal.close()
            return 0

        assert in_child(child) == 0
        journal.add_open_pack(file_of(2))
        assert len(journal.packs()) == 2


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.close()
        with pytest.raises(StoreClosed):
            journal.packs()


def test_many_threads_share_one_connection(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:

        def work(first: int) -> None:
            for seq in range(first, first + 10):
                journal.add_open_pack(file_of(seq))
                journal.packs(PackState.OPEN)

        threads = [threading.Thread(target=work, args=(100 * n + 1,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(journal.packs()) == 40
        assert len({record.pack_id for record in journal.packs()}) == 40
