"""Reclaim on a real spool: what is proven goes, in this order of steps; whatever is doubtful stays, byte for byte."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from durastore.clock import ManualClock
from durastore.errors import (
    DiskFailed,
    DurastoreError,
    NotVerified,
    ObjectAbsent,
    PermissionRefused,
    ReceiptRefused,
    RootMismatch,
    SpoolLocked,
    SpoolUnreadable,
)
from durastore.formats.keys import marker_key
from durastore.formats.marker import MARKER_FORMAT, Marker
from durastore.fsio.sys import SYS
from durastore.model import Evidence, EvidenceLevel, ObjectKey, PackState
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.probe.result import ChecksumKind
from durastore.reclaim.engine import Reclaimer, ReclaimReport
from durastore.spool.journal import PackRecord
from durastore.spool.records import LostSample
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from durastore.verify import verifier as verifier_module
from durastore.verify.local import digest_of
from durastore.verify.verifier import ProofBatch
from tests.unit.reclaim_lab import SETTLE_S, ReclaimLab, changed, lab
from tests.unit.spool_lab import PREFIX
from tests.unit.verify_lab import policy, probe_result

__all__ = ["lab"]


def refused(
    lab: ReclaimLab, *records: PackRecord, error: type[Exception] = NotVerified, match: str | None = None
) -> None:
    """The whole batch is refused, and every file is where it was."""
    with pytest.raises(error, match=match):
        lab.reclaim(*records)
    assert lab.unlinked == []
    assert all(lab.is_here(record) for record in records)


def kept(lab: ReclaimLab, record: PackRecord, *others: PackRecord, match: str) -> ReclaimReport:
    """This pack stays, whole and looked at anew; the others of the batch go."""
    report = lab.reclaim(record, *others)
    assert match in report.kept[record.name]
    assert lab.is_here(record)
    assert lab.state(record) is PackState.UPLOADED
    assert lab.spool.journal.pack(record.pack_id).evidence is None
    assert sorted(lab.unlinked) == sorted(other.name for other in others)
    return report


# --- what goes, and how -----------------------------------------------------------------------------------------------


def test_proven_packs_go_and_the_report_says_so(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b", "c")
    size = sum(len(lab.content(record)) for record in records)
    report = lab.reclaim(*records)
    assert (report.packs, report.bytes_freed, report.kept, report.missing) == (3, size, {}, [])
    assert lab.unlinked == [record.name for record in records]
    assert {lab.state(record) for record in records} == {PackState.RECLAIMED}
    assert lab.spool.packs_folder.names() == []
    assert lab.spool.used_bytes() == 0
    assert (lab.observer.count("reclaim.freed"), lab.observer.count("reclaim.freed.bytes")) == (3, size)
    assert (lab.observer.count("reclaim.kept"), lab.observer.count("verify.canary_failed")) == (0, 0)


def test_an_empty_plan_asks_nothing(lab: ReclaimLab) -> None:
    asked = len(lab.objects.calls)
    assert lab.reclaim() == ReclaimReport()
    assert len(lab.objects.calls) == asked
    with pytest.raises(NotVerified, match="empty"):
        lab.verifier.open_batch([])


def test_each_step_comes_before_the_next(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = lab.settled("a")
    steps: list[str] = []

    def noting(owner: Any, name: str, what: Callable[..., str]) -> None:
        plain = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            steps.append(what(*args, **kwargs))
            return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    packs_fd = lab.spool.packs_folder.fd
    noting(lab.spool.journal, "record_intent", lambda pack_id, text: "intent")
    noting(lab.spool.journal, "record_reclaimed", lambda pack_id: "reclaimed")
    noting(SYS, "unlink", lambda name, dir_fd: f"unlink {name}" if dir_fd == packs_fd else "elsewhere")
    noting(SYS, "fsync", lambda fd: "sync of the folder" if fd == packs_fd else "sync")
    lab.reclaim(record)
    assert steps == ["intent", f"unlink {record.name}", "sync of the folder", "reclaimed"]


def test_the_intent_says_on_which_grounds(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = lab.settled("a")
    texts: list[str] = []
    monkeypatch.setattr(lab.spool.journal, "record_intent", lambda _, text: texts.append(text))
    with pytest.raises(DurastoreError, match="no intent"):
        lab.reclaim(record)  # the unlink came through, and is not on record: the next open asks the bucket
    assert record.key is not None
    assert record.digest is not None
    assert record.identity is not None
    facts = json.loads(texts[0])
    assert facts == {
        "pack_id": record.pack_id,
        "identity": record.identity.render(),
        "key": record.key.text,
        "level": "READ_BACK",
        "etag": record.etag,
        "version_id": None,
        "digest": record.digest.hex,
        "taken": lab.clock.stamp().render(),
        "probe": None,
    }
    assert lab.state(record) is PackState.MANIFESTED
    lab.false_unlinks.clear()  # it went without an intent, as this test made it


def test_every_look_is_on_a_connection_of_its_own_and_it_is_closed(
    lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = lab.settled("a", "b")
    opened: list[Any] = []
    closed: list[Any] = []
    fresh = lab.objects.fresh_reader

    def fresh_reader() -> Any:
        reader = fresh()
        opened.append(reader)
        monkeypatch.setattr(reader, "close", lambda: closed.append(reader))
        return reader

    monkeypatch.setattr(lab.objects, "fresh_reader", fresh_reader)
    lab.reclaim(*records)
    assert len(opened) == 1
    assert closed == opened
    lab.verifier.stop_reclaiming("for the test")
    with pytest.raises(NotVerified):
        lab.verifier.open_batch(records)
    assert len(opened) == 1
    lab.make_verifier(policy()).open_batch(records).close()
    assert len(opened) == 2
    assert closed == opened


def test_a_batch_that_cannot_be_opened_closes_its_connection(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    records = lab.settled("a")
    closed: list[str] = []
    fresh = lab.objects.fresh_reader

    def fresh_reader() -> Any:
        reader = fresh()
        monkeypatch.setattr(reader, "close", lambda: closed.append("closed"))
        return reader

    monkeypatch.setattr(lab.objects, "fresh_reader", fresh_reader)
    lab.objects.lose(marker_key(PREFIX))
    refused(lab, *records)
    assert closed == ["closed"]
    lab.verifier.verify_remote_copy(records[0])
    assert closed == ["closed", "closed"]


# --- what the whole batch rests on ------------------------------------------------------------------------------------


def test_without_its_segment_no_pack_goes(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b")
    assert records[0].manifested_in is not None
    lab.objects.lose(records[0].manifested_in)
    refused(lab, *records, match="is gone")
    assert {lab.state(record) for record in records} == {PackState.VERIFIED}, "to be listed in another segment"


def test_a_segment_that_holds_other_bytes_counts_for_nothing(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b")
    assert records[0].manifested_in is not None
    lab.objects.damage(records[0].manifested_in, Fault.FLIP_BYTE)
    refused(lab, *records, match="other bytes")
    assert {lab.state(record) for record in records} == {PackState.VERIFIED}


def test_every_segment_of_the_batch_is_read(lab: ReclaimLab) -> None:
    first, second = lab.manifested("a"), lab.manifested("b")
    lab.clock.advance(SETTLE_S)
    assert second[0].manifested_in is not None
    assert first[0].manifested_in != second[0].manifested_in
    lab.objects.lose(second[0].manifested_in)
    refused(lab, *second, *first)
    assert [lab.state(record) for record in (*first, *second)] == [PackState.MANIFESTED, PackState.VERIFIED]


def test_a_pack_listed_again_settles_again(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b")
    assert records[0].manifested_in is not None
    lab.objects.lose(records[0].manifested_in)
    refused(lab, *records, match="is gone")
    again = lab.manifest(*[lab.spool.journal.pack(record.pack_id) for record in records])
    assert [record.manifested_at for record in again] == [lab.clock.stamp()] * 2
    lab.clock.advance(SETTLE_S)
    assert lab.reclaim(*[lab.verify(record) for record in again]).packs == 2


def test_a_bucket_without_its_marker_or_with_another_is_not_ours(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b")
    key = marker_key(PREFIX)
    lab.objects.lose(key)
    refused(lab, *records, match="marker")
    other = Marker(store_id="cd" * 16, format=MARKER_FORMAT, run=None, created_ns=0)
    lab.objects.put(key, other.render(), crc64nvme=None, metadata={})
    refused(lab, *records, match="marker")
    assert lab.verifier.distrust is None


@pytest.mark.parametrize("harm", ["lose", "damage"])
def test_a_canary_that_is_wrong_stops_everything_and_doubts_its_batch(lab: ReclaimLab, harm: str) -> None:
    first, canary = lab.settled("a", "b")
    told: list[str] = []
    lab.verifier.on_distrust(told.append)
    assert canary.key is not None
    if harm == "lose":
        lab.objects.lose(canary.key)
    else:
        lab.objects.damage(canary.key, Fault.FLIP_BYTE)
    refused(lab, first, canary, match=f"canary {canary.name}")
    assert len(told) == 1
    assert lab.verifier.distrust == told[0]
    assert lab.observer.count("verify.canary_failed") == 1
    assert {lab.state(first), lab.state(canary)} == {PackState.UPLOADED}
    refused(lab, first, match="stopped")


def test_data_that_went_wrong_behind_a_good_head_stop_everything(lab: ReclaimLab) -> None:
    # case B61: HEAD answers as before; of the packs that are not the canary one block is compared
    record, canary = lab.settled("a", "b")
    assert record.key is not None
    lab.objects.damage(record.key, Fault.FLIP_BYTE)
    told: list[str] = []
    lab.verifier.on_distrust(told.append)
    report = lab.reclaim(record, canary)
    assert f"object {record.key} holds" in report.kept[record.name]  # the block differed, and then all was read
    assert "stopped" in report.kept[canary.name]
    assert lab.unlinked == []
    assert lab.is_here(record)
    assert lab.is_here(canary)
    assert {lab.state(record), lab.state(canary)} == {PackState.UPLOADED}
    assert (len(told), lab.observer.count("verify.spot_mismatch")) == (1, 1)
    assert lab.verifier.distrust == told[0]


class Breaks:
    """An observer whose metrics socket is gone."""

    def emit(self, name: str, **facts: object) -> None:
        raise BrokenPipeError(name)


@pytest.mark.parametrize("is_canary", [True, False])
def test_the_switch_is_thrown_before_anybody_hears_of_a_wrong_copy(lab: ReclaimLab, is_canary: bool) -> None:
    record, canary = lab.settled("a", "b")
    wrong = canary if is_canary else record
    assert wrong.key is not None
    lab.objects.damage(wrong.key, Fault.FLIP_BYTE)
    lab.verifier._observer = Breaks()
    with pytest.raises(BrokenPipeError):
        lab.reclaim(record, canary)
    assert lab.verifier.distrust is not None
    assert lab.unlinked == []


def test_a_canary_that_could_not_be_read_is_no_verdict(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b")
    lab.objects.add(FaultRule(op="fetch_chunks", fault=Fault.FORBIDDEN))
    refused(lab, *records, error=PermissionRefused)
    assert lab.verifier.distrust is None
    assert {lab.state(record) for record in records} == {PackState.MANIFESTED}
    assert lab.reclaim(*records).packs == 2


def test_after_the_stop_switch_nothing_goes_and_nothing_is_taken_back(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b")
    told: list[str] = []
    lab.verifier.on_distrust(told.append)
    lab.verifier.stop_reclaiming("first")
    lab.verifier.stop_reclaiming("second")
    assert told == ["first"]
    refused(lab, *records, match="first")
    assert {lab.state(record) for record in records} == {PackState.MANIFESTED}


@pytest.mark.parametrize("has_rule", [True, False])
def test_an_endpoint_that_takes_objects_away_frees_nothing(lab: ReclaimLab, has_rule: bool) -> None:
    records = lab.settled("a")
    rule = "expire-all" if has_rule else None
    lab.verifier.use(changed(lab.verifier, probe=probe_result(expiring_rule=rule)))
    if not has_rule:
        assert lab.reclaim(*records).packs == 1
        return
    assert lab.verifier.distrust is not None
    refused(lab, *records, match="expire-all")


# --- the disk and its owner -------------------------------------------------------------------------------------------


def test_without_the_lock_nothing_goes(lab: ReclaimLab) -> None:
    records = lab.settled("a")
    lab.spool._lock.close()
    refused(lab, *records, error=SpoolLocked)


def test_who_does_not_hold_the_spool_asks_the_bucket_nothing(lab: ReclaimLab) -> None:
    records = lab.settled("a")
    asked = len(lab.objects.calls)
    lab.spool._lock.close()
    refused(lab, *records, error=SpoolLocked)
    assert len(lab.objects.calls) == asked


def test_a_root_that_is_another_is_noticed_before_each_file(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B20
    first, second = lab.settled("a", "b")
    root = lab.spool.root.path
    away = root.with_name("away")
    plain = lab.spool.journal.record_reclaimed

    def record_reclaimed(pack_id: int) -> None:
        plain(pack_id)
        root.rename(away)
        root.mkdir()

    monkeypatch.setattr(lab.spool.journal, "record_reclaimed", record_reclaimed)
    with pytest.raises(RootMismatch):
        lab.reclaim(first, second)
    assert lab.unlinked == [first.name]
    assert (away / "w-00" / "packs" / second.name).read_bytes() == lab.content(second)
    with pytest.raises(RootMismatch):
        lab.reclaim(second)
    root.rmdir()
    away.rename(root)


def test_a_link_in_the_place_of_a_pack_is_never_followed(lab: ReclaimLab, tmp_path: Path) -> None:
    (record,) = lab.settled("a")
    outside = tmp_path / "outside"
    lab.path(record).rename(outside)
    lab.path(record).symlink_to(outside)
    with pytest.raises((OSError, DurastoreError)):
        lab.reclaim(record)
    assert lab.unlinked == []
    assert outside.read_bytes() == lab.content(record)
    assert lab.path(record).is_symlink()


def test_a_folder_in_the_place_of_a_pack_is_left_alone(lab: ReclaimLab) -> None:
    (record,) = lab.settled("a")
    lab.path(record).rename(lab.path(record).with_name("moved"))
    lab.path(record).mkdir()
    with pytest.raises(SpoolUnreadable):
        lab.reclaim(record)
    assert lab.path(record).is_dir()


# --- the local file ---------------------------------------------------------------------------------------------------


def test_a_touched_file_is_hashed_again_and_goes(lab: ReclaimLab) -> None:
    (record,) = lab.settled("a")
    os.utime(lab.path(record), ns=(1, 1))
    assert lab.reclaim(record).packs == 1


def flip(path: Path, at: int = 700) -> None:
    """Another byte, and the same size and mtime."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(100)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("harm", [flip, cut, grow])
