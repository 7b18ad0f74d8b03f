"""Compaction: what it covers, what it refuses, and what a crash or a lying endpoint leaves."""

from __future__ import annotations

import pytest

from durastore.errors import EndpointUnreachable, IntegrityError, ManifestIncomplete
from durastore.manifest.compaction import execute_compaction, plan_compaction
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import fetch_view
from durastore.model import SampleId, WriterId
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from tests.unit.manifest_bucket import Bucket, encode, tombstone_of


@pytest.fixture
def bucket() -> Bucket:
    bucket, rows = Bucket(), []
    for number in range(4):
        rows = bucket.add_tar([encode(f"s/{number}", number), encode(f"t/{number}", number)])
        bucket.add_segment(rows, writer=WriterId.mint() if number % 2 else None)
    bucket.add_segment([], tombstones=[tombstone_of(rows[0])])
    return bucket


def test_one_segment_takes_the_place_of_all(bucket: Bucket) -> None:
    before = bucket.view()
    plan = plan_compaction(bucket.store, bucket.prefix)
    assert (plan.read_count, plan.samples, plan.rows, plan.tombstones, plan.rows_left_out) == (5, 7, 7, 1, 1)
    report = execute_compaction(bucket.store, plan)
    after = bucket.view()
    assert after.covered == frozenset(plan.covers)
    assert len(plan.covers) == 5
    assert report.segment not in plan.covers
    assert after.ids() == before.ids()
    assert [after.row_at(n) for n in range(7)] == [before.row_at(n) for n in range(7)]
    assert after.runs == before.runs
    assert after.tombstones() == before.tombstones()


def test_a_plan_writes_nothing(bucket: Bucket) -> None:
    listed = fetch_snapshot(bucket.store, bucket.prefix)
    plan_compaction(bucket.store, bucket.prefix)
    assert fetch_snapshot(bucket.store, bucket.prefix) == listed


def test_what_a_covered_segment_covered_stays_covered(bucket: Bucket) -> None:
    first = plan_compaction(bucket.store, bucket.prefix)
    execute_compaction(bucket.store, first)
    late = bucket.add_segment(bucket.add_tar([encode("u", 9)]))
    second = plan_compaction(bucket.store, bucket.prefix)
    assert set(second.covers) > {*first.covers, late}
    execute_compaction(bucket.store, second)
    # the row that a tombstone took out is in no segment that is read any more, and does not come back
    assert "s/3" not in bucket.view().ids()
    assert "u" in bucket.view().ids()


def test_a_segment_that_cannot_be_read_is_never_covered(bucket: Bucket) -> None:
    key = bucket.add_segment(bucket.add_tar([encode("v", 9)]))
    bucket.damage(key, at=40)
    listed = fetch_snapshot(bucket.store, bucket.prefix)
    with pytest.raises(ManifestIncomplete, match="unreadable"):
        plan_compaction(bucket.store, bucket.prefix)
    assert fetch_snapshot(bucket.store, bucket.prefix) == listed


def test_a_gap_is_no_base_for_it(bucket: Bucket) -> None:
    bucket.skip_segment()
    bucket.add_segment(bucket.add_tar([encode("v", 9)]))
    with pytest.raises(ManifestIncomplete, match="lacks"):
        plan_compaction(bucket.store, bucket.prefix)


def test_one_segment_is_left_as_it_is() -> None:
    bucket = Bucket()
    bucket.add_segment(bucket.add_tar([encode("a", 1)]))
    plan = plan_compaction(bucket.store, bucket.prefix)
    assert not plan.is_needed
    assert execute_compaction(bucket.store, plan).segment is None


def test_a_row_of_a_writer_that_goes_on_meanwhile_is_kept(bucket: Bucket) -> None:
    plan = plan_compaction(bucket.store, bucket.prefix)
    row = bucket.view().row(SampleId("s/1"))
    assert row is not None
    bucket.add_segment(bucket.add_tar([encode("w", 5)]), tombstones=[tombstone_of(row)])
    execute_compaction(bucket.store, plan)
    ids = bucket.view().ids()
    assert "w" in ids
    assert "s/1" not in ids  # the later tombstone holds for the compacted row


@pytest.mark.parametrize("fault", [Fault.DROP_REQUEST, Fault.DROP_RESPONSE])
def test_an_outage_leaves_the_dataset(bucket: Bucket, fault: Fault) -> None:
    before = bucket.view()
    plan = plan_compaction(bucket.store, bucket.prefix)
    faulty = FaultyStore(
        bucket.store, FaultRule(op="put", fault=fault), FaultRule(op="fetch", fault=Fault.DROP_REQUEST)
    )
    with pytest.raises(EndpointUnreachable):
        execute_compaction(faulty, plan)
    assert bucket.view().ids() == before.ids()
    execute_compaction(bucket.store, plan_compaction(bucket.store, bucket.prefix))
    assert bucket.view().ids() == before.ids()


def test_a_segment_damaged_on_the_way_is_put_again(bucket: Bucket) -> None:
    before = bucket.view()
    plan = plan_compaction(bucket.store, bucket.prefix)
    faulty = FaultyStore(bucket.store, FaultRule(op="put", fault=Fault.FLIP_BYTE))
    assert execute_compaction(faulty, plan).segment is not None
    assert fetch_view(faulty, fetch_snapshot(faulty, bucket.prefix)).ids() == before.ids()
    assert faulty.count("put") == 2


def test_an_endpoint_that_damages_every_copy_is_told(bucket: Bucket) -> None:
    plan = plan_compaction(bucket.store, bucket.prefix)
    faulty = FaultyStore(bucket.store, FaultRule(op="put", fault=Fault.FLIP_BYTE, count=None))
    with pytest.raises(IntegrityError, match="other bytes"):
        execute_compaction(faulty, plan)
