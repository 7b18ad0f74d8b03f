"""Rebuilding the manifest from the packs: everything sound comes back, everything else is a finding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from durastore.clock import ManualClock
from durastore.errors import EndpointUnreachable, ManifestIncomplete, NotVerified
from durastore.formats.keys import pack_key, parse_segment_key
from durastore.formats.pack import TRAILER, member_header, member_padding, run_member
from durastore.manifest.snapshot import fetch_listing
from durastore.model import Digest, ManifestRow, ObjectKey, PackKind, Run, SampleId, Tombstone, WriterId
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ObjectReader, ObjectStat
from durastore.read.remote import fetch_sample
from durastore.reconcile import rebuild
from durastore.reconcile.findings import FindingKind
from durastore.reconcile.rebuild import RebuildReport, execute_rebuild, plan_rebuild
from tests.unit.manifest_bucket import RUN, Bucket, assert_tensors, encode, tensors_of, tombstone_of

A = WriterId("a" * 16)


def _rebuild(bucket: Bucket) -> RebuildReport:
    return execute_rebuild(bucket.store, plan_rebuild(bucket.store, bucket.prefix), clock=ManualClock())


def _found(report: RebuildReport) -> list[tuple[FindingKind, ObjectKey]]:
    return [(finding.kind, finding.key) for finding in report.findings]


def _timeless(row: ManifestRow) -> ManifestRow:
    """A sample's bytes carry no time, so that one value cannot come back."""
    return dataclasses.replace(row, entry=dataclasses.replace(row.entry, time_ns=0))


@pytest.mark.parametrize("prefix", ["", "data/set"])
def test_a_lost_manifest_comes_back_row_for_row(prefix: str) -> None:
    bucket = Bucket(MemoryStore(clock=ManualClock(start_ns=5_000_000_000)), prefix=prefix)
    rows = bucket.add_tar([encode("a", 1), encode("b/c.d", 2, input_digest=Digest.of(b"in"))])
    rows += bucket.add_tar([encode("é%", 3)])
    rows.append(bucket.add_single(encode("single", 4)))
    report = _rebuild(bucket)
    assert (report.packs_read, report.rows_published, report.rows_tombstoned) == (3, 4, 0)
    assert report.bytes_read == sum({row.object.key: row.object.size_bytes for row in rows}.values())
    view = bucket.view()
    found = [view.row_at(at) for at in range(len(view))]
    assert {_timeless(row) for row in found} == {_timeless(row) for row in rows}
    assert {row.entry.time_ns for row in found} == {5_000_000_000}
    assert view.runs == {RUN.digest: RUN}
    assert_tensors(fetch_sample(bucket.store, found[0]).tensors, tensors_of(1))


def test_a_single_pack_without_its_run_text_is_restored_and_reported() -> None:
    bucket = Bucket()
    row = bucket.add_single(encode("single", 4))
    report = _rebuild(bucket)
    assert bucket.view().ids() == ["single"]
    assert _found(report) == [(FindingKind.DIVERGENT, row.object.key)]
    assert "no text of the run" in report.findings[0].detail


def test_a_sound_bucket_needs_nothing() -> None:
    bucket = Bucket()
    bucket.add_segment(bucket.add_tar([encode("a", 1)]))
    plan = plan_rebuild(bucket.store, bucket.prefix)
    assert (plan.packs, plan.gaps, plan.unreadable, plan.findings, plan.bytes_to_read) == ((), (), (), (), 0)
    report = execute_rebuild(bucket.store, plan, clock=ManualClock())
    assert (report.packs_read, report.segments) == (0, ())


def test_only_packs_that_no_live_row_names_are_read() -> None:
    bucket = Bucket()
    named, lost = bucket.add_tar([encode("a", 1)]), bucket.add_tar([encode("b", 2)])
    bucket.add_segment(named)
    plan = plan_rebuild(bucket.store, bucket.prefix)
    assert [pack.key for pack in plan.packs] == [lost[0].object.key]
    assert plan.bytes_to_read == lost[0].object.size_bytes
    execute_rebuild(bucket.store, plan, clock=ManualClock())
    assert bucket.view().ids() == ["a", "b"]


