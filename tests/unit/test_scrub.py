"""A scrub: what it finds, what it does not take for damage, and that it goes on after a kill."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.clock import Clock, ManualClock, SystemClock
from durastore.codec.encode import SampleContext, encode_sample
from durastore.errors import ConfigError, EndpointUnreachable, StoreMissing
from durastore.model import Digest, ManifestRow, ObjectKey, SampleId, WriterId
from durastore.objectstore.columns import column_page
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ListPage, ObjectStat
from durastore.reconcile import object_check
from durastore.reconcile.findings import FindingKind
from durastore.reconcile.scrub import ScrubReport, ScrubRequest, scrub
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from tests.unit.manifest_bucket import RUN, Bucket, encode, tombstone_of


@pytest.fixture
def bucket() -> Bucket:
    bucket = Bucket()
    bucket.mark()
    for number in range(5):
        bucket.add_segment(bucket.add_tar([encode(f"{number}/{n}", 10 * number + n) for n in range(4)]))
    bucket.add_segment([bucket.add_single(encode("single", 99))])
    return bucket


def look(bucket: Bucket, *, store: Any = None, clock: Clock | None = None, **changes: Any) -> ScrubReport:
    request = ScrubRequest(**changes)
    where = store if store is not None else bucket.store
    return scrub(where, bucket.prefix, request=request, clock=clock or ManualClock())


def row_of(bucket: Bucket, sample_id: str) -> ManifestRow:
    row = bucket.view().row(SampleId(sample_id))
    assert row is not None
    return row


def kinds(report: ScrubReport) -> dict[str, FindingKind]:
    return {finding.key.text: finding.kind for finding in report.findings}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_nothing_is_found_where_nothing_is_wrong(bucket: Bucket, share: float) -> None:
    store = FaultyStore(bucket.store)
    report = look(bucket, store=store, share=share)
    assert (report.findings, report.unverified, report.exit_code) == ((), (), 0)
    assert (report.samples, report.objects, report.listed, report.unlisted) == (21, 6, 6, 0)
    assert report.objects_read == (6 if share else 0)
    assert report.bytes_read == (report.bytes_recorded if share else 0)
    assert store.count("head") == 0  # the listing was enough to skip these
    assert store.count("put") == 0


def test_sizes_alone_find_what_is_missing_and_short(bucket: Bucket) -> None:
    gone, short = row_of(bucket, "1/0").object.key, row_of(bucket, "single").object.key
    bucket.store.put(short, bucket.store.fetch(short)[:-9], crc64nvme=None, metadata={})
    store = FaultyStore(Lacking(bucket.store, gone))
    report = look(bucket, store=store)
    assert kinds(report) == {gone.text: FindingKind.DANGLING, short.text: FindingKind.TRUNCATED}
    assert report.exit_code == 12
    assert store.count("head") == 4  # each twice, on connections of their own


class Lacking:
    """A store that lacks some objects altogether."""

    def __init__(self, inner: MemoryStore, *gone: ObjectKey, in_listing_only: bool = False) -> None:
        self.inner, self.gone, self.in_listing_only = inner, gone, in_listing_only

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def fresh_reader(self) -> Any:
        return self

    def head(self, key: ObjectKey) -> ObjectStat:
        absent = ObjectKey("nothing/here")
        return self.inner.head(absent if key in self.gone and not self.in_listing_only else key)

    def list(self, prefix: str, **asked: Any) -> Any:
        for page in self.inner.list(prefix, **asked):
            yield [stat for stat in page if stat.key not in self.gone]


def test_a_key_that_the_listing_leaves_out_is_not_called_missing(bucket: Bucket) -> None:
    # case B18, case B141
    keys = sorted(bucket.view().object_keys())
    report = look(bucket, store=Lacking(bucket.store, *keys, in_listing_only=True))
    assert (report.findings, report.unlisted, report.exit_code) == ((), 6, 0)


def test_one_stale_answer_calls_nothing_missing(bucket: Bucket) -> None:
    key = row_of(bucket, "1/0").object.key
    store = FaultyStore(
        Lacking(bucket.store, key, in_listing_only=True),
        FaultRule(op="head", fault=Fault.ABSENT),
    )
    assert look(bucket, store=store).findings == ()
    assert store.count("head") == 2


def test_a_size_that_is_not_told_is_not_a_wrong_one(bucket: Bucket) -> None:
    # case B64
    class Sizeless(Lacking):
        def head(self, key: ObjectKey) -> ObjectStat:
            return replace(self.inner.head(key), size_bytes=None)

        def list(self, prefix: str, **asked: Any) -> Any:
            page: ListPage
            for page in self.inner.list(prefix, **asked):
                yield [replace(stat, size_bytes=None) for stat in page]

    report = look(bucket, store=Sizeless(bucket.store))
    assert (report.findings, len(report.unverified), report.exit_code) == ((), 6, 13)


def test_sizes_come_from_columns_where_the_store_has_them(bucket: Bucket) -> None:
    class Columns(Lacking):
        """Lists the packs as columns only; one object has another size there than by itself."""

        def list(self, prefix: str, **asked: Any) -> Any:
            assert "/packs/" not in prefix
            return self.inner.list(prefix, **asked)

        def list_columns(self, prefix: str) -> Any:
            for page in map(column_page, self.inner.list(prefix)):
                yield replace(page, sizes=[_wrong(*entry) for entry in zip(page.keys, page.sizes, strict=True)])

    def _wrong(key: str, size_bytes: int) -> int:
        return size_bytes + 1 if key == odd else size_bytes

    odd = row_of(bucket, "single").object.key.text
    report = look(bucket, store=Columns(bucket.store))
    assert (report.listed, report.unlisted, report.exit_code) == (5, 0, 0)  # the odd one was asked for, and is right


@pytest.mark.parametrize("fault", [Fault.ZERO_BLOCK, Fault.FLIP_BYTE])
def test_bit_rot_is_found_by_reading_only(fault: Fault) -> None:
    # case B61, case B79
    bucket = Bucket()
    bucket.mark()
    bucket.add_segment(bucket.add_tar([encode(f"s{n}", n, rows=200) for n in range(3)]))
    (key,) = bucket.view().object_keys()
    store = FaultyStore(bucket.store)
    store.damage(key, fault)
    assert look(bucket, store=store).exit_code == 0
    report = look(bucket, store=store, share=1.0)
    (finding,) = report.findings
    assert (finding.kind, finding.key, report.exit_code) == (FindingKind.DIVERGENT, key, 12)
    if fault is Fault.ZERO_BLOCK:
        assert "1 of its 3 samples do not verify (s0: " in finding.detail
    else:
        assert "its 3 samples still verify" in finding.detail  # the flipped byte is in the tar's first header


def test_a_bad_transfer_is_not_bit_rot(bucket: Bucket) -> None:
    store = FaultyStore(bucket.store, FaultRule(op="fetch_chunks", fault=Fault.WRONG_BYTE))
    report = look(bucket, store=store, share=1.0)
    assert (report.findings, report.bad_transfers, report.exit_code) == ((), 1, 0)


def test_an_object_whose_data_are_gone_is_found_by_reading(bucket: Bucket) -> None:
    key = row_of(bucket, "2/0").object.key
    rule = FaultRule(op="fetch_chunks", fault=Fault.ABSENT, key_part=key.text, count=None)
    report = look(bucket, store=FaultyStore(bucket.store, rule), share=1.0)
    assert kinds(report) == {key.text: FindingKind.DANGLING}
    rule = FaultRule(op="fetch_chunks", fault=Fault.TRUNCATE, key_part=key.text, count=None)
    report = look(bucket, store=FaultyStore(bucket.store, rule), share=1.0)
    assert kinds(report) == {key.text: FindingKind.TRUNCATED}


def test_what_cannot_be_looked_at_is_13_and_not_a_finding(bucket: Bucket) -> None:
    key = row_of(bucket, "2/0").object.key
    rule = FaultRule(op="fetch_chunks", fault=Fault.FORBIDDEN, key_part=key.text, count=None)
    report = look(bucket, store=FaultyStore(bucket.store, rule), share=1.0)
    assert (report.findings, report.exit_code, report.objects_read) == ((), 13, 5)
    assert [each.key for each in report.unverified] == [key]


def test_an_endpoint_that_is_gone_ends_it(bucket: Bucket) -> None:
    rule = FaultRule(op="fetch_chunks", fault=Fault.DROP_REQUEST, first=3, count=None)
    with pytest.raises(EndpointUnreachable):
        look(bucket, store=FaultyStore(bucket.store, rule), share=1.0)


# --- the manifest itself -------------------------------------------------------------------------------------------


def test_damage_to_the_manifest_is_found_and_the_rest_is_looked_at(bucket: Bucket) -> None:
    bucket.skip_segment()
    bad = bucket.add_segment(bucket.add_tar([encode("late", 3)]))
    bucket.damage(bad, at=50)
    stranger = ObjectKey(f"{bucket.prefix}/manifest/notes.txt")
    bucket.store.put(stranger, b"x", crc64nvme=None, metadata={})
    report = look(bucket, share=1.0)
    assert kinds(report) == {
        f"{bucket.prefix}/manifest/{bucket.writer}": FindingKind.DANGLING,
        bad.text: FindingKind.DIVERGENT,
        stranger.text: FindingKind.UNTRACKED,
    }
    assert "1 are missing: 7" in report.findings[0].detail
    assert report.objects_read == 6


def test_a_missing_marker_is_a_finding() -> None:
    bucket = Bucket()
    bucket.add_segment(bucket.add_tar([encode("a", 1)]))
    assert list(kinds(look(bucket)).values()) == [FindingKind.DANGLING]
    with pytest.raises(StoreMissing):
        scrub(MemoryStore(), "nothing", request=ScrubRequest(), clock=ManualClock())


def test_rows_that_lead_elsewhere_are_found() -> None:
    bucket = Bucket(prefix="p")
    bucket.mark()
    row = bucket.add_tar([encode("a", 1)])[0]

    def at(sample_id: str, key: str, **changes: Any) -> ManifestRow:
        entry = replace(row.entry, sample_id=SampleId(sample_id))
        return ManifestRow(entry=entry, object=replace(row.object, key=ObjectKey(key), **changes))

    outside = at("b", "another/packs/x")
    beyond = ManifestRow(entry=replace(row.entry, sample_id=SampleId("c"), length=10**9), object=row.object)
    bucket.add_segment([row, outside, beyond])
    key = row.object.key.text
    other_size = at("d", key, size_bytes=row.object.size_bytes + 1)
    bucket.add_segment([other_size], writer=WriterId.mint())
    wrong = at("e", key.replace(row.object.digest.short, "0" * 16), digest=Digest.of(b"another"))
    bucket.add_segment([wrong], writer=WriterId.mint())
    report = look(bucket)
    found = {(f.key.text, f.detail) for f in report.findings}
    assert any(k == "another/packs/x" and "outside" in detail for k, detail in found)
    assert (key, "a manifest row points to bytes that it does not have") in found
    assert (key, "manifest rows disagree on its size or digest") in found
    assert (wrong.object.key.text, "its key carries another digest than its rows") in found
    assert report.exit_code == 12


def test_rows_that_overlap_or_are_of_other_samples_are_found(bucket: Bucket) -> None:
    row = row_of(bucket, "single")
    other = ManifestRow(entry=replace(row.entry, sample_id=SampleId("imposter")), object=row.object)
    bucket.add_segment([other])
    (finding,) = look(bucket, share=1.0).findings
    assert "as they were written, and its rows say otherwise" in finding.detail
    assert "2 of its 2 samples" in finding.detail  # the place of one is the place of the other


def test_a_row_that_was_taken_out_is_not_looked_for(bucket: Bucket) -> None:
    row = row_of(bucket, "single")
    bucket.add_segment([], tombstones=[tombstone_of(row)])
    report = look(bucket, store=Lacking(bucket.store, row.object.key), share=1.0)
    assert (report.objects, report.findings) == (5, ())


# --- shares, rate and state ----------------------------------------------------------------------------------------


def test_a_share_takes_at_least_one_object_and_another_each_time(bucket: Bucket) -> None:
    store = FaultyStore(bucket.store)
    reports = [look(bucket, store=store, share=0.0001) for _ in range(20)]
    assert {report.objects_read for report in reports} == {1}
    assert len({key for op, key in store.calls if op == "fetch_chunks"}) > 1
    assert len({look(bucket, share=0.3).objects_read for _ in range(20)}) > 1


def test_a_large_object_is_checked_in_pieces(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_check, "_CHUNK_BYTES", 1000)
    tensors = {"h": np.arange(1_000_000, dtype=np.int32), "n": np.zeros((0, 4)), "s": np.float32(3)}
    context = SampleContext(run=RUN, meta=None, input_digest=None)
    row = bucket.add_single(encode_sample(SampleId("large"), tensors, context=context))
    bucket.add_segment([row])
    assert look(bucket, share=1.0).exit_code == 0
    bucket.damage(row.object.key, at=row.entry.length - 1_500_000)
    (finding,) = look(bucket, share=1.0).findings
    assert "large: tensor 'h', chunk " in finding.detail


def test_a_rate_is_kept(bucket: Bucket) -> None:
    slept: list[float] = []
    clock = ManualClock(on_sleep=slept.append)
    report = look(bucket, share=1.0, bytes_per_s=1000, clock=clock)
    assert sum(slept) >= report.bytes_read / 1000 / 2


def test_an_interrupt_does_not_wait_for_the_rate(bucket: Bucket) -> None:
    clock = SystemClock()
    begun_s = clock.monotonic()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            look(bucket, share=1.0, bytes_per_s=1, clock=clock)  # hours
    finally:
        timer.cancel()
    assert clock.monotonic() - begun_s < 10


def test_a_scrub_goes_on_where_it_was_ended(bucket: Bucket, tmp_path: Path) -> None:
    state = tmp_path / "state"
    rule = FaultRule(op="fetch_chunks", fault=Fault.DROP_REQUEST, first=4, count=None)
    with pytest.raises(EndpointUnreachable):
        look(bucket, store=FaultyStore(bucket.store, rule), share=1.0, state=state)
    with state.open("ab") as file:
        file.write(b'{"ok": "torn by a kil')
    report = look(bucket, share=1.0, state=state)
    assert report.objects_read_before in (2, 3)  # as many as were noted before the first failure was seen
    assert report.objects_read + report.objects_read_before == 6
    assert report.exit_code == 0
    with pytest.raises(ConfigError, match="has ended"):
        look(bucket, share=1.0, state=state)


def test_what_was_found_wrong_is_looked_at_again(bucket: Bucket, tmp_path: Path) -> None:
    state, key = tmp_path / "state", row_of(bucket, "2/0").object.key
    forbidden = FaultRule(op="fetch_chunks", fault=Fault.FORBIDDEN, key_part=key.text, count=None)
    assert look(bucket, store=FaultyStore(bucket.store, forbidden), share=1.0, state=state).exit_code == 13
    bucket.damage(key, at=600)
    report = look(bucket, share=1.0, state=state)
    assert (report.objects_read, report.objects_read_before, report.exit_code) == (1, 5, 12)


def test_a_state_file_of_something_else_is_left_alone(bucket: Bucket, tmp_path: Path) -> None:
    state = tmp_path / "notes"
    state.write_text("my notes\n")
    with pytest.raises(ConfigError, match="not the state"):
        look(bucket, share=1.0, state=state)
    assert state.read_text() == "my notes\n"
    other = tmp_path / "other"
    rule = FaultRule(op="fetch_chunks", fault=Fault.FORBIDDEN, count=None)
    look(bucket, store=FaultyStore(bucket.store, rule), share=0.5, state=other)
    with pytest.raises(ConfigError, match=r"share 0\.5"):
        look(bucket, share=1.0, state=other)
