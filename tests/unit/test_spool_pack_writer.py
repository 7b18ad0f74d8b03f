"""The pack writer: what `append` returned for is on disk and in the journal, whatever the disk does to the rest."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import sqlite3
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

import durastore
from durastore.clock import ManualClock
from durastore.codec.encode import EncodedSample
from durastore.errors import DiskFailed, DurastoreError, JournalFailed, SpoolUnreadable, StoreClosed
from durastore.formats.pack import RUN_MEMBER, member_name
from durastore.fsio.sys import SYS
from durastore.model import Digest, PackKind, PackState, Run, SampleEntry
from durastore.objectstore.crc import crc64nvme_b64
from durastore.spool.journal_db import JournalDatabase
from durastore.spool.pack_writer import PackLimits, PackWriter
from durastore.spool.spool import Spool
from tests.unit.spool_lab import (
    LIMITS,
    RUN,
    advance,
    assert_obtainable,
    assert_settled,
    content,
    no_file_beyond,
    sample,
    spool_at,
    writer_of,
)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with spool_at(tmp_path / "root") as opened:
        opened.recover()
        yield opened


def read_pack(spool: Spool, name: str) -> bytes:
    return spool.packs_folder.read_bytes(name, limit_bytes=1 << 24)


def reopened(spool: Spool) -> None:
    """Close this spool, recover it anew and hold it against the oracles."""
    path = spool.root.path
    spool.close()
    with spool_at(path) as again:
        again.recover()
        assert_settled(again)


# --- what is written -------------------------------------------------------------------------------------------------


def test_a_group_is_in_the_open_tar_at_the_places_returned(spool: Spool) -> None:
    writer = writer_of(spool)
    samples = [sample(f"folder/s.{n}", size=1_000 + n) for n in range(4)]
    placed = writer.append(samples[:3]) + writer.append(samples[3:])
    assert len({pack_id for pack_id, _ in placed}) == 1
    record = spool.journal.pack(placed[0][0])
    data = read_pack(spool, record.name)
    assert (record.state, record.size_bytes, record.sample_count) == (PackState.OPEN, len(data), 4)
    assert spool.journal.entries(record.pack_id) == [entry for _, entry in placed]
    for encoded, (_, entry) in zip(samples, placed, strict=True):
        assert entry.sample_id == encoded.sample_id
        assert data[entry.offset : entry.offset + entry.length] == content(encoded)
    writer.close()


def test_a_sealed_tar_is_a_tar_with_the_run_in_front(spool: Spool) -> None:
    writer = writer_of(spool)
    samples = [sample(f"folder/s.{n}") for n in range(3)]
    writer.append(samples)
    record = writer.seal_open()
    assert record is not None
    data = read_pack(spool, record.name)
    assert (record.state, record.size_bytes) == (PackState.SEALED, len(data))
    assert record.digest == Digest.of(data)
    assert record.crc64nvme == crc64nvme_b64(data)
    assert record.identity == spool.packs_folder.identity(record.name)
    assert record.key is not None
    assert record.key.text == f"lab/data/packs/{spool.writer}/{record.seq:012d}-{record.digest.short}.tar"
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == [RUN_MEMBER, *(member_name(s.sample_id) for s in samples)]
        run = tar.extractfile(RUN_MEMBER)
        assert run is not None
        assert run.read().decode() == RUN.text
        for encoded in samples:
            member = tar.extractfile(member_name(encoded.sample_id))
            assert member is not None
            assert np.array_equal(load(member.read())["x"], load(content(encoded))["x"])
    assert writer.seal_open() is None
    writer.close()
    reopened(spool)


def test_tars_are_sealed_at_their_target_and_large_samples_stand_alone(spool: Spool) -> None:
    writer = writer_of(spool)
    samples = [sample(f"s{n}", size=50_000 if n % 7 == 3 else 9_000) for n in range(20)]
    placed = writer.append(samples)
    assert [entry.sample_id for _, entry in placed] == [s.sample_id for s in samples]
    packs = {record.pack_id: record for record in spool.journal.packs()}
    for encoded, (pack_id, entry) in zip(samples, placed, strict=True):
        is_single = encoded.length >= LIMITS.single_bytes
        assert (packs[pack_id].kind is PackKind.SAFETENSORS) == is_single
        if is_single:
            assert (entry.offset, packs[pack_id].sample_count) == (0, 1)
            assert packs[pack_id].digest == Digest.of(content(encoded))
            assert read_pack(spool, packs[pack_id].name) == content(encoded)
    tars = [record for record in packs.values() if record.kind is PackKind.TAR]
    assert len(tars) >= 3
    assert all((r.size_bytes or 0) < LIMITS.target_bytes + 20_000 for r in tars)
    assert [r.state for r in packs.values()].count(PackState.OPEN) <= 1
    assert_obtainable(spool, samples)
    writer.close()
    reopened(spool)


def test_the_same_samples_give_packs_of_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        with spool_at(tmp_path / name) as spool:
            spool.recover()
            writer = writer_of(spool)
            writer.append([sample("a"), sample("b")])
            record = writer.seal_open()
            writer.close()
            assert record is not None
            digests.append(record.digest)
    assert digests[0] == digests[1]


def test_a_sample_of_another_run_is_refused(spool: Spool) -> None:
    other = PackWriter(spool, Run.of({"other": 1}), limits=LIMITS, clock=ManualClock())
    with pytest.raises(DurastoreError, match="another run"):
        other.append([sample("a")])
    assert spool.journal.packs() == []


def test_the_age_of_the_open_tar_is_told(spool: Spool) -> None:
    clock = ManualClock()
    writer = PackWriter(spool, RUN, limits=LIMITS, clock=clock)
    assert writer.open_age_s() is None
    ((_, entry),) = writer.append([sample("a")])
    assert entry.time_ns == clock.now_ns()
    clock.advance(5)
    writer.append([sample("b")])
    assert writer.open_age_s() == 5
    writer.seal_open()
    assert writer.open_age_s() is None
    writer.close()


def test_a_closed_writer_takes_nothing(spool: Spool) -> None:
    writer = writer_of(spool)
    writer.append([sample("a")])
    writer.close()
    writer.close()
    for attempt in (lambda: writer.append([sample("b")]), writer.seal_open):
        with pytest.raises(StoreClosed):
            attempt()
    reopened(spool)


def test_threads_may_append_together(spool: Spool) -> None:
    writer = writer_of(spool)
    samples = [[sample(f"t{t}-{n}") for n in range(6)] for t in range(4)]
    errors: list[BaseException] = []

    def work(mine: Sequence[EncodedSample]) -> None:
        try:
            for encoded in mine:
                writer.append([encoded])
        except DurastoreError as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in samples]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert_obtainable(spool, [encoded for mine in samples for encoded in mine])
    writer.close()
    reopened(spool)


# --- in which order --------------------------------------------------------------------------------------------------


def test_bytes_are_durable_before_rows_and_rows_before_the_return(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B112, INV-2
    trace: list[str] = []

    def traced(name: str) -> Callable[..., object]:
        original = getattr(SYS, name)

        def call(*args: object, **kwargs: object) -> object:
            trace.append(name)
            return original(*args, **kwargs)

        return call

    writer = writer_of(spool)
    spool.journal._db._connection.set_trace_callback(lambda sql: trace.append(sql.split()[0]))
    for name in ("open", "writev", "fsync", "fdatasync", "link_fd", "link", "unlink"):
        monkeypatch.setattr(SYS, name, traced(name))
    writer.append([sample("a")])
    steps = [step for step in trace if step not in ("SELECT", "UPDATE", "INSERT")]
    # created and synced under its name, told to the journal, then the group
    created = ["open", "fsync", "fsync", "BEGIN", "COMMIT"]
    assert steps == [*created, "writev", "fdatasync", "BEGIN", "COMMIT"]
    trace.clear()
    writer.append([sample("big", size=50_000)])
    steps = [step for step in trace if step not in ("SELECT", "UPDATE", "INSERT")]
    # whole blocks past the cache, and the last part of one
    assert steps == ["open", "writev", "writev", "fsync", "link_fd", "fsync", "BEGIN", "COMMIT"]
    trace.clear()
    writer.seal_open()
    steps = [step for step in trace if step not in ("SELECT", "UPDATE", "INSERT")]
    assert steps == ["writev", "fdatasync", "BEGIN", "COMMIT"]


# --- when the disk fails ---------------------------------------------------------------------------------------------


class Failing:
    """Makes the n-th of some system calls fail, and writes down on which files a sync was tried after one failed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after_failure: list[int] = []
        self._failed: set[int] = set()
        self._monkeypatch = monkeypatch
        self._left: dict[str, int] = {}
        for name in ("writev", "fsync", "fdatasync", "close", "open", "link_fd"):
            monkeypatch.setattr(SYS, name, self._wrapped(name))

    def at(self, name: str, n: int, *, code: int = errno.EIO, before: Callable[..., object] | None = None) -> None:
        self._left[name] = n
        self._code, self._before = code, before

    def _wrapped(self, name: str) -> Callable[..., object]:
        original = getattr(SYS, name)

        def call(*args: object, **kwargs: object) -> object:
            inode = os.fstat(args[0]).st_ino if isinstance(args[0], int) else 0
            if name in ("writev", "fsync", "fdatasync") and inode in self._failed:
                self.after_failure.append(inode)
            self._left[name] = self._left.get(name, 0) - 1
            if self._left[name] == 0:
                self._failed.add(inode)
                if self._before is not None:
                    self._before(original, *args)
                if name == "close":
                    original(*args)
                raise OSError(self._code, os.strerror(self._code))
            return original(*args, **kwargs)

        return call


