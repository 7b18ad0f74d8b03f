"""Room for a put: waited for only where something of ours could still make it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from durastore.clock import ManualClock
from durastore.errors import DiskFailed, SpoolFull
from durastore.spool.spool import Spool
from durastore.spool.watermarks import Watermarks
from durastore.store.board import Board
from durastore.store.pace import Pace
from durastore.store.room import Room, RoomLimits
from durastore.store.wait_news import WaitNews

MARKS = Watermarks(high_bytes=1000, low_bytes=500, reserve_bytes=100)


class PassingClock(ManualClock):
    """Whoever waits on it, its time passes."""

    on_wait: Callable[[], None] = staticmethod(lambda: None)

    def wait(self, condition: threading.Condition, timeout_s: float) -> None:
        self.advance(timeout_s)
        self.on_wait()


@dataclass
class Hold:
    """A ballast; `refusals` is how often the disk does not take it back."""

    refusals: int = 0
    is_wanted: bool = False
    released: int = 0

    @property
    def missing_bytes(self) -> int:
        return 10 if self.is_wanted else 0

    def release(self) -> bool:
        self.released += 1
        self.is_wanted = True
        return True

    def ensure(self) -> bool:
        self.refusals -= 1
        self.is_wanted = self.refusals >= 0
        return not self.is_wanted


@dataclass
class Disk:
    used: int
    free: int
    total: int = 100_000
    path: Path = Path("/spool")
    ballast: Hold = field(default_factory=Hold)

    def used_bytes(self) -> int:
        return self.used

    def free_bytes(self) -> int:
        return self.free

    def disk_bytes(self) -> int:
        return self.total


class Words:
    """A pipeline that is about to do nothing."""

    def __init__(self, *, settling: bool = False) -> None:
        self._settling = settling

    def describe(self) -> str:
        return "2 packs are not in the manifest yet"

    def is_settling(self) -> bool:
        return self._settling


class Heard:
    """An observer that writes down what it hears."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def emit(self, name: str, **facts: object) -> None:
        self.events.append((name, facts))

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


@dataclass
class Scene:
    """One room on one disk."""

    disk: Disk
    clock: PassingClock = field(default_factory=PassingClock)
    heard: Heard = field(default_factory=Heard)

    def __post_init__(self) -> None:
        self.board = Board(self.clock)
        self.pace = Pace(self.clock)
        news = WaitNews(self.pace, observer=self.heard, clock=self.clock)
        limits = RoomLimits(watermarks=MARKS, stall_s=600.0, settle_s=300.0)
        self.room = Room(cast(Spool, self.disk), limits, board=self.board, news=news, clock=self.clock)

    def put(self, needed: int, write: Callable[[], object] = lambda: None, *, settling: bool = False) -> float:
        """Seconds that a put of so many bytes waited."""
        begun = self.clock.monotonic()
        self.room.admit(needed, write, pipeline=Words(settling=settling))
        return self.clock.monotonic() - begun

    def refused(self, needed: int, *, settling: bool = False) -> tuple[float, SpoolFull]:
        begun = self.clock.monotonic()
        with pytest.raises(SpoolFull) as caught:
            self.put(needed, settling=settling)
        return self.clock.monotonic() - begun, caught.value


def scene(used: int, free: int) -> Scene:
    return Scene(Disk(used, free))


def test_what_fits_is_let_through() -> None:
    assert scene(900, 1000).put(100) == 0


def test_a_full_spool_is_waited_for_until_nothing_progresses() -> None:
    seconds, error = scene(950, 1000).refused(100)
    assert 600 <= seconds < 610
    assert "no pack progressed" in error.message


def test_packs_that_wait_for_no_more_than_their_time_are_no_stall() -> None:
    seconds, _ = scene(950, 1000).refused(100, settling=True)
    assert seconds >= 900


@pytest.mark.parametrize("used, free, needed", [(0, 150, 100), (0, 0, 1), (950, 10_000, 1001), (5, 50, 99_999)])
def test_where_nothing_of_ours_can_make_room_it_is_said_at_once(used: int, free: int, needed: int) -> None:
    seconds, error = scene(used, free).refused(needed)
    assert seconds == 0
    assert "never room" in error.message


def test_a_disk_that_others_filled_since_is_waited_for() -> None:
    there = scene(0, 1000)
    there.put(100)
    there.disk.free = 50
    seconds, error = there.refused(100)
    assert seconds >= 600
    assert "disk reserve" in error.message


def test_the_message_names_what_can_be_changed() -> None:
    _, error = scene(0, 0).refused(1)
    assert "reserve_bytes" in str(error.hint)


# --- what is told ----------------------------------------------------------------------------------------------------


