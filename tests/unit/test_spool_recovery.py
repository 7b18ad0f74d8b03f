"""Recovery: what a spool holds after any ending, decided from the files, the same when it is decided twice."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from durastore.errors import DiskFailed, DurastoreError, SpoolUnreadable
from durastore.fsio.sys import SYS
from durastore.model import Digest, PackState, SampleId, WriterId
from durastore.spool import pack_bytes, recovery
from durastore.spool.journal import Journal, PackRecord
from durastore.spool.journal_db import JournalDatabase
from durastore.spool.records import PackFile
from durastore.spool.recovery import RecoveryReport
from durastore.spool.spool import Spool
from tests.faults.full_points import refuse_to_set_aside
from tests.property.disk_image import DiskImage
from tests.unit.spool_lab import (
    advance,
    assert_obtainable,
    assert_settled,
    evidence_of,
    sample,
    spool_at,
    state_of,
    writer_of,
)

SAMPLES = [sample(f"s{n}") for n in range(4)]
BIG = sample("big", size=50_000)


@contextmanager
def left_behind(path: Path, *, is_sealed: bool = False) -> Iterator[Spool]:
    """A spool with one tar of four samples and one large pack, whose process has ended."""
    with spool_at(path) as spool:
        spool.recover()
        writer = writer_of(spool)
        writer.append(SAMPLES[:2])
        writer.append([*SAMPLES[2:], BIG])
        if is_sealed:
            writer.seal_open()
        writer.close()
    with spool_at(path) as spool:
        yield spool


def recover_twice(spool: Spool) -> RecoveryReport:
    """INV-9: the second run finds nothing to do."""
    report = spool.recover()
    before = state_of(spool)
    again = spool.recover()
    assert state_of(spool) == before
    again.journal_replaced = None
    assert list(again.lines()) == [line for line in report.lines() if "without a good file" in line]
    return report


def tar_of(spool: Spool) -> PackRecord:
    return next(record for record in spool.journal.packs() if record.name.endswith(".tar"))


def big_of(spool: Spool) -> PackRecord:
    return next(record for record in spool.journal.packs() if record.name.endswith(".safetensors"))


def rewrite(spool: Spool, name: str, change: Callable[[bytearray], bytes | bytearray]) -> None:
    """Damage a file behind the library's back, in place."""
    path = spool.packs_folder.path / name
    path.write_bytes(change(bytearray(path.read_bytes())))


def flipped(at: int) -> Callable[[bytearray], bytearray]:
    def change(data: bytearray) -> bytearray:
        data[at] ^= 0xFF
        return data

    return change


# --- OPEN packs ------------------------------------------------------------------------------------------------------


def test_an_open_pack_of_the_acknowledged_length_is_sealed_as_it_is(tmp_path: Path) -> None:
    with left_behind(tmp_path) as spool:
        opened = tar_of(spool)
        inode = spool.packs_folder.identity(opened.name).inode
        report = recover_twice(spool)
        assert report.sealed == [opened.name]
        now = spool.journal.pack(opened.pack_id)
        assert (now.state, now.name, now.size_bytes) == (PackState.SEALED, opened.name, opened.size_bytes)
        assert spool.packs_folder.identity(now.name).inode == inode
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)


@pytest.mark.parametrize("tail", [b"x", b"torn" * 1_000, bytes(1_024)])
def test_a_torn_tail_is_left_behind_and_the_samples_are_copied(tmp_path: Path, tail: bytes) -> None:
    with left_behind(tmp_path) as spool:
        opened = tar_of(spool)
        rewrite(spool, opened.name, lambda data: data + tail)
        old = (spool.packs_folder.path / opened.name).read_bytes()
        report = recover_twice(spool)
        assert report.salvaged == [opened.name]
        assert report.lost == []
        now = spool.journal.pack(opened.pack_id)
        assert (now.state, now.sample_count, now.writer) == (PackState.SEALED, 4, spool.writer)
        assert (spool.quarantine_folder.path / opened.name).read_bytes() == old, "the torn file was touched"
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)


