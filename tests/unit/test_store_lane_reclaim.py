"""When a lane tries to reclaim: a lane that was not started, asked for one round at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from durastore.errors import EndpointUnreachable
from durastore.model import PackState
from durastore.spool.journal import PackRecord
from durastore.spool.records import LostSample
from durastore.store.lane import Lane
from durastore.verify.verifier import ProofBatch
from tests.unit.reclaim_lab import SETTLE_S, ReclaimLab, lab, services_of
from tests.unit.test_reclaim_engine import flip

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


class Members:
    """What a store holds, as far as it hears of losses."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def forget_lost(self, lost: Iterable[LostSample], *, lane: int) -> None:
        del lane
        self.lost += [sample.sample_id.text for sample in lost]


def cut_at(monkeypatch: pytest.MonkeyPatch, record: PackRecord) -> None:
    """The connection ends at the proof of this pack."""
    plain = ProofBatch.prove

    def prove(batch: ProofBatch, planned: PackRecord, fd: int) -> Any:
        if planned.pack_id == record.pack_id:
            raise EndpointUnreachable("the connection was cut")
        return plain(batch, planned, fd)

    monkeypatch.setattr(ProofBatch, "prove", prove)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_loss_is_told_although_the_same_batch_ends_in_an_error(
    lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    damaged, other, _ = lab.settled("a", "b", "c")
    (entry,) = lab.spool.journal.entries(damaged.pack_id)
    flip(lab.path(damaged), entry.offset + entry.length - 1)
    assert damaged.key is not None
    lab.objects.lose(damaged.key)
    if is_cut:
        cut_at(monkeypatch, other)
    members = Members()
    lane = lane_of(lab, reclaim="eager")
    lane._membership = cast(Any, members)
    for _ in range(3):
        try_once(lane)
        lab.clock.advance(31)
    assert lab.state(damaged) is PackState.LOST
    assert members.lost == ["a"]
    assert [error.message for error in lane.failures() if "LOST: a" in error.message]


def test_a_pack_that_neither_side_has_is_told_although_the_same_batch_ends_in_an_error(
    lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone, other, _ = lab.settled("a", "b", "c")
    lab.path(gone).rename(tmp_path / "taken")
    assert gone.key is not None
    lab.objects.lose(gone.key)
    cut_at(monkeypatch, other)
    lane = lane_of(lab, reclaim="eager")
    try_once(lane)
    failure = lane.failure_of(gone.pack_id)
    assert failure is not None
    assert "does not give it back" in failure.message
    assert lab.state(gone) is PackState.MANIFESTED, "the next opening looks twice"


def test_a_librarys_panic_in_a_lane_stops_put_and_does_not_pass_unseen(
    lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """What Rust libraries raise for a panic is no `Exception`."""

    def panic(_: Lane) -> bool:
        raise Panic("index out of bounds")

    monkeypatch.setattr(Lane, "_step", panic)
    services = services_of(lab)
    lane, board = Lane(0, lab.spool, services=services, membership=cast(Any, None)), services.board
    lane.start(None)
    assert lane.stop(20)
    assert board.fatal is not None
    assert "the upload pipeline stopped: Panic('index out of bounds')" in board.fatal.message
