"""Ages: the larger difference, and none where a boot or a step of the wall clock lies in between."""

from __future__ import annotations

import pytest

from durastore.clock import SYSTEM_CLOCK, ManualClock, Stamp, age_s


def stamp(wall_s: int, boot_s: int, boot_id: str = "one") -> Stamp:
    return Stamp(wall_ns=wall_s * 10**9, boottime_ns=boot_s * 10**9, boot_id=boot_id)


@pytest.mark.parametrize("wall, boot, age", [(5, 5, 5.0), (9, 5, 9.0), (5, 9, 9.0), (0, 0, 0.0)])
def test_the_larger_difference_is_the_age(wall: int, boot: int, age: float) -> None:
    assert age_s(stamp(100, 100), stamp(100 + wall, 100 + boot)) == age


@pytest.mark.parametrize("wall, boot", [(-1, 5), (5, -1)])
def test_a_clock_that_went_back_makes_no_age(wall: int, boot: int) -> None:
    assert age_s(stamp(100, 100), stamp(100 + wall, 100 + boot)) is None


def test_an_age_over_a_reboot_is_not_known() -> None:
    # also where the new boot has lasted longer than the old one had
    assert age_s(stamp(100, 100), stamp(200, 200, "two")) is None


def test_stamps_are_kept_as_text() -> None:
    for one in (stamp(1, 2), SYSTEM_CLOCK.stamp(), ManualClock().stamp()):
        assert Stamp.parse(one.render()) == one
    with pytest.raises(ValueError, match="unpack"):
        Stamp.parse("1:2")