def test_only_the_samples_that_are_damaged_are_lost(tmp_path: Path) -> None:
    # cases B88, B106: a truncated or zeroed sample is never taken for a whole one
    with left_behind(tmp_path) as spool:
        opened = tar_of(spool)
        entries = spool.journal.entries(opened.pack_id)
        rewrite(spool, opened.name, flipped(entries[1].offset + entries[1].length - 1))
        rewrite(spool, opened.name, lambda data: data[: entries[3].offset + 10])
        report = recover_twice(spool)
        assert sorted(lost.sample_id.text for lost in report.lost) == ["s1", "s3"]
        assert_obtainable(spool, [SAMPLES[0], SAMPLES[2], BIG])
        assert_settled(spool)
        (lost,) = spool.journal.packs(PackState.LOST)
        assert (lost.name, lost.sample_count) == (opened.name, 2)
        assert spool.quarantine_folder.has(opened.name)


def test_a_damaged_sample_in_a_file_of_the_right_length_is_found(tmp_path: Path) -> None:
    # case B88: the length alone says nothing
    with left_behind(tmp_path) as spool:
        opened = tar_of(spool)
        entry = spool.journal.entries(opened.pack_id)[2]
        rewrite(spool, opened.name, flipped(entry.offset + entry.length - 1))
        report = recover_twice(spool)
        assert [lost.sample_id.text for lost in report.lost] == ["s2"]
        assert_obtainable(spool, [SAMPLES[0], SAMPLES[1], SAMPLES[3], BIG])
        assert_settled(spool)


def test_damage_between_the_samples_is_repaired_by_copying(tmp_path: Path) -> None:
    with left_behind(tmp_path) as spool:
        opened = tar_of(spool)
        second = spool.journal.entries(opened.pack_id)[1]
        rewrite(spool, opened.name, flipped(second.offset - 500))
        assert recover_twice(spool).salvaged == [opened.name]
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)


def test_a_zeroed_file_loses_all_and_is_kept(tmp_path: Path) -> None:
    with left_behind(tmp_path) as spool:
        opened = tar_of(spool)
        rewrite(spool, opened.name, lambda data: bytes(len(data)))
        report = recover_twice(spool)
        assert len(report.lost) == 4
        assert spool.journal.pack(opened.pack_id).state is PackState.LOST
        assert spool.quarantine_folder.has(opened.name)
        assert_obtainable(spool, [BIG])


def test_an_open_pack_whose_file_is_gone_is_lost(tmp_path: Path) -> None:
    with left_behind(tmp_path) as spool:
        opened = tar_of(spool)
        (spool.packs_folder.path / opened.name).rename(tmp_path / "hidden")
        assert len(recover_twice(spool).lost) == 4
        assert spool.journal.pack(opened.pack_id).state is PackState.LOST


def test_an_open_pack_without_samples_is_forgotten(tmp_path: Path) -> None:
    with left_behind(tmp_path) as spool:
        file = PackFile(writer=WriterId("0" * 16), seq=1, kind=tar_of(spool).kind)
        (spool.packs_folder.path / file.name).write_bytes(b"half a group")
        spool.journal.add_open_pack(file)
        report = recover_twice(spool)
        assert report.set_aside == [file.name]
        assert len(spool.journal.packs()) == 2
        assert_settled(spool)


# --- sealed packs ----------------------------------------------------------------------------------------------------


def test_a_touched_file_is_hashed_again_and_keeps_its_state(tmp_path: Path) -> None:
    # case B91: mtime never decides
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = advance(spool, tar_of(spool).pack_id, to=PackState.VERIFIED)
        os.utime(spool.packs_folder.path / record.name, ns=(1, 1 << 60))
        report = recover_twice(spool)
        assert report.rehashed == [record.name]
        identity = spool.packs_folder.identity(record.name)
        assert spool.journal.pack(record.pack_id) == replace(record, identity=identity)