def test_a_file_that_is_not_what_was_sealed_is_put_aside(lab: ReclaimLab, harm: Callable[[Path], None]) -> None:
    # case B25
    record, other = lab.settled("a", "b")
    harm(lab.path(record))
    now = lab.path(record).read_bytes()
    report = lab.reclaim(record, other)
    assert "not what was sealed" in report.kept[record.name]
    assert lab.unlinked == [other.name]
    assert lab.state(record) is PackState.QUARANTINED
    assert (lab.spool.quarantine_folder.path / record.name).read_bytes() == now
    assert lab.observer.count("reclaim.kept") == 1


@pytest.mark.parametrize("harm", ["lose", "damage"])
@pytest.mark.parametrize("is_in_sample", [True, False])
def test_a_damaged_file_whose_object_is_no_better_is_salvaged(lab: ReclaimLab, harm: str, is_in_sample: bool) -> None:
    record, other = lab.settled("a", "b")
    (entry,) = lab.spool.journal.entries(record.pack_id)
    flip(lab.path(record), entry.offset + entry.length - 1 if is_in_sample else 700)
    now = lab.path(record).read_bytes()
    assert record.key is not None
    if harm == "lose":
        lab.objects.lose(record.key)
    else:
        lab.objects.damage(record.key, Fault.FLIP_BYTE)
    report = lab.reclaim(record, other)
    assert [sample.sample_id.text for sample in report.lost] == (["a"] if is_in_sample else [])
    # other bytes than were acknowledged stop the rest as well
    assert lab.unlinked == ([other.name] if harm == "lose" else [])
    assert lab.state(record) is (PackState.LOST if is_in_sample else PackState.SEALED)
    assert (lab.spool.quarantine_folder.path / record.name).read_bytes() == now


