"""Which packs a reclaim may consider: a pure question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from durastore.clock import ManualClock
from durastore.model import PackState
from durastore.reclaim.plan import ReclaimPlan, ReclaimPolicy, plan_reclaim
from durastore.spool.records import PackRecord
from tests.unit.verify_lab import DATA, evidence, record

SIZE = len(DATA)


def plan(records: list[PackRecord], clock: ManualClock, used_bytes: int = 0, **changes: Any) -> ReclaimPlan:
    facts: dict[str, Any] = {
        "mode": "eager",
        "low_bytes": 0,
        "settle_s": 600.0,
        "evidence_ttl_s": 10_000.0,
        "batch_packs": 100,
        "batch_bytes": 1 << 30,
    }
    policy = ReclaimPolicy(**(facts | changes))
    return plan_reclaim(records, policy=policy, used_bytes=used_bytes, now=clock.stamp())


def ids(made: ReclaimPlan) -> list[int]:
    return [pack.pack_id for pack in made.packs]


def packs(clock: ManualClock, count: int) -> list[PackRecord]:
    return [record(clock, pack_id=number) for number in range(count, 0, -1)]


def test_never_means_never() -> None:
    clock = ManualClock()
    made = packs(clock, 3)
    clock.advance(5_000)
    assert plan(made, clock, 1 << 40, mode="never") == ReclaimPlan(packs=())


def test_eager_takes_the_oldest_settled_first_within_the_batch() -> None:
    clock = ManualClock()
    made = packs(clock, 5)
    assert ids(plan(made, clock)) == []
    clock.advance(600)
    assert ids(plan(made, clock)) == [1, 2, 3, 4, 5]
    assert ids(plan(made, clock, batch_packs=2)) == [1, 2]
    assert ids(plan(made, clock, batch_bytes=2 * SIZE)) == [1, 2]
    assert ids(plan(made, clock, batch_bytes=1)) == [1]  # one pack larger than the limit is a batch of its own


def test_lazy_stops_at_the_low_watermark() -> None:
    clock = ManualClock()
    made = packs(clock, 5)
    clock.advance(600)
    assert ids(plan(made, clock, 5 * SIZE, mode="lazy", low_bytes=3 * SIZE)) == [1, 2]
    assert ids(plan(made, clock, 3 * SIZE, mode="lazy", low_bytes=3 * SIZE)) == []


@pytest.mark.parametrize("state", [state for state in PackState if state is not PackState.MANIFESTED])
def test_only_manifested_packs_are_considered(state: PackState) -> None:
    clock = ManualClock()
    made = [record(clock, state=state)]
    clock.advance(600)
    assert plan(made, clock) == ReclaimPlan(packs=())


def test_expired_evidence_is_to_be_taken_anew() -> None:
    clock = ManualClock()
    old = record(clock)
    clock.reboot()
    fresh = record(clock, pack_id=2)
    bare = record(clock, pack_id=3, evidence=None)
    clock.advance(700)
    made = plan([old, fresh, bare], clock)
    assert ids(made) == [2]
    assert [pack.pack_id for pack in made.stale] == [1, 3]
    clock.advance(9_300)  # as old as it may be
    assert ids(plan([fresh], clock)) == [2]
    clock.advance(1)
    assert [pack.pack_id for pack in plan([fresh], clock).stale] == [2]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="reclaim mode"):
        plan([], ManualClock(), mode="now")


def test_evidence_of_this_moment_is_used() -> None:
    clock = ManualClock()
    old = record(clock)
    clock.advance(9_999)
    assert ids(plan([replace(old, evidence=evidence(clock))], clock)) == [1]