def test_a_changed_byte_behind_the_same_size_and_time_is_found_by_hashing(tmp_path: Path) -> None:
    # case B73: the change time cannot be set back, so the file is hashed again
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = tar_of(spool)
        entry = spool.journal.entries(record.pack_id)[2]
        path = spool.packs_folder.path / record.name
        stat = path.stat()
        rewrite(spool, record.name, flipped(entry.offset + entry.length - 1))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        report = recover_twice(spool)
        assert [lost.sample_id.text for lost in report.lost] == ["s2"]
        assert_obtainable(spool, [SAMPLES[0], SAMPLES[1], SAMPLES[3], BIG])
        assert_settled(spool)


def test_a_sealed_pack_that_was_never_uploaded_is_lost_with_its_file(tmp_path: Path) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = big_of(spool)
        path = spool.packs_folder.path / record.name
        path.rename(tmp_path / "hidden")
        report = recover_twice(spool)
        assert [lost.sample_id.text for lost in report.lost] == ["big"]
        # found again: nothing was concluded from its absence that cannot be taken back
        (tmp_path / "hidden").rename(path)
        assert recover_twice(spool).restored == [record.name]
        back = spool.journal.pack(record.pack_id)
        assert back.state is PackState.SEALED
        assert back.key != record.key  # its rows may have been taken out, and that is for ever
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)


def test_a_lost_pack_comes_back_only_with_its_own_bytes(tmp_path: Path) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = big_of(spool)
        path = spool.packs_folder.path / record.name
        path.rename(tmp_path / "hidden")
        spool.recover()
        path.write_bytes(b"something else")
        report = recover_twice(spool)
        assert (report.set_aside, report.restored, report.lost) == ([record.name], [], [])
        assert spool.journal.pack(record.pack_id).state is PackState.LOST


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_pack_whose_upload_had_begun_is_a_question_to_the_bucket(tmp_path: Path, is_damaged: bool) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = big_of(spool)
        spool.journal.write_id(record.pack_id)
        if is_damaged:
            rewrite(spool, record.name, flipped((record.size_bytes or 0) - 1))
        else:
            (spool.packs_folder.path / record.name).rename(tmp_path / "hidden")
        report = recover_twice(spool)
        assert [(r.pack_id, r.state) for r in report.missing_files] == [(record.pack_id, PackState.UNKNOWN)]
        assert report.lost == []


@pytest.mark.parametrize("state", [PackState.UPLOADED, PackState.VERIFIED, PackState.MANIFESTED])
@pytest.mark.parametrize("is_damaged", [True, False])
def test_an_uploaded_pack_without_a_good_file_is_left_to_the_bucket(
    tmp_path: Path, state: PackState, is_damaged: bool
) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = advance(spool, tar_of(spool).pack_id, to=state)
        last = spool.journal.entries(record.pack_id)[3]
        if is_damaged:
            rewrite(spool, record.name, flipped(last.offset + last.length - 1))
        else:
            (spool.packs_folder.path / record.name).rename(tmp_path / "hidden")
        report = recover_twice(spool)
        assert report.missing_files == [record]
        assert spool.quarantine_folder.has(record.name) == is_damaged
        # the bucket does not have it either: what the damaged file still holds is saved
        outcome = spool.record_lost(record.pack_id, reason="404")
        assert outcome.saved == (3 if is_damaged else 0)
        assert len(outcome.lost) == (1 if is_damaged else 4)
        assert_obtainable(spool, [*(SAMPLES[:3] if is_damaged else []), BIG])
        spool.recover()
        assert_settled(spool)


