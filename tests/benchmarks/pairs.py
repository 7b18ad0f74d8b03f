"""Two ways to do one thing, timed in turns: on a shared machine only a ratio taken in one run says something."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Line", "cpu_s", "in_turns", "wall_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One comparison. `ratio` is durastore / peer; `goal`, if one was set, says which side of which number it has to
    be on.
    """

    name: str
    durastore: float
    peer: float
    peer_name: str
    unit: str
    goal: str | None = None

    @property
    def ratio(self) -> float:
        return self.durastore / self.peer

    @property
    def is_met(self) -> bool | None:
        """None without a goal."""
        if self.goal is None:
            return None
        sign, _, number = self.goal.partition(" ")
        return self.ratio >= float(number) if sign == ">=" else self.ratio <= float(number)

    def facts(self) -> dict[str, object]:
        return {
            "name": self.name,
            "durastore": self.durastore,
            "peer": self.peer,
            "peer_name": self.peer_name,
            "unit": self.unit,
            "ratio": self.ratio,
            "goal": self.goal,
            "met": self.is_met,
        }


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this process, all threads."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def wall_s(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def in_turns(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    measure: Callable[[Callable[[], object]], float],
    n: int,
) -> tuple[float, float]:
    """Medians of `n` turns each, after one that does not count; who begins changes from turn to turn."""
    ours()
    theirs()
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(n):
        order = ((0, ours), (1, theirs)) if turn % 2 else ((1, theirs), (0, ours))
        for side, work in order:
            found[side].append(measure(work))
    return statistics.median(found[0]), statistics.median(found[1])