def test_one_line_names_the_cause_and_the_rate_needed_and_one_the_end(caplog: pytest.LogCaptureFixture) -> None:
    there = scene(900, 1_000)
    for _ in range(10):  # 210 MB/s come, 95 MB/s arrive
        there.pace.emit("put", bytes=210_000_000)
        there.pace.emit("upload.done", bytes=95_000_000)
        there.clock.advance(1)
    there.disk.used = 950
    waits: list[float] = []

    def look() -> None:
        waits.append(there.clock.monotonic())
        if len(waits) == 30:
            there.disk.used = 0

    there.clock.on_wait = look
    assert there.put(100) == 30
    begun, ended = [record.getMessage() for record in caplog.records]
    assert begun.startswith("put waits: spool full: spool /spool holds")
    assert "2 packs are not in the manifest yet" in begun
    assert "samples come at 210 MB/s, the bucket takes 95 MB/s, nothing was freed; needed 210 MB/s to keep up" in begun
    assert ended == "put goes on after 30.0 s of waiting"
    assert there.heard.names() == ["put.waits", "put.resumed"]
    assert there.heard.events[0][1]["cause"] == "spool full"
    assert there.heard.events[0][1]["put_bytes_per_s"] == pytest.approx(210e6)
    assert there.heard.events[0][1]["freed_bytes_per_s"] is None
    assert there.heard.events[1][1] == {"waited_s": 30.0}


def test_rates_that_were_not_seen_are_not_made_up(caplog: pytest.LogCaptureFixture) -> None:
    scene(950, 1000).refused(100)
    assert "how fast samples come is not known yet, the bucket took nothing, nothing was freed" in caplog.text
    assert "needed" not in caplog.text


def test_the_line_comes_again_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    scene(950, 1000).refused(100)
    lines = [record.getMessage() for record in caplog.records]
    assert [line[:27] for line in lines] == [
        "put waits: spool full: spoo",
        "put waits (for 60 s so far)",
        "put waits (for 180 s so far",
        "put waits (for 420 s so far",
        "put gave up after 600.0 s o",
    ]


def test_many_short_waits_are_told_of_like_one(caplog: pytest.LogCaptureFixture) -> None:
    there = scene(950, 1000)

    def make_room() -> None:
        there.disk.used = 0

    there.clock.on_wait = make_room
    for _ in range(200):
        there.disk.used = 950
        assert there.put(100) == 1
        there.clock.advance(1)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0] for line in lines] == [
        "put waits",
        "put goes on after 1.0 s of waiting",
        "put waits (for 30 s so far)",
        "put goes on after 1.0 s of waiting",
        "put waits (for 90 s so far)",
        "put goes on after 1.0 s of waiting",
    ]
    assert there.heard.names() == ["put.waits", "put.resumed"] * 200
    there.clock.advance(60)
    there.disk.used = 950
    there.put(100)
    assert len(caplog.records) == 8, "after a minute without a wait the next one is news again"


def test_time_spent_waiting_does_not_slow_the_samples_down() -> None:
    clock = PassingClock()
    pace = Pace(clock)
    for _ in range(20):
        pace.emit("put", bytes=1000)
        clock.advance(1)
    pace.pause()
    clock.advance(500)
    assert pace.rates().put == pytest.approx(1000)
    pace.go_on()
    assert pace.rates().put == pytest.approx(1000)
    clock.advance(100)
    assert pace.rates().put is None, "what came longer than a minute ago says nothing about now"


# --- a put that meets a full disk ------------------------------------------------------------------------------------


class Full:
    """A write that meets a full disk so many times."""

    def __init__(self, times: int, code: int = errno.ENOSPC) -> None:
        self.times = times
        self.code = code
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise DiskFailed("appending: No space left on device", errno=self.code)
        return "written"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_put_that_meets_a_full_disk_goes_on_once_the_ballast_is_back(code: int) -> None:
    there = scene(500, 1000)
    there.disk.ballast.refusals = 5
    write = Full(2, code)
    seconds = there.put(100, write)
    assert (write.calls, there.disk.ballast.released, there.disk.ballast.is_wanted) == (3, 2, False)
    assert seconds >= 5
    assert there.heard.events[0][1]["cause"] == "disk full"


def test_a_disk_that_stays_full_is_given_up_after_the_stall_time_without_a_hot_loop() -> None:
    there = scene(500, 1000)
    write = Full(1_000_000)
    with pytest.raises(SpoolFull, match="No space left"):
        there.put(100, write)
    assert write.calls < 40


def test_another_error_of_the_disk_is_raised_at_once() -> None:
    there = scene(500, 1000)
    with pytest.raises(DiskFailed):
        there.put(100, Full(1, errno.EIO))
    assert there.disk.ballast.released == 0


def test_while_the_ballast_is_gone_the_disk_has_to_hold_it_as_well() -> None:
    there = scene(500, 205)
    there.put(100)
    there.disk.ballast.is_wanted = True
    seconds, _ = there.refused(100)
    assert seconds >= 600
    assert there.disk.ballast.is_wanted