def test_what_the_bucket_still_has_goes_on_without_its_file(tmp_path: Path) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = advance(spool, tar_of(spool).pack_id, to=PackState.MANIFESTED)
        (spool.packs_folder.path / record.name).rename(tmp_path / "hidden")
        (missing,) = recover_twice(spool).missing_files
        spool.journal.record_found_remote(missing.pack_id, evidence_of(record))
        spool.recover()
        assert [r.name for r in spool.journal.packs()] == [big_of(spool).name]


# --- interrupted reclaim ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_gone", [True, False])
def test_an_announced_reclaim_is_never_carried_out_by_recovery(tmp_path: Path, is_gone: bool) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = advance(spool, tar_of(spool).pack_id, to=PackState.MANIFESTED)
        spool.journal.record_intent(record.pack_id, "receipt")
        path = spool.packs_folder.path / record.name
        if is_gone:
            path.rename(tmp_path / "hidden")
        report = recover_twice(spool)
        now = spool.journal.pack(record.pack_id)
        if is_gone:
            assert [r.pack_id for r in report.missing_files] == [record.pack_id]
            assert (now.state, now.intent) == (PackState.MANIFESTED, "receipt")
        else:
            assert report.interrupted == [record.name]
            assert (now.state, now.intent, now.evidence) == (PackState.UPLOADED, None, None)
            assert_obtainable(spool, SAMPLES)


def test_reclaimed_packs_leave_the_journal_at_the_next_open(tmp_path: Path) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = advance(spool, tar_of(spool).pack_id, to=PackState.MANIFESTED)
        spool.journal.record_intent(record.pack_id, "receipt")
        (spool.packs_folder.path / record.name).rename(tmp_path / "reclaimed")
        spool.journal.record_reclaimed(record.pack_id)
        recover_twice(spool)
        with pytest.raises(DurastoreError, match="no pack"):
            spool.journal.pack(record.pack_id)


# --- files nobody knows ----------------------------------------------------------------------------------------------


def test_unknown_files_are_set_aside_and_odd_names_left_alone(tmp_path: Path) -> None:
    # cases B03, B144
    with left_behind(tmp_path) as spool:
        packs = spool.packs_folder.path
        unacknowledged = f"{spool.writer}-000000000009.safetensors"
        (packs / unacknowledged).write_bytes(b"published, never journaled")
        (packs / ".tmp-0123").write_bytes(b"temp")
        (packs / "folder").mkdir()
        (packs / "link").symlink_to("/etc/passwd")
        (spool.quarantine_folder.path / ".tmp-0123").write_bytes(b"an earlier one")
        report = spool.recover()
        assert report.set_aside == [".tmp-0123.1", unacknowledged]
        assert report.left_alone == ["folder", "link"]
        assert (spool.quarantine_folder.path / ".tmp-0123").read_bytes() == b"an earlier one"
        assert (spool.quarantine_folder.path / ".tmp-0123.1").read_bytes() == b"temp"
        assert os.readlink(packs / "link") == "/etc/passwd"
        assert spool.quarantined_bytes() == sum(
            len(b) for b in (b"published, never journaled", b"temp", b"an earlier one")
        )


def test_a_quarantined_pack_is_out_of_the_way_and_whole(tmp_path: Path) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = tar_of(spool)
        data = (spool.packs_folder.path / record.name).read_bytes()
        for _ in range(2):
            spool.quarantine(record.pack_id, reason="doubt")
        assert (spool.quarantine_folder.path / record.name).read_bytes() == data
        assert spool.journal.pack(record.pack_id).state is PackState.QUARANTINED
        assert not spool.is_intact(record)
        assert recover_twice(spool).set_aside == []


# --- a disk that does not answer -------------------------------------------------------------------------------------


def test_not_being_able_to_read_is_not_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B16
    with left_behind(tmp_path) as spool:
        rewrite(spool, tar_of(spool).name, lambda data: data + b"torn")
        before = state_of(spool)

        def refuse(*_: object) -> bytes:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", refuse)
            with pytest.raises(SpoolUnreadable):
                spool.recover()
        assert state_of(spool) == before
        recover_twice(spool)
        assert_obtainable(spool, [*SAMPLES, BIG])