def test_rebuilding_twice_is_rebuilding_once() -> None:
    bucket = Bucket()
    bucket.add_tar([encode("a", 1), encode("b", 2)])
    plan = plan_rebuild(bucket.store, bucket.prefix)
    execute_rebuild(bucket.store, plan, clock=ManualClock())
    first = bucket.view()
    execute_rebuild(bucket.store, plan, clock=ManualClock())  # a stale plan: rows are published again, as one row
    again = bucket.view()
    assert again.ids() == first.ids() == ["a", "b"]
    assert again.duplicate_count == 0
    assert plan_rebuild(bucket.store, bucket.prefix).packs == ()


def test_tombstoned_rows_do_not_come_back() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode("a", 1), encode("b", 2)])
    bucket.add_segment(tombstones=[tombstone_of(rows[0])])
    report = _rebuild(bucket)
    assert (report.rows_published, report.rows_tombstoned) == (1, 1)
    assert bucket.view().ids() == ["b"]
    assert bucket.view().tombstones() == (tombstone_of(rows[0]),)


# --- repair --------------------------------------------------------------------------------------------------------


def test_a_gap_and_a_damaged_segment_are_repaired_after_the_rows() -> None:
    bucket = Bucket()
    rows = [bucket.add_tar([encode(sample_id, at)]) for at, sample_id in enumerate("abcd")]
    bucket.add_segment(rows[0])
    bucket.skip_segment()  # held the rows of b
    damaged = bucket.add_segment(rows[2])
    bucket.add_segment(rows[3])
    bucket.damage(damaged, at=30)
    with pytest.raises(ManifestIncomplete):
        bucket.view()
    plan = plan_rebuild(bucket.store, bucket.prefix)
    assert [(gap.writer, gap.missing) for gap in plan.gaps] == [(bucket.writer, (2,))]
    assert plan.unreadable == (damaged,)
    assert {pack.key for pack in plan.packs} == {rows[1][0].object.key, rows[2][0].object.key}
    report = execute_rebuild(bucket.store, plan, clock=ManualClock())
    assert report.rows_published == 2
    view = bucket.view()
    assert view.ids() == ["a", "b", "c", "d"]
    assert view.covered == {damaged}
    repaired = [parse_segment_key(bucket.prefix, key) for key in report.segments]
    assert repaired[-1] is not None
    assert (repaired[-1].writer, repaired[-1].seq) == (bucket.writer, 2)
    assert plan_rebuild(bucket.store, bucket.prefix).packs == ()


def test_a_gap_that_filled_itself_is_left_alone() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode("a", 1)])
    bucket.skip_segment(A)
    bucket.add_segment(writer=A)
    plan = plan_rebuild(bucket.store, bucket.prefix)
    late = Bucket(bucket.store)
    late.add_segment(rows, writer=A)  # the listing was late
    report = execute_rebuild(bucket.store, plan, clock=ManualClock())
    assert fetch_listing(bucket.store, bucket.prefix).gaps == ()
    assert [key for key in report.segments if A.hex in key.text] == []
    assert bucket.view().ids() == ["a"]


def test_a_gap_that_opened_after_the_plan_is_not_closed() -> None:
    bucket = Bucket()
    bucket.skip_segment(A)
    bucket.add_segment(writer=A)
    plan = plan_rebuild(bucket.store, bucket.prefix)
    bucket.skip_segment()  # its rows may be in packs that the plan did not list
    bucket.add_segment()
    execute_rebuild(bucket.store, plan, clock=ManualClock())
    assert [gap.writer for gap in fetch_listing(bucket.store, bucket.prefix).gaps] == [bucket.writer]


