"""When a lane tries to reclaim: a lane that was not started, asked for one round at a time."""

from __future__ import annotations

from typing import Any, cast

import pytest

from durastore.model import PackState
from durastore.store.lane import Lane
from tests.unit.reclaim_lab import SETTLE_S, ReclaimLab, lab, services_of

__all__ = ["lab"]


def lane_of(lab: ReclaimLab, *, is_draining: bool = False, **options: Any) -> Lane:
    services = services_of(lab, **({"settle_s": SETTLE_S, "evidence_ttl_s": 1_000.0} | options))
    if is_draining:
        services.board.hurry(draining=True)
    return Lane(0, lab.spool, services=services, membership=cast(Any, None))


def try_once(lane: Lane) -> bool:
    lane._start_reclaim()
    return lane._take_outcomes()


@pytest.mark.parametrize("is_draining", [False, True])
def test_never_means_never_also_for_a_drain(lab: ReclaimLab, is_draining: bool) -> None:
    records = lab.settled("a", "b")
    asked = len(lab.objects.calls)
    assert not try_once(lane_of(lab, is_draining=is_draining, reclaim="never", low_watermark_bytes=0))
    assert all(lab.is_here(record) for record in records)
    assert len(lab.objects.calls) == asked


def test_lazy_keeps_what_fits_and_a_drain_frees_it(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b")
    assert not try_once(lane_of(lab, reclaim="lazy", low_watermark_bytes=1 << 30))
    assert all(lab.is_here(record) for record in records)
    assert try_once(lane_of(lab, is_draining=True, reclaim="lazy", low_watermark_bytes=1 << 30))
    assert sorted(lab.unlinked) == sorted(record.name for record in records)


def test_eager_frees_what_has_settled_within_the_batch(lab: ReclaimLab) -> None:
    records = lab.settled("a", "b", "c")
    late = lab.manifested("d")
    lane = lane_of(lab, reclaim="eager", reclaim_batch_packs=2)
    assert try_once(lane)
    assert lab.unlinked == [record.name for record in records[:2]]
    assert not try_once(lane), "the next batch comes a second later"
    lab.clock.advance(1)
    assert try_once(lane)
    assert lab.unlinked == [record.name for record in records]
    assert lab.is_here(late[0])


def test_a_lane_that_distrusts_its_endpoint_asks_nothing(lab: ReclaimLab) -> None:
    lab.settled("a")
    lab.verifier.stop_reclaiming("for the test")
    asked = len(lab.objects.calls)
    assert not try_once(lane_of(lab, reclaim="eager"))
    assert (len(lab.objects.calls), lab.observer.count("reclaim.refused")) == (asked, 0)


def test_a_refusal_is_told_and_tried_again_later(lab: ReclaimLab) -> None:
    (record,) = lab.settled("a")
    lane = lane_of(lab, reclaim="eager")
    lab.spool._lock.close()
    assert not try_once(lane)
    assert lab.observer.count("reclaim.refused") == 1
    lab.clock.advance(29)
    assert not try_once(lane)
    assert lab.observer.count("reclaim.refused") == 1
    lab.clock.advance(1)
    assert not try_once(lane)
    assert lab.observer.count("reclaim.refused") == 2
    assert lab.is_here(record)


def test_a_pack_whose_samples_are_all_superseded_is_still_waited_for(lab: ReclaimLab) -> None:
    record = lab.uploaded("a")
    (entry,) = lab.spool.journal.entries(record.pack_id)
    lab.spool.journal.drop_samples(record.pack_id, [entry.sample_id])
    (waited,) = lane_of(lab).unmanifested()
    assert (waited.pack_id, waited.sample_count) == (record.pack_id, 0)


def test_expired_evidence_is_taken_anew(lab: ReclaimLab) -> None:
    (record,) = lab.manifested("a")
    lab.clock.advance(1_001)
    assert not try_once(lane_of(lab, reclaim="eager"))
    assert lab.state(record) is PackState.UPLOADED
    assert lab.is_here(record)