def test_a_file_that_changes_while_it_is_read_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B124
    with left_behind(tmp_path) as spool:
        opened = tar_of(spool)
        original = pack_bytes.hash_file

        def growing(fd: int) -> pack_bytes.PackHasher:
            hasher = original(fd)
            with (spool.packs_folder.path / opened.name).open("ab") as file:
                file.write(b"more")
            return hasher

        with monkeypatch.context() as patch:
            patch.setattr(recovery, "hash_file", growing)
            with pytest.raises(SpoolUnreadable, match="changes"):
                spool.recover()
        assert spool.journal.pack(opened.pack_id).state is PackState.OPEN
        recover_twice(spool)
        assert_obtainable(spool, [*SAMPLES, BIG])


@pytest.mark.parametrize("fail_at", range(1, 14))
def test_a_salvage_can_fail_anywhere_and_is_done_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    with left_behind(tmp_path) as spool:
        opened = tar_of(spool)
        rewrite(spool, opened.name, lambda data: data + b"torn")
        left = [fail_at]

        def failing(name: str) -> Callable[..., object]:
            original = getattr(SYS, name)

            def call(*args: object, **kwargs: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    raise OSError(28, "No space left on device")
                return original(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("open", "writev", "fsync", "link_fd", "link", "unlink"):
                patch.setattr(SYS, name, failing(name))
            try:
                spool.recover()
            except DurastoreError:
                assert left[0] <= 0
            else:
                assert left[0] > 0, "a failure was swallowed"
        assert_obtainable(spool, [*SAMPLES, BIG])
        recover_twice(spool)
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)
        assert spool.quarantine_folder.has(opened.name)


def test_a_loss_is_told_although_the_recovery_ends_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with left_behind(tmp_path) as spool:
        opened = tar_of(spool)
        entry = spool.journal.entries(opened.pack_id)[1]
        rewrite(spool, opened.name, flipped(entry.offset + entry.length - 1))
        with monkeypatch.context() as patch:
            left = refuse_to_set_aside(patch, times=1)
            with pytest.raises(DiskFailed):
                spool.recover()
            assert left == [0]
        assert f"samples LOST: {entry.sample_id}" in caplog.text
        assert [r.name for r in spool.journal.packs(PackState.LOST)] == [opened.name]
        assert recover_twice(spool).set_aside == [opened.name]


@pytest.mark.parametrize("state", [PackState.QUARANTINED, PackState.RECLAIMED])
def test_a_pack_that_the_bucket_holds_whole_is_not_salvaged(tmp_path: Path, state: PackState) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        record = advance(spool, tar_of(spool).pack_id, to=PackState.MANIFESTED)
        if state is PackState.QUARANTINED:
            spool.journal.move_back(record.pack_id, state, reason="its bytes are others")
        else:
            spool.journal.record_intent(record.pack_id, "a receipt")
            spool.journal.record_reclaimed(record.pack_id)
        before = state_of(spool)
        report = spool.salvage(record.pack_id, reason="it was abandoned once")
        assert (report.saved, report.lost, report.quarantined, report.left) == (0, (), None, None)
        assert state_of(spool) == before
        assert spool.journal.pack(record.pack_id).state is state


# --- a lost journal --------------------------------------------------------------------------------------------------


def lose_journal(path: Path) -> None:
    for name in [name for name in os.listdir(path / "w-00") if name.startswith("journal")]:
        os.rename(path / "w-00" / name, path / f"lost-{name}")


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_lost_journal_is_read_back_from_the_packs(tmp_path: Path, is_sealed: bool) -> None:
    # case B121
    with left_behind(tmp_path, is_sealed=is_sealed) as spool:
        known = {
            entry.sample_id: (replace(entry, time_ns=0), record.name)
            for record in spool.journal.packs()
            for entry in spool.journal.entries(record.pack_id)
        }
        digests = {record.digest for record in spool.journal.packs(PackState.SEALED)}
        runs = spool.journal.runs()
    lose_journal(tmp_path)
    with spool_at(tmp_path) as spool:
        report = recover_twice(spool)
        assert len(report.rebuilt) == 2
        found = {
            entry.sample_id: (replace(entry, time_ns=0), record.name)
            for record in spool.journal.packs(PackState.SEALED)
            for entry in spool.journal.entries(record.pack_id)
        }
        assert found == known
        assert digests <= {record.digest for record in spool.journal.packs(PackState.SEALED)}
        assert spool.journal.runs() == runs
        assert spool.quarantine_folder.names() == []
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)