class _LossHeard:
    """Notes the ids of the samples that it hears are lost."""

    def __init__(self, heard: list[str]) -> None:
        self._heard = heard

    def on_lost(self, lost: Sequence[LostSample]) -> None:
        self._heard += [sample.sample_id.text for sample in lost]

    def on_unexplained(self, pack_id: int, reason: str) -> None:
        raise AssertionError(f"pack {pack_id}: {reason}")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_bad_disk_that_keeps_a_salvaged_file_among_the_packs_ends_reclaiming_and_a_full_one_does_not(
    lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    record, other = lab.settled("a", "b")
    (entry,) = lab.spool.journal.entries(record.pack_id)
    flip(lab.path(record), entry.offset + entry.length - 1)
    now = lab.path(record).read_bytes()
    assert record.key is not None
    lab.objects.lose(record.key)
    told: list[str] = []
    lab.reclaimer = Reclaimer(lab.spool, lab.verifier, observer=lab.observer, listener=_LossHeard(told))

    def refuse(source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(SYS, "link", refuse)
    if number == errno.EIO:
        with pytest.raises(DiskFailed, match="Input/output error"):
            lab.reclaim(record, other)
        assert lab.is_here(other)
    else:
        lab.reclaim(record, other)
        assert lab.unlinked == [other.name]
    assert told == ["a"]  # a loss is told whatever fails after it
    assert lab.path(record).read_bytes() == now


def test_a_damaged_file_is_not_salvaged_after_one_look_that_missed_the_object(
    lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B167: a lagging replica says once that it is not there
    (record,) = lab.settled("a")
    flip(lab.path(record))
    read = ProofBatch.read_back

    def blind_once(batch: ProofBatch, asked: PackRecord) -> Evidence:
        monkeypatch.setattr(ProofBatch, "read_back", read)
        raise ObjectAbsent(f"{asked.key} is not there")

    monkeypatch.setattr(ProofBatch, "read_back", blind_once)
    report = lab.reclaim(record)
    assert report.lost == []
    assert lab.state(record) is PackState.MANIFESTED
    lab.reclaim(record)
    assert lab.state(record) is PackState.QUARANTINED


def test_a_damaged_file_stays_while_the_bucket_cannot_tell(lab: ReclaimLab) -> None:
    record, other = lab.settled("a", "b")
    flip(lab.path(record))
    now = lab.path(record).read_bytes()
    etags = iter(['"first"', '"second"'])
    lab.verifier._store = Told(lab, record, etag=lambda: next(etags, '"last"'))
    report = lab.reclaim(record, other)
    assert (report.lost, report.unexplained) == ([], {})
    assert lab.state(record) is PackState.MANIFESTED
    assert lab.path(record).read_bytes() == now
    lab.verifier._store = lab.objects
    lab.reclaim(record)
    assert lab.state(record) is PackState.QUARANTINED


def test_a_file_that_changes_while_it_is_hashed_is_kept(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    record, other = lab.settled("a", "b")
    os.utime(lab.path(record), ns=(1, 1))

    def hash_and_touch(fd: int) -> Any:
        digest = digest_of(fd)
        os.utime(lab.path(record), ns=(2, 2))
        return digest

    monkeypatch.setattr(verifier_module, "digest_of", hash_and_touch)
    kept(lab, record, other, match="changes while it is read")


def test_a_file_swapped_between_proof_and_unlink_stays(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = lab.settled("a")
    plain = lab.spool.journal.record_intent

    def record_intent(pack_id: int, text: str) -> None:
        plain(pack_id, text)
        lab.path(record).rename(lab.path(record).with_name("proven"))
        lab.path(record).write_bytes(b"another file under that name")

    monkeypatch.setattr(lab.spool.journal, "record_intent", record_intent)
    with pytest.raises(ReceiptRefused, match="changed"):
        lab.reclaim(record)
    assert lab.unlinked == []
    assert lab.path(record).read_bytes() == b"another file under that name"
    assert lab.path(record).with_name("proven").read_bytes() == lab.content(record)


def test_a_receipt_that_expires_before_the_unlink_is_worth_nothing(
    lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = lab.settled("a")
    plain = lab.spool.journal.record_intent

    def record_intent(pack_id: int, text: str) -> None:
        plain(pack_id, text)
        lab.clock.advance(60)

    monkeypatch.setattr(lab.spool.journal, "record_intent", record_intent)
    refused(lab, record, error=ReceiptRefused, match="expired")
    assert lab.state(record) is PackState.MANIFESTED


def test_a_crash_after_the_intent_leaves_a_question_and_the_file(
    lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = lab.settled("a")
    plain = lab.spool.journal.record_intent

    def record_intent(pack_id: int, text: str) -> None:
        plain(pack_id, text)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lab.spool.journal, "record_intent", record_intent)
        with pytest.raises(KeyboardInterrupt):
            lab.reclaim(record)
    assert [r.pack_id for r, _ in lab.spool.journal.intents()] == [record.pack_id]
    for _ in range(2):  # INV-9
        lab.spool.recover()
        assert lab.is_here(record)
        assert lab.state(record) is PackState.UPLOADED
    assert lab.unlinked == []


def test_no_descriptor_stays_open(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    records = lab.settled("a", "b", "c", "d")
    assert records[0].key is not None
    lab.objects.lose(records[0].key)
    lab.alter(records[1], evidence=None)
    before = os.listdir("/proc/self/fd")
    report = lab.reclaim(*records[:2], records[3])
    assert (report.packs, len(report.missing), len(report.kept)) == (1, 1, 1)
    monkeypatch.setattr(lab.spool.journal, "record_intent", lambda *_: lab.clock.advance(60))
    with pytest.raises(ReceiptRefused):
        lab.reclaim(records[2])
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("call", ["unlink", "fsync"])
def test_a_kernel_that_refuses_is_a_failure_and_never_reclaimed(
    lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    # case B43; after a failed sync of the folder the name may come back, so the journal must not say that it went
    (record,) = lab.settled("a")
    plain = getattr(SYS, call)

    def failing(first: Any, **facts: Any) -> None:
        if first in (record.name, lab.spool.packs_folder.fd):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        plain(first, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(SYS, call, failing)
        with pytest.raises(DiskFailed, match=f"{record.name}.*Input/output error"):
            lab.reclaim(record)
    assert lab.state(record) is PackState.MANIFESTED
    assert lab.spool.journal.pack(record.pack_id).intent is not None
    assert lab.path(record).exists() is (call == "unlink")


# --- the record -------------------------------------------------------------------------------------------------------


def test_a_plan_is_only_a_wish(lab: ReclaimLab) -> None:
    record, other = lab.settled("a", "b")
    lab.spool.journal.move_back(record.pack_id, PackState.UPLOADED, reason="doubted since it was planned")
    report = lab.reclaim(record, other)
    assert report.kept == {record.name: "now uploaded"}
    assert lab.is_here(record)
    assert lab.unlinked == [other.name]


@pytest.mark.parametrize(
    "columns, match",
    [
        ({"manifested_in": None}, "not manifested"),
        ({"identity": None}, "no digest"),
        ({"size_bytes": None}, "no digest"),
        ({"key": None}, "no digest"),
        ({"digest": "0" * 32}, "does not carry its digest"),
        ({"size_bytes": 5}, "another object"),
    ],
)
def test_a_pack_that_is_not_recorded_in_full_stays(lab: ReclaimLab, columns: dict[str, Any], match: str) -> None:
    record, other = lab.settled("a", "b")
    kept(lab, lab.alter(record, **columns), other, match=match)


def test_without_evidence_of_its_own_a_pack_stays(lab: ReclaimLab) -> None:
    record, other = lab.settled("a", "b")
    record = lab.alter(record, evidence=None)
    report = lab.reclaim(record, other)
    assert "no evidence" in report.kept[record.name]
    assert lab.is_here(record)
    assert lab.unlinked == [other.name]


def test_evidence_of_another_object_frees_nothing(lab: ReclaimLab) -> None:
    record, other = lab.settled("a", "b")
    kept(lab, lab.alter(record, evidence=_column(lab, other, "evidence")), other, match="another object")


def test_a_listing_frees_nothing(lab: ReclaimLab) -> None:
    record, other = lab.settled("a", "b")
    listed = _column(lab, record, "evidence").replace("READ_BACK", "LISTED")
    assert "LISTED" in listed
    kept(lab, lab.alter(record, evidence=listed), other, match="below")


def _column(lab: ReclaimLab, record: PackRecord, name: str) -> str:
    with lab.spool.journal._db.reading() as conn:
        (text,) = conn.execute(f"SELECT {name} FROM packs WHERE pack_id = ?", (record.pack_id,)).fetchone()  # noqa: S608 - our own name
    return str(text)


# --- evidence in time -------------------------------------------------------------------------------------------------


def test_before_settle_s_is_over_nothing_goes(lab: ReclaimLab) -> None:
    # case B62
    record, other = lab.manifested("a", "b")
    lab.clock.advance(SETTLE_S - 1)
    report = lab.reclaim(record, other)
    assert report.kept.keys() == {record.name, other.name}
    assert "less than 600 s ago" in report.kept[record.name]
    assert lab.is_here(record)
    assert lab.is_here(other)


def test_old_evidence_is_taken_anew_and_the_canarys_own_look_is_young(lab: ReclaimLab) -> None:
    record, canary = lab.manifested("a", "b")
    lab.clock.advance(1_001)
    kept(lab, record, canary, match="too old")


def test_after_a_reboot_every_age_is_unknown(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b")
    lab.clock.reboot()
    report = lab.reclaim(*records)
    assert report.kept.keys() == {record.name for record in records}
    assert all(lab.is_here(record) for record in records)


def test_a_wall_clock_that_went_back_makes_every_age_unknown(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b")
    lab.clock.step_wall(-SETTLE_S - 1)
    report = lab.reclaim(*records)
    assert report.kept.keys() == {record.name for record in records}
    assert all(lab.is_here(record) for record in records)


def test_a_server_clock_that_goes_another_way_makes_the_proof_void(lab: ReclaimLab) -> None:
    record, canary = lab.settled("a", "b")
    server = ManualClock(start_ns=lab.clock.now_ns() + 61_000_000_000)
    inner = lab.objects.inner
    assert isinstance(inner, MemoryStore)
    inner._clock = server
    kept(lab, record, canary, match="drifted apart by 61 s")


class Told(FaultyStore):
    """The HEADs of one key on new connections tell what the test says."""

    def __init__(self, lab: ReclaimLab, record: PackRecord, **facts: Any) -> None:
        super().__init__(lab.objects.inner)
        self._state = lab.objects._state
        self._key, self._facts = record.key, facts

    def fresh_reader(self) -> Any:
        reader = super().fresh_reader()
        plain = reader.head

        def head(key: ObjectKey) -> Any:
            stat = plain(key)
            if key != self._key:
                return stat
            told = {name: fact() if callable(fact) else fact for name, fact in self._facts.items()}
            return type(stat)(**({name: getattr(stat, name) for name in stat.__slots__} | told))

        vars(reader)["head"] = head
        return reader


@pytest.mark.parametrize(
    "facts, match",
    [
        ({"size_bytes": None}, "has None bytes"),  # case B64
        ({"size_bytes": 0}, "has 0 bytes"),
        ({"etag": '"other"'}, "etag changed"),
        ({"crc64nvme": "AAAAAAAAAAA="}, "another CRC64NVME"),
        ({"is_readable": False, "storage_class": "GLACIER"}, "GLACIER"),
        ({"server_time_s": None}, "told the time at the proof"),
    ],
)
def test_what_the_last_look_shows_has_to_be_what_was_proven(lab: ReclaimLab, facts: dict[str, Any], match: str) -> None:
    record, other = lab.settled("a", "b")
    lab.verifier._store = Told(lab, record, **facts)
    kept(lab, record, other, match=match)


def test_another_version_than_the_proven_one_is_another_object(lab: ReclaimLab) -> None:
    record, other = lab.settled("a", "b")
    proof = _column(lab, record, "evidence").replace('"version_id":null', '"version_id":"v1"')
    assert "v1" in proof
    lab.verifier._store = Told(lab, record, version_id="v2")
    kept(lab, lab.alter(record, evidence=proof), other, match="another version")


def test_a_404_sends_the_pack_again(lab: ReclaimLab) -> None:
    # cases B23, B62: also what a delete marker answers
    record, other = lab.settled("a", "b")
    assert record.key is not None
    lab.objects.lose(record.key)
    report = lab.reclaim(record, other)
    assert (report.missing, report.kept, report.packs) == ([record.name], {}, 1)
    assert lab.is_here(record)
    assert lab.state(record) is PackState.SEALED
    assert lab.observer.count("reclaim.object_gone") == 1


def test_a_403_is_not_knowing_and_ends_the_batch(lab: ReclaimLab) -> None:
    # case B165
    first, second = lab.settled("a", "b")
    lab.objects.add(FaultRule(op="head", fault=Fault.FORBIDDEN, key_part=str(first.key)))
    refused(lab, first, second, error=PermissionRefused)
    assert {lab.state(first), lab.state(second)} == {PackState.MANIFESTED}


# --- attested ---------------------------------------------------------------------------------------------------------


def attested(lab: ReclaimLab, *names: str) -> list[PackRecord]:
    lab.verifier.use(changed(lab.verifier, probe=probe_result(ChecksumKind.CRC64NVME)))
    lab.settled("first")  # the first copy of a write path is read in full, whatever the probe saw
    records = lab.settled(*names)
    for record in records:
        assert record.evidence is not None
        assert record.evidence.level is EvidenceLevel.ATTESTED
    return records


def test_attested_packs_go_under_their_probe(lab: ReclaimLab) -> None:
    assert lab.reclaim(*attested(lab, "a", "b")).packs == 2


@pytest.mark.parametrize(
    "probe, match",
    [
        (None, "below READ_BACK"),
        (probe_result(), "below READ_BACK"),
        (probe_result(None, ChecksumKind.CRC64NVME), "below READ_BACK"),
        (probe_result(ChecksumKind.CRC64NVME, id="00000000000000ff"), "another probe"),
    ],
)
def test_what_was_attested_under_other_findings_is_read_back_first(lab: ReclaimLab, probe: Any, match: str) -> None:
    record, canary = attested(lab, "a", "b")
    lab.verifier.use(changed(lab.verifier, probe=probe))
    kept(lab, record, canary, match=match)


# --- a pack whose file is gone ----------------------------------------------------------------------------------------


def test_a_file_that_somebody_took_is_settled_by_the_bucket(lab: ReclaimLab, tmp_path: Path) -> None:
    record, other = lab.settled("a", "b")
    lab.path(record).rename(tmp_path / "taken")
    report = lab.reclaim(record, other)
    assert report.kept == {}
    assert lab.state(record) is PackState.RECLAIMED
    assert lab.unlinked == [other.name]


@pytest.mark.parametrize("harm", ["lose", "damage"])
def test_a_file_that_is_gone_on_both_sides_is_named(lab: ReclaimLab, tmp_path: Path, harm: str) -> None:
    record, other = lab.settled("a", "b")
    lab.path(record).rename(tmp_path / "taken")
    assert record.key is not None
    if harm == "lose":
        lab.objects.lose(record.key)
    else:
        lab.objects.damage(record.key, Fault.FLIP_BYTE)
    report = lab.reclaim(record, other)
    assert "does not give it back" in report.kept[record.name]
    assert lab.state(record) is not PackState.RECLAIMED
    assert lab.unlinked == [other.name]


def test_a_bucket_that_does_not_answer_leaves_the_question(lab: ReclaimLab, tmp_path: Path) -> None:
    record, other = lab.settled("a", "b")
    lab.path(record).rename(tmp_path / "taken")
    lab.objects.add(FaultRule(op="head", fault=Fault.FORBIDDEN, key_part=str(record.key), count=None))
    with pytest.raises(PermissionRefused):
        lab.reclaim(record, other)
    assert lab.state(record) is PackState.MANIFESTED
    assert lab.unlinked == []


def test_one_odd_look_is_no_loss(lab: ReclaimLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the object is written again while it is read back: that is not knowing, and a later look finds every byte
    record, other = lab.settled("a", "b")
    lab.path(record).rename(tmp_path / "taken")
    etags = iter(['"first"', '"second"'])
    lab.verifier._store = Told(lab, record, etag=lambda: next(etags, '"last"'))
    lab.reclaim(record, other)
    assert lab.state(record) is PackState.MANIFESTED
    lab.reclaim(record)
    assert lab.state(record) is PackState.RECLAIMED


@pytest.mark.parametrize("harm", ["lose", "damage"])
def test_what_is_gone_on_both_sides_is_decided_at_the_next_open(lab: ReclaimLab, tmp_path: Path, harm: str) -> None:
    # there its rows are taken out of the view as well, so that the next run makes the samples again (INV-8)
    record, other = lab.settled("a", "b")
    lab.path(record).rename(tmp_path / "taken")
    assert record.key is not None
    if harm == "lose":
        lab.objects.lose(record.key)
    else:
        lab.objects.damage(record.key, Fault.FLIP_BYTE)
    lab.reclaim(record, other)
    assert lab.state(record) is PackState.MANIFESTED
    assert [r.name for r in lab.spool.recover().missing_files] == [record.name]


# --- between two looks ------------------------------------------------------------------------------------------------


def test_the_stop_switch_stops_a_batch_that_is_under_way(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    records = lab.settled("a", "b", "c")
    plain = lab.spool.journal.record_reclaimed

    def record_reclaimed(pack_id: int) -> None:
        plain(pack_id)
        lab.verifier.stop_reclaiming("a look at another pack found a wrong copy")

    monkeypatch.setattr(lab.spool.journal, "record_reclaimed", record_reclaimed)
    report = lab.reclaim(*records)
    assert lab.unlinked == [records[0].name]
    assert report.kept.keys() == {record.name for record in records[1:]}
    assert all(lab.is_here(record) for record in records[1:])


def test_a_segment_written_since_the_plan_is_looked_at_too(lab: ReclaimLab) -> None:
    planned, other = lab.settled("a", "b")
    lab.spool.journal.move_back(planned.pack_id, PackState.UPLOADED, reason="doubted since it was planned")
    (now,) = lab.manifest(lab.verify(lab.spool.journal.pack(planned.pack_id)))
    assert now.manifested_in is not None
    assert now.manifested_in != planned.manifested_in
    lab.objects.lose(now.manifested_in)
    kept(lab, planned, other, match="is gone")


def test_a_pack_without_a_file_is_settled_only_with_its_new_segment(lab: ReclaimLab, tmp_path: Path) -> None:
    planned, other = lab.settled("a", "b")
    lab.spool.journal.move_back(planned.pack_id, PackState.UPLOADED, reason="doubted since it was planned")
    (now,) = lab.manifest(lab.verify(lab.spool.journal.pack(planned.pack_id)))
    assert now.manifested_in is not None
    lab.objects.lose(now.manifested_in)
    lab.path(planned).rename(tmp_path / "taken")
    report = lab.reclaim(planned, other)
    assert lab.state(planned) is PackState.MANIFESTED
    assert planned.name in report.kept


def test_a_segment_is_read_once_a_batch(lab: ReclaimLab) -> None:
    planned = lab.settled("a", "b", "c")
    for record in planned[:2]:
        lab.spool.journal.move_back(record.pack_id, PackState.UPLOADED, reason="doubted since it was planned")
    now = lab.manifest(*[lab.verify(lab.spool.journal.pack(record.pack_id)) for record in planned[:2]])
    lab.clock.advance(SETTLE_S)
    begun = len(lab.objects.calls)
    assert lab.reclaim(*planned).packs == 3
    fetched = [key for op, key in lab.objects.calls[begun:] if op == "fetch"]
    for segment in (now[0].manifested_in, planned[2].manifested_in):
        assert segment is not None
        assert fetched.count(segment.text) == 1


def test_after_a_reboot_also_the_canary_goes_in_the_end(lab: ReclaimLab) -> None:
    # the settle time counts from the first full look in this boot, not from the canary's, which is always now
    (record,) = lab.settled("a")
    lab.clock.reboot()
    lab.spool.journal.move_back(record.pack_id, PackState.UPLOADED, reason="evidence expired")
    (record,) = lab.manifest(lab.verify(lab.spool.journal.pack(record.pack_id)))
    lab.clock.advance(SETTLE_S)
    assert lab.reclaim(record).packs == 1
