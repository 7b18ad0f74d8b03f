"""Room for a put: waited for only where something of ours could still make it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from durastore.clock import ManualClock
from durastore.errors import SpoolFull
from durastore.spool.spool import Spool
from durastore.spool.watermarks import Watermarks
from durastore.store.board import Board
from durastore.store.room import Room

MARKS = Watermarks(high_bytes=1000, low_bytes=500, reserve_bytes=100)


class PassingClock(ManualClock):
    """Whoever waits on it, its time passes."""

    def wait(self, condition: threading.Condition, timeout_s: float) -> None:
        self.advance(timeout_s)


@dataclass
class Disk:
    used: int
    free: int
    path: Path = Path("/spool")

    def used_bytes(self) -> int:
        return self.used

    def free_bytes(self) -> int:
        return self.free


def room(used: int, free: int, *, clock: ManualClock) -> Room:
    spool = cast(Spool, Disk(used, free))
    return Room(spool, MARKS, stall_s=600.0, board=Board(clock), clock=clock)


def waited_s(used: int, free: int, *, needed: int) -> tuple[float, str]:
    clock = PassingClock()
    begun = clock.monotonic()
    with pytest.raises(SpoolFull) as caught:
        room(used, free, clock=clock).wait(needed, blockers=list)
    return clock.monotonic() - begun, caught.value.message


def test_what_fits_is_let_through() -> None:
    room(900, 1000, clock=PassingClock()).wait(100, blockers=list)


def test_a_full_spool_is_waited_for_until_nothing_progresses() -> None:
    seconds, message = waited_s(950, 1000, needed=100)
    assert seconds >= 600
    assert "no pack progressed" in message


@pytest.mark.parametrize("used, free, needed", [(0, 150, 100), (0, 0, 1), (950, 10_000, 1001)])
def test_where_nothing_of_ours_can_make_room_it_is_said_at_once(used: int, free: int, needed: int) -> None:
    seconds, message = waited_s(used, free, needed=needed)
    assert seconds == 0
    assert "never room" in message


def test_the_message_names_what_can_be_changed() -> None:
    clock = PassingClock()
    with pytest.raises(SpoolFull) as caught:
        room(0, 0, clock=clock).wait(1, blockers=list)
    assert "reserve_bytes" in str(cast(Any, caught.value).hint)