def test_a_lost_journal_and_damaged_packs_still_give_every_whole_sample(tmp_path: Path) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        record, big = tar_of(spool), big_of(spool)
        entries = spool.journal.entries(record.pack_id)
        rewrite(spool, record.name, flipped(entries[1].offset + entries[1].length - 1))
        rewrite(spool, record.name, lambda data: data[: entries[3].offset + 77])
        rewrite(spool, big.name, flipped(40_000))
    lose_journal(tmp_path)
    with spool_at(tmp_path) as spool:
        report = recover_twice(spool)
        assert report.rebuilt == [record.name]
        assert_obtainable(spool, [SAMPLES[0], SAMPLES[2]])
        for lost in (SAMPLES[1], SAMPLES[3], BIG):
            assert spool.journal.find_sample(lost.sample_id) == []
        assert {record.name, big.name} <= set(spool.quarantine_folder.names())
        assert_settled(spool)


def test_damage_in_the_middle_of_an_otherwise_whole_pack_is_not_sealed_in(tmp_path: Path) -> None:
    with left_behind(tmp_path) as spool:
        record = tar_of(spool)
        entry = spool.journal.entries(record.pack_id)[1]
        rewrite(spool, record.name, flipped(entry.offset + entry.length - 1))
    lose_journal(tmp_path)
    with spool_at(tmp_path) as spool:
        assert recover_twice(spool).salvaged == [record.name]
        assert_obtainable(spool, [SAMPLES[0], SAMPLES[2], SAMPLES[3], BIG])
        assert_settled(spool)


def test_a_rebuild_that_was_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
    lose_journal(tmp_path)
    with spool_at(tmp_path) as spool, monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(SpoolUnreadable):
            spool.recover()
    with spool_at(tmp_path) as spool:
        assert len(recover_twice(spool).rebuilt) == 2
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)


def test_a_rolled_back_journal_loses_no_bytes(tmp_path: Path) -> None:
    # case B121: a journal restored from an older copy does not know the later packs
    with spool_at(tmp_path) as spool:
        spool.recover()
        writer = writer_of(spool)
        writer.append(SAMPLES[:2])
        writer.close()
    old = (tmp_path / "w-00" / "journal-1.sqlite").read_bytes()
    with spool_at(tmp_path) as spool:
        spool.recover()
        writer = writer_of(spool)
        writer.append([*SAMPLES[2:], BIG])
        writer.close()
    (tmp_path / "w-00" / "journal-1.sqlite").write_bytes(old)
    with spool_at(tmp_path) as spool:
        report = recover_twice(spool)
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)
        assert (len(report.rebuilt), report.set_aside, report.is_older) == (2, [], True)


def test_a_journal_rolled_back_within_a_session_loses_no_bytes(tmp_path: Path) -> None:
    with spool_at(tmp_path) as spool:
        spool.recover()
        writer = writer_of(spool)
        writer.append(SAMPLES[:2])
        writer.seal_open()
        old = DiskImage(tmp_path)
        writer.append([*SAMPLES[2:], BIG])
        writer.close()
    old.restore_journals()
    with spool_at(tmp_path) as spool:
        report = recover_twice(spool)
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)
        assert (len(report.rebuilt), report.set_aside) == (2, [])