def test_an_interrupted_rebuild_leaves_the_manifest_incomplete_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "_SEGMENT_ROWS", 1)

    class Stopping(MemoryStore):
        left = 10

        def fetch_chunks(
            self, key: ObjectKey, *, chunk_bytes: int = 8 << 20, version_id: str | None = None
        ) -> Iterator[bytes]:
            if Stopping.left <= 0:
                raise EndpointUnreachable("no route")
            Stopping.left -= 1
            return super().fetch_chunks(key, chunk_bytes=chunk_bytes, version_id=version_id)

    bucket = Bucket(Stopping())
    for at in range(20):
        bucket.add_tar([encode(f"s{at:02d}", at)])
    bucket.skip_segment(A)
    bucket.add_segment(writer=A)
    with pytest.raises(EndpointUnreachable):
        _rebuild(bucket)
    with pytest.raises(ManifestIncomplete):
        bucket.view()
    left = plan_rebuild(bucket.store, bucket.prefix)
    assert 10 <= len(left.packs) < 20
    Stopping.left = 100
    execute_rebuild(bucket.store, left, clock=ManualClock())
    assert bucket.view().ids() == [f"s{at:02d}" for at in range(20)]
    assert bucket.view().duplicate_count == 0


def test_a_segment_that_does_not_read_back_ends_the_rebuild() -> None:
    class Forgetting(MemoryStore):
        def fresh_reader(self) -> ObjectReader:
            return MemoryStore()

    bucket = Bucket(Forgetting())
    bucket.add_tar([encode("a", 1)])
    with pytest.raises(NotVerified):
        _rebuild(bucket)


def test_an_absurd_gap_is_not_filled() -> None:
    bucket = Bucket()
    source = Bucket()
    source.skip_segment(A)
    for _ in range(20_000):
        source.skip_segment(A)
    key = source.add_segment(writer=A)
    bucket.store.put(key, source.store.fetch(key), crc64nvme=None, metadata={})
    with pytest.raises(ManifestIncomplete, match="no such number was ever written"):
        _rebuild(bucket)


# --- findings ------------------------------------------------------------------------------------------------------


def test_a_damaged_pack_is_a_finding_and_gives_no_row() -> None:
    bucket = Bucket()
    rows = bucket.add_tar([encode("a", 1), encode("b", 2), encode("c", 3)])
    good = bucket.add_tar([encode("d", 4)])
    bucket.damage(rows[0].object.key, at=rows[1].entry.offset + rows[1].entry.length - 1)
    before = bucket.store.fetch(rows[0].object.key)
    report = _rebuild(bucket)
    assert bucket.view().ids() == ["d"]
    assert _found(report) == [(FindingKind.DIVERGENT, rows[0].object.key)]
    assert "2 samples in it still verify" in report.findings[0].detail
    assert report.packs_read == 2
    assert bucket.store.fetch(rows[0].object.key) == before
    assert bucket.store.fetch(good[0].object.key)


@pytest.mark.parametrize("keep", [0, 100, 512, 2000])
def test_a_shortened_pack_is_a_finding(keep: int) -> None:
    bucket = Bucket()
    key = bucket.add_tar([encode("a", 1)])[0].object.key
    bucket.store.put(key, bucket.store.fetch(key)[:keep], crc64nvme=None, metadata={})
    report = _rebuild(bucket)
    assert _found(report) == [(FindingKind.DIVERGENT, key)]
    assert len(bucket.view()) == 0


def test_foreign_objects_among_the_packs_are_findings() -> None:
    bucket = Bucket()
    strange = [ObjectKey(f"{bucket.prefix}/packs/{name}") for name in ("notes.txt", f"{A}/000000000001-xyz.tar")]
    for key in strange:
        bucket.store.put(key, b"?", crc64nvme=None, metadata={})
    report = _rebuild(bucket)
    assert sorted(_found(report)) == [(FindingKind.UNTRACKED, key) for key in sorted(strange)]


def test_bytes_that_are_no_pack_under_a_packs_name_are_a_finding() -> None:
    bucket = Bucket()
    keys = []
    for kind in PackKind:
        data = f"hello {kind.value}".encode()
        keys.append(pack_key(bucket.prefix, A, seq=1, digest=Digest.of(data), kind=kind))
        bucket.store.put(keys[-1], data, crc64nvme=None, metadata={})
    report = _rebuild(bucket)
    assert sorted(_found(report), key=lambda f: f[1]) == [(FindingKind.DIVERGENT, key) for key in sorted(keys)]
    assert report.rows_published == 0


