"""How a file is cut into parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durastore.errors import ConfigError, InvalidInput
from durastore.upload.job import UploadLimits, plan_parts

MIB = 1 << 20


@given(size_bytes=st.integers(1, 5 << 40), part_bytes=st.integers(5 * MIB, 64 * MIB))
def test_parts_cover_the_file_without_gap_overlap_or_empty_part(size_bytes: int, part_bytes: int) -> None:
    # case B86, case B159
    plan = plan_parts(size_bytes, part_bytes=part_bytes)
    assert 1 <= plan.count <= 10_000
    assert plan.part_bytes >= part_bytes
    assert plan.offset(1) == 0
    assert 0 < plan.length(plan.count) <= plan.part_bytes
    assert plan.offset(plan.count) + plan.length(plan.count) == size_bytes
    if plan.count > 1:
        assert plan.length(1) == plan.length(plan.count - 1) == plan.part_bytes == plan.offset(2)


def test_60_gib_at_5_mib_gets_larger_parts() -> None:
    # case B86
    plan = plan_parts(60 << 30, part_bytes=5 * MIB)
    assert plan.part_bytes == 7 * MIB
    assert plan.count == 8778


@pytest.mark.parametrize(
    "size_mib, part_mib, count",
    [(17, 8, 3), (64, 8, 8), (65, 9, 8), (96, 12, 8), (128, 16, 8), (129, 16, 9), (5 << 20, 525, 9987)],
)
def test_part_size_follows_the_size_of_the_file(size_mib: int, part_mib: int, count: int) -> None:
    limits = UploadLimits()
    plan = plan_parts(size_mib * MIB, part_bytes=limits.part_bytes, least_part_bytes=limits.least_part_bytes)
    assert (plan.part_bytes, plan.count) == (part_mib * MIB, count)


def test_the_least_part_size_raises_none() -> None:
    assert plan_parts(20 * MIB, part_bytes=5 * MIB, least_part_bytes=8 * MIB).part_bytes == 5 * MIB


@pytest.mark.parametrize("extra, count", [(-1, 3), (0, 3), (1, 4)])
def test_the_last_part_at_the_edges(extra: int, count: int) -> None:
    plan = plan_parts(3 * 100 + extra, part_bytes=100)
    assert plan.count == count
    assert plan.length(count) == {-1: 99, 0: 100, 1: 1}[extra]


def test_an_empty_file_has_no_parts() -> None:
    with pytest.raises(InvalidInput):
        plan_parts(0, part_bytes=100)


@pytest.mark.parametrize(
    "field",
    [
        "part_bytes",
        "least_part_bytes",
        "max_requests",
        "machine_requests",
        "budget_bytes",
        "max_jobs",
        "max_queued",
        "io_threads",
    ],
)
def test_limits_check_themselves(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        UploadLimits(**{field: 0})  # type: ignore[arg-type]  # the field's name is the test's parameter


def test_a_request_may_take_longer_the_more_it_carries() -> None:
    limits = UploadLimits(request_timeout_s=10, least_bytes_per_s=1000)
    assert limits.timeout_s(0) == 10
    assert limits.timeout_s(5000) == 15