def half_write(original: Callable[..., object], fd: int, buffers: Sequence[bytes]) -> None:
    data = b"".join(bytes(part) for part in buffers)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)  # half of it is no whole number of blocks
    original(fd, [data[: len(data) // 2]])
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["writev", "fdatasync"])
def test_a_failed_group_is_refused_and_what_was_acknowledged_before_is_saved(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    # cases B108, B83
    failing = Failing(monkeypatch)
    writer = writer_of(spool)
    before = [sample(f"before-{n}") for n in range(3)]
    pack_id = writer.append(before)[0][0]
    old_name = spool.journal.pack(pack_id).name
    failing.at(call, 1, code=code, before=half_write if call == "writev" else None)
    with pytest.raises(DiskFailed) as caught:
        writer.append([sample("failed-1"), sample("failed-2")])
    assert caught.value.facts["errno"] == code
    saved = spool.journal.pack(pack_id)
    assert (saved.state, saved.sample_count) == (PackState.SEALED, 3)
    assert saved.name != old_name
    assert spool.quarantine_folder.names() == [old_name]
    assert spool.journal.find_sample(sample("failed-1").sample_id) == []
    assert_obtainable(spool, before)
    after = [sample("after")]
    writer.append(after)
    assert_obtainable(spool, before + after)
    assert failing.after_failure == [], "a file was written or synced again after it had failed"
    writer.close()
    reopened(spool)


def test_an_error_at_close_counts(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B111
    writer = writer_of(spool)
    pack_id = writer.append([sample("a")])[0][0]
    failing = Failing(monkeypatch)
    failing.at("close", 1, code=errno.EDQUOT)
    with pytest.raises(DiskFailed):
        writer.seal_open()
    assert spool.journal.pack(pack_id).state is PackState.SEALED
    assert len(spool.quarantine_folder.names()) == 1
    assert_obtainable(spool, [sample("a")])
    writer.close()
    reopened(spool)


def test_short_writes_are_finished(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    original = SYS.writev
    monkeypatch.setattr(SYS, "writev", lambda fd, buffers: original(fd, [memoryview(buffers[0])[:700]]))
    writer = writer_of(spool)
    samples = [sample("a"), sample("b"), sample("big", size=50_000)]
    writer.append(samples)
    assert_obtainable(spool, samples)
    writer.close()
    reopened(spool)


def test_a_full_disk_refuses_the_copy_too_until_there_is_room(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    writer = PackWriter(spool, RUN, limits=LIMITS, clock=clock)
    pack_id = writer.append([sample("a")])[0][0]

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SYS, "writev", full)
        with pytest.raises(DiskFailed):
            writer.append([sample("b")])
        assert spool.journal.pack(pack_id).state is PackState.OPEN
        with pytest.raises(DiskFailed):
            writer.seal_open()
        assert writer.open_age_s() is None, "no retry at every tick"
        clock.advance(10)
        assert writer.open_age_s() == float("inf")
    assert_obtainable(spool, [sample("a")])
    writer.append([sample("c")])
    record = writer.seal_open()
    assert record is not None
    assert spool.journal.pack(pack_id).state is PackState.SEALED
    assert_obtainable(spool, [sample("a"), sample("c")])
    writer.close()
    reopened(spool)


def test_an_interrupted_group_ends_its_file(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(spool)
    first = writer.append([sample("a")])[0][0]

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SYS, "fdatasync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.append([sample("b")])
    second = writer.append([sample("c")])[0][0]
    assert second != first
    writer.seal_open()
    assert spool.journal.pack(first).state is PackState.SEALED
    assert_obtainable(spool, [sample("a"), sample("c")])
    writer.close()
    reopened(spool)


def test_acknowledged_samples_that_cannot_be_read_back_are_named(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(spool)
    placed = writer.append([sample("good"), sample("bad")])
    entry: SampleEntry = placed[1][1]
    fd = os.open(spool.packs_folder.path / spool.journal.pack(placed[0][0]).name, os.O_WRONLY)
    os.pwrite(fd, b"\xff\xff", entry.offset + entry.length - 2)
    os.close(fd)
    Failing(monkeypatch).at("fdatasync", 1)
    with pytest.raises(DiskFailed):
        writer.append([sample("c")])
    assert writer.open_age_s() == float("inf")
    with pytest.raises(SpoolUnreadable, match="bad"):
        writer.seal_open()
    assert writer.seal_open() is None
    assert {r.state: r.sample_count for r in spool.journal.packs()} == {PackState.SEALED: 1, PackState.LOST: 1}
    assert_obtainable(spool, [sample("good")])
    writer.close()
    reopened(spool)


def test_a_journal_that_fails_at_commit_stops_the_writer_and_loses_nothing(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B68
    writer = writer_of(spool)
    before = [sample(f"s{n}") for n in range(3)]
    writer.append(before)
    group = [sample(f"{'long' * 60}-{n}", size=100) for n in range(300)]
    with pytest.raises(JournalFailed), no_file_beyond(200_000):  # the pack's part is smaller, the rows' is larger
        writer.append(group)
    size = sum(spool.packs_folder.identity(name).size_bytes for name in spool.packs_folder.names())
    with pytest.raises(StoreClosed):
        writer.append([sample("after")])
    with pytest.raises(StoreClosed):
        writer.seal_open()
    assert size == sum(spool.packs_folder.identity(name).size_bytes for name in spool.packs_folder.names())
    writer.close()
    path = spool.root.path
    spool.close()
    with spool_at(path) as again:
        report = again.recover()
        assert report.journal_replaced == "journal-1.sqlite"
        assert_obtainable(again, before)
        assert_settled(again)
        assert "journal-1.sqlite" in again.quarantine_folder.names()


def test_a_large_sample_whose_file_cannot_be_published_leaves_nothing(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(spool)
    failing = Failing(monkeypatch)
    for call in ("writev", "fsync", "link_fd"):
        failing.at(call, 1, code=errno.ENOSPC, before=half_write if call == "writev" else None)
        with pytest.raises(DiskFailed):
            writer.append([sample("big", size=50_000)])
        assert spool.packs_folder.names() == []
        assert spool.journal.packs() == []
    writer.append([sample("big", size=50_000)])
    assert_obtainable(spool, [sample("big", size=50_000)])


class FullAtSamples:
    """SQLite answers `FULL` at the commit of the next `left` transactions that carry samples."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        plain = JournalDatabase.writing

        @contextmanager
        def writing(database: JournalDatabase) -> Iterator[sqlite3.Connection]:
            with plain(database) as conn:
                (before,) = conn.execute("SELECT count(*) FROM samples").fetchone()
                yield conn
                (after,) = conn.execute("SELECT count(*) FROM samples").fetchone()
                if after > before and self.left:
                    self.left -= 1
                    error = sqlite3.OperationalError("database or disk is full")
                    error.sqlite_errorcode = sqlite3.SQLITE_FULL
                    raise error

        monkeypatch.setattr(JournalDatabase, "writing", writing)


@pytest.mark.parametrize("size", [4_096, 35_000])  # in a common tar, as a pack of its own
def test_a_commit_that_found_no_room_counts_no_bytes(spool: Spool, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    full = FullAtSamples(monkeypatch)
    writer = writer_of(spool)
    full.left = 3
    for _ in range(3):
        with pytest.raises(DiskFailed):
            writer.append([sample("a", size=size)])
    assert writer.seal_open() is None
    assert spool.journal.packs() == []
    assert spool.used_bytes() == 0
    ((pack_id, _),) = writer.append([sample("a", size=size)])
    writer.seal_open()
    assert spool.used_bytes() == spool.journal.pack(pack_id).size_bytes
    assert_obtainable(spool, [sample("a", size=size)])
    writer.close()


def test_a_large_sample_without_room_for_its_row_is_written_once(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullAtSamples(monkeypatch)
    writer = writer_of(spool)
    full.left = 3
    for _ in range(3):
        with pytest.raises(DiskFailed):
            writer.append([sample("a", size=35_000)])
    (name,) = spool.packs_folder.names()
    ((pack_id, _),) = writer.append([sample("a", size=35_000)])
    assert spool.packs_folder.names() == [name]
    assert spool.journal.pack(pack_id).name == name
    writer.close()
    assert spool.quarantine_folder.names() == []
    reopened(spool)


def test_a_file_that_changed_before_its_row_gets_none(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullAtSamples(monkeypatch)
    writer = writer_of(spool)
    full.left = 1
    with pytest.raises(DiskFailed):
        writer.append([sample("a", size=35_000)])
    (name,) = spool.packs_folder.names()
    with (spool.packs_folder.path / name).open("r+b") as file:
        file.write(b"x")
    ((pack_id, _),) = writer.append([sample("a", size=35_000)])
    assert spool.journal.pack(pack_id).name != name
    assert_obtainable(spool, [sample("a", size=35_000)])
    writer.close()


def test_large_files_without_a_row_are_set_aside(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the writer works all but a few of them, and the rest when it closes: quarantined bytes are told."""
    full = FullAtSamples(monkeypatch)
    writer = writer_of(spool)
    full.left = 6
    for n in range(6):
        with pytest.raises(DiskFailed):
            writer.append([sample(f"s{n}", size=35_000)])
    assert len(spool.packs_folder.names()) == 4
    assert len(spool.quarantine_folder.names()) == 2
    writer.close()
    assert spool.packs_folder.names() == []
    assert len(spool.quarantine_folder.names()) == 6
    assert spool.quarantined_bytes() > 6 * 35_000
    assert spool.journal.packs() == []
    reopened(spool)


def test_a_put_goes_on_after_commits_that_found_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullAtSamples(monkeypatch)
    (tmp_path / "bucket").mkdir()
    store = durastore.open(
        tmp_path / "bucket",
        local=tmp_path / "root",
        single_pack_bytes=1 << 20,
        high_watermark_bytes=6 << 20,
        low_watermark_bytes=3 << 20,
        reclaim="never",
        stall_s=20.0,
    )
    try:
        full.left = 3
        store.put("a", {"x": np.random.default_rng(1).integers(0, 256, 2 << 20, dtype=np.uint8)})
        assert full.left == 0
        assert store.status().local_bytes < 3 << 20
    finally:
        store.abandon()


def test_the_limits_have_the_documented_defaults() -> None:
    assert (PackLimits().target_bytes, PackLimits().single_bytes) == (64 << 20, 16 << 20)


def test_a_tar_that_was_sealed_before_its_sealing_was_interrupted_is_not_copied(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whole and on its way: another thread has sent it by the time that the writer looks again."""
    writer = writer_of(spool)
    pack_id = writer.append([sample("a")])[0][0]
    plain = spool.journal.seal

    def seal(*args: Any) -> Any:
        plain(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(spool.journal, "seal", seal)
        with pytest.raises(KeyboardInterrupt):
            writer.seal_open()
    sent = advance(spool, pack_id, to=PackState.UPLOADED)
    assert writer.seal_open() is None
    assert spool.journal.pack(pack_id) == sent
    assert spool.packs_folder.names() == [sent.name]
    assert_obtainable(spool, [sample("a")])
    writer.close()


def test_a_copy_without_room_keeps_neither_the_open_tar_nor_another_copy_waiting(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(spool)
    kept = []
    for names in (["big-1", "big-2", "big-3"], ["small"]):
        kept += [sample(name, size=8_000 if len(names) > 1 else 100) for name in names]
        writer.append(kept[-len(names) :])
        with monkeypatch.context() as patch:
            patch.setattr(spool, "free_bytes", lambda: 0)
            Failing(patch).at("writev", 1, code=errno.ENOSPC)
            with pytest.raises(DiskFailed):
                writer.append([sample("refused")])
    kept.append(sample("open"))
    ((pack_id, _),) = writer.append(kept[-1:])
    with monkeypatch.context() as patch:
        patch.setattr(spool, "free_bytes", lambda: 10_000)
        with pytest.raises(DiskFailed, match="no room to copy") as caught:
            writer.seal_open()
        assert caught.value.is_full
    assert spool.journal.pack(pack_id).state is PackState.SEALED
    assert [r.state for r in spool.journal.packs()].count(PackState.SEALED) == 2
    assert_obtainable(spool, kept)
    writer.seal_open()
    assert {r.state for r in spool.journal.packs()} == {PackState.SEALED}
    assert_obtainable(spool, kept)
    writer.close()
    reopened(spool)