def test_a_file_whose_row_was_cut_off_is_a_pack_and_no_older_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "add_sealed_pack", died)
            with pytest.raises(KeyboardInterrupt):
                writer_of(spool).append([sample("more", size=50_000)])
    with spool_at(tmp_path) as spool:
        report = recover_twice(spool)
        assert (len(report.rebuilt), report.set_aside, report.is_older) == (1, [], False)
        assert_obtainable(spool, [*SAMPLES, BIG, sample("more", size=50_000)])
        assert_settled(spool)


@pytest.mark.parametrize("is_set_aside", [True, False])
def test_the_copy_of_a_salvage_that_was_cut_short_is_not_a_second_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_set_aside: bool
) -> None:
    """What it holds may be superseded by now, and would be listed again."""
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = advance(spool, tar_of(spool).pack_id, to=PackState.MANIFESTED)
        rewrite(spool, record.name, flipped(-1))
        if is_set_aside:
            spool.recover()
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "replace_file", died)
            with pytest.raises(KeyboardInterrupt):
                spool.record_lost(record.pack_id, reason="404")
    with spool_at(tmp_path) as spool:
        report = spool.recover()
        assert report.rebuilt == []
        assert [r.state for r in spool.journal.packs()] == [PackState.MANIFESTED, PackState.SEALED]
        assert spool.record_lost(record.pack_id, reason="404").saved == 4
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)


def test_a_file_that_this_journal_let_go_is_not_taken_back(tmp_path: Path) -> None:
    with left_behind(tmp_path, is_sealed=True) as spool:
        spool.recover()
        record = advance(spool, tar_of(spool).pack_id, to=PackState.MANIFESTED)
        spool.journal.record_intent(record.pack_id, "receipt")
        path = spool.packs_folder.path / record.name
        path.rename(tmp_path / "reclaimed")
        spool.journal.record_reclaimed(record.pack_id)
        spool.recover()
        (tmp_path / "reclaimed").rename(path)
        report = recover_twice(spool)
        assert (report.rebuilt, report.set_aside, report.is_older) == ([], [record.name], False)


def died(*_: object, **__: object) -> None:
    raise KeyboardInterrupt("the process ends here")


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("last", range(1, 9))
def test_reading_back_can_end_at_any_commit_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, is_lost: bool
) -> None:
    with spool_at(tmp_path) as spool:
        spool.recover()
    old = DiskImage(tmp_path)
    with left_behind(tmp_path, is_sealed=True):
        pass
    if is_lost:
        lose_journal(tmp_path)
    else:
        old.restore_journals()
    left, plain = [last], JournalDatabase.writing

    @contextmanager
    def ending(database: JournalDatabase) -> Iterator[sqlite3.Connection]:
        with plain(database) as connection:
            yield connection
        left[0] -= 1
        if left[0] <= 0:
            died()

    with spool_at(tmp_path) as spool, monkeypatch.context() as patch:
        patch.setattr(JournalDatabase, "writing", ending)
        with suppress(KeyboardInterrupt):
            spool.recover()
    with spool_at(tmp_path) as spool:
        report = recover_twice(spool)
        assert_obtainable(spool, [*SAMPLES, BIG])
        assert_settled(spool)
        assert report.is_older or is_lost or last == 1


def test_a_row_of_another_sample_does_not_pass(tmp_path: Path) -> None:
    with left_behind(tmp_path) as spool:
        entry = spool.journal.entries(tar_of(spool).pack_id)[0]
        data = b"".join(bytes(part) for part in SAMPLES[0].chunks())
        assert pack_bytes.sample_fault(data, entry) is None
        assert pack_bytes.sample_fault(data, replace(entry, sample_id=SampleId("other"))) is not None
        assert pack_bytes.sample_fault(data, replace(entry, header_digest=Digest.of(b"x"))) is not None
        assert pack_bytes.sample_fault(data[:-1], entry) is not None
