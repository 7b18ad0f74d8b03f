"""Time, from one place, so that tests can own it.

Duty: deadlines (`monotonic`), records (`now_ns`) and ages that survive a stepped wall clock and notice a reboot.
No other module calls `time`. Must never decide what an age means.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "ManualClock", "Stamp", "SystemClock", "age_s", "least_age_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A moment as recorded: wall time and boot time in nanoseconds, and which boot it was."""

    wall_ns: int
    boottime_ns: int
    boot_id: str

    def render(self) -> str:
        return f"{self.wall_ns}:{self.boottime_ns}:{self.boot_id}"

    @classmethod
    def parse(cls, text: str) -> Stamp:
        """Inverse of `render`; ValueError on anything else."""
        wall, boot, boot_id = text.split(":", 2)
        return cls(wall_ns=int(wall), boottime_ns=int(boot), boot_id=boot_id)


class Clock(Protocol):
    """What the library asks of time."""

    def monotonic(self) -> float: ...

    def now_ns(self) -> int: ...

    def stamp(self) -> Stamp: ...

    def wait(self, condition: threading.Condition, timeout_s: float) -> None:
        """Wait on a held condition for at most `timeout_s` of this clock's time."""
        ...

    def sleep(self, seconds: float) -> None: ...


def age_s(since: Stamp, now: Stamp) -> float | None:
    """Seconds from `since` to `now`: the larger of boot-time and wall-clock difference.

    None where no age can be trusted: another boot, or a wall clock that went back (DESIGN 7). The caller must then
    treat whatever the stamp belongs to as expired.
    """
    passed = _passed_ns(since, now)
    return None if passed is None else max(passed) / 1e9


def least_age_s(since: Stamp, now: Stamp) -> float | None:
    """Seconds that surely passed: the smaller of both differences. For waiting, where a wall clock that is set forward
    must not pass for time; None as for `age_s`.
    """
    passed = _passed_ns(since, now)
    return None if passed is None else min(passed) / 1e9


def _passed_ns(since: Stamp, now: Stamp) -> tuple[int, int] | None:
    if since.boot_id != now.boot_id:
        return None
    wall = now.wall_ns - since.wall_ns
    boot = now.boottime_ns - since.boottime_ns
    return None if wall < 0 or boot < 0 else (wall, boot)


@lru_cache(maxsize=1)
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"  # not Linux: every process start would look like one boot, so ages rest on the wall clock


def _boottime_ns() -> int:
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # counts suspend; absent outside Linux
    return time.clock_gettime_ns(clock) if clock is not None else time.monotonic_ns()


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_ns(self) -> int:
        return time.time_ns()

    def stamp(self) -> Stamp:
        return Stamp(wall_ns=time.time_ns(), boottime_ns=_boottime_ns(), boot_id=_boot_id())

    def wait(self, condition: threading.Condition, timeout_s: float) -> None:
        condition.wait(timeout_s)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told, for tests: `advance(seconds)`, `step_wall(seconds)`, `reboot()`.

    `wait` really waits a few milliseconds so that other threads run, then advances nothing.
    """

    def __init__(
        self, *, start_ns: int = 1_700_000_000_000_000_000, on_sleep: Callable[[float], None] | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._wall_ns = start_ns
        self._boot_ns = 1_000_000_000_000
        self._boot = 1
        self._on_sleep = on_sleep

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._wall_ns += int(seconds * 1e9)
            self._boot_ns += int(seconds * 1e9)

    def step_wall(self, seconds: float) -> None:
        with self._lock:
            self._wall_ns += int(seconds * 1e9)

    def reboot(self) -> None:
        with self._lock:
            self._boot += 1
            self._boot_ns = 1_000_000_000

    def monotonic(self) -> float:
        with self._lock:
            return self._boot_ns / 1e9

    def now_ns(self) -> int:
        with self._lock:
            return self._wall_ns

    def stamp(self) -> Stamp:
        with self._lock:
            return Stamp(wall_ns=self._wall_ns, boottime_ns=self._boot_ns, boot_id=f"boot-{self._boot}")

    def wait(self, condition: threading.Condition, timeout_s: float) -> None:
        condition.wait(min(timeout_s, 0.005))

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        if self._on_sleep is not None:
            self._on_sleep(seconds)


SYSTEM_CLOCK = SystemClock()