def test_sound_members_of_an_odd_pack_are_restored_and_the_rest_reported() -> None:
    bucket = Bucket()
    good, bad, last = encode("a", 1), encode("b", 2), encode("c", 3)
    spoilt = bytearray(b"".join(bad.chunks()))
    spoilt[-1] ^= 1
    data = run_member(RUN)
    data += member_header(SampleId("a"), good.length) + b"".join(good.chunks()) + member_padding(good.length)
    data += member_header(SampleId("b"), bad.length) + bytes(spoilt) + member_padding(bad.length)
    data += member_header(SampleId("other"), last.length) + b"".join(last.chunks()) + member_padding(last.length)
    bucket.put_pack(data + TRAILER, [], kind=PackKind.TAR)
    report = _rebuild(bucket)
    assert bucket.view().ids() == ["a", "c"]
    assert [finding.kind for finding in report.findings] == [FindingKind.DIVERGENT] * 2
    assert "does not match its digest" in report.findings[0].detail
    assert "'other.safetensors' holds the sample 'c'" in report.findings[1].detail


def test_a_pack_sealed_by_recovery_has_no_trailer_and_is_restored() -> None:
    bucket = Bucket()
    sample = encode("a", 1)
    data = run_member(RUN) + member_header(SampleId("a"), sample.length) + b"".join(sample.chunks())
    bucket.put_pack(data + member_padding(sample.length), [], kind=PackKind.TAR)
    assert _rebuild(bucket).findings == ()
    assert bucket.view().ids() == ["a"]


class _Odd(MemoryStore):
    """Lists one object that HEAD or GET then tells something else about."""

    key: ObjectKey | None = None
    is_gone = False
    is_archived = False
    spoil_times = 0

    def head(self, key: ObjectKey) -> ObjectStat:
        stat = super().head(key)
        archived = self.is_archived and key == self.key
        return dataclasses.replace(stat, is_readable=not archived, storage_class="DEEP" if archived else None)

    def fetch_chunks(
        self, key: ObjectKey, *, chunk_bytes: int = 8 << 20, version_id: str | None = None
    ) -> Iterator[bytes]:
        if key == self.key and self.is_gone:
            key = ObjectKey("gone")
        chunks = list(super().fetch_chunks(key, chunk_bytes=100))
        if key == self.key and self.spoil_times:
            self.spoil_times -= 1
            chunks[0] = bytes(100)
        return iter(chunks)


def _odd_bucket() -> tuple[_Odd, Bucket]:
    store = _Odd()
    bucket = Bucket(store)
    store.key = bucket.add_tar([encode("a", 1)])[0].object.key
    bucket.add_tar([encode("b", 2)])
    return store, bucket


def test_a_listed_object_without_bytes_is_dangling() -> None:
    store, bucket = _odd_bucket()
    store.is_gone = True
    assert _found(_rebuild(bucket)) == [(FindingKind.DANGLING, store.key)]
    assert bucket.view().ids() == ["b"]


def test_an_archived_pack_stays_an_orphan() -> None:
    store, bucket = _odd_bucket()
    store.is_archived = True
    report = _rebuild(bucket)
    assert _found(report) == [(FindingKind.ORPHAN, store.key)]
    assert "storage class DEEP" in report.findings[0].detail
    store.is_archived = False
    assert _rebuild(bucket).findings == ()
    assert bucket.view().ids() == ["a", "b"]


def test_a_damaged_transfer_is_read_once_more() -> None:
    store, bucket = _odd_bucket()
    store.spoil_times = 1
    assert _rebuild(bucket).findings == ()
    assert bucket.view().ids() == ["a", "b"]


def test_two_runs_and_their_texts_come_back() -> None:
    bucket = Bucket()
    other = Run.of({"model": "z"})
    bucket.add_tar([encode("a", 1)])
    bucket.add_tar([encode("b", 2, run=other)], run=other)
    assert _rebuild(bucket).findings == ()
    assert bucket.view().runs == {RUN.digest: RUN, other.digest: other}
    assert bucket.view().run_counts == {RUN.digest: 1, other.digest: 1}


def test_a_tombstone_of_another_place_takes_nothing() -> None:
    bucket = Bucket()
    row = bucket.add_tar([encode("a", 1)])[0]
    bucket.add_segment(tombstones=[Tombstone(sample_id=SampleId("a"), key=row.object.key, offset=row.entry.offset + 1)])
    _rebuild(bucket)
    assert bucket.view().ids() == ["a"]
