"""What an extraction will take, and what is refused before it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from durastore.extract.preflight import Budget, Limits, SampleShape, Workload, plan_preflight
from durastore.extract.rows import RowFailure

GIB = 1 << 30
SHAPE = SampleShape(layers=4, hidden_size=7168, value_bytes=2)
WORK = Workload(samples=1000, tokens=2_000_000, longest_tokens=8192)
LIMITS = Limits(
    pack_bytes=64 << 20,
    single_pack_bytes=16 << 20,
    part_bytes=16 << 20,
    high_watermark_bytes=64 * GIB,
    disk_bytes=500 * GIB,
)


def test_bytes_are_of_the_states_and_ids_and_large_samples_are_objects_of_their_own() -> None:
    found = plan_preflight(WORK, SHAPE, limits=LIMITS, budget=Budget())
    assert found.state_bytes == 2_000_000 * (4 * 7168 * 2 + 8) + 1000 * 2048
    assert found.longest_bytes == 8192 * (4 * 7168 * 2 + 8) + 2048
    assert found.objects == 1000
    assert found.requests == 1000 * (2 + 7 + 2)  # parts of 16 MiB for 109 MiB, begin and end, two looks
    assert (found.seconds, found.compute_cost, found.storage_cost_per_month) == (None, None, None)
    assert found.refusals == ()


def test_small_samples_share_packs() -> None:
    small = replace(WORK, tokens=20_000, longest_tokens=30)
    found = plan_preflight(small, SHAPE, limits=LIMITS, budget=Budget())
    assert found.objects == -(-found.state_bytes // (64 << 20))
    nothing = plan_preflight(Workload(samples=0, tokens=0, longest_tokens=0), SHAPE, limits=LIMITS, budget=Budget())
    assert (nothing.objects, nothing.requests, nothing.refusals) == (0, 0, ())


def test_time_and_money_follow_from_the_rate_and_the_prices() -> None:
    budget = Budget(tokens_per_s=500.0, price_per_hour=9.0, price_per_gb_month=0.02)
    found = plan_preflight(WORK, SHAPE, limits=LIMITS, budget=budget)
    assert found.seconds == pytest.approx(4000)
    assert found.compute_cost == pytest.approx(10.0)
    assert found.storage_cost_per_month == pytest.approx(found.state_bytes / 1e9 * 0.02)


@pytest.mark.parametrize(
    "limits, budget, words",
    [
        (replace(LIMITS, high_watermark_bytes=100 << 20), Budget(), "--high-watermark"),
        (replace(LIMITS, disk_bytes=100 << 20), Budget(), "the spool's disk"),
        (replace(LIMITS, kept_bytes=50 * GIB), Budget(), "--reclaim never"),
        (replace(LIMITS, bucket_bytes=50 * GIB), Budget(), "the bucket's disk"),
        (LIMITS, Budget(tokens_per_s=500.0, deadline_s=3600.0), "the deadline"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(limits: Limits, budget: Budget, words: str) -> None:
    (refusal,) = plan_preflight(WORK, SHAPE, limits=limits, budget=budget).refusals
    assert words in refusal


@pytest.mark.parametrize(
    "limits, budget",
    [
        (replace(LIMITS, high_watermark_bytes=300 << 20), Budget()),  # 448 MiB that compression may bring below it
        (replace(LIMITS, kept_bytes=60 * GIB, bucket_bytes=60 * GIB), Budget()),
        (LIMITS, Budget(tokens_per_s=500.0, deadline_s=4001.0)),
    ],
)
def test_what_might_work_is_not_refused(limits: Limits, budget: Budget) -> None:
    assert plan_preflight(WORK, SHAPE, limits=limits, budget=budget).refusals == ()


def test_rows_that_cannot_be_used_are_told_and_leave_their_exit_code() -> None:
    row = RowFailure(line=3, sample_id=None, stage="read", reason="is not JSON")
    found = plan_preflight(replace(WORK, unusable=2, first_unusable=(row,)), SHAPE, limits=LIMITS, budget=Budget())
    facts = found.render()
    assert (found.exit_code, facts["unusable_rows"]) == (3, 2)
    assert facts["first_unusable"] == [{"line": 3, "stage": "read", "reason": "is not JSON"}]
    assert plan_preflight(WORK, SHAPE, limits=LIMITS, budget=Budget()).exit_code == 0
    hopeless = plan_preflight(found.work, SHAPE, limits=replace(LIMITS, disk_bytes=1), budget=Budget())
    assert hopeless.exit_code == 2
