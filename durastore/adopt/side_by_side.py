"""Many small pieces of work in a few threads, each with several under way: begun one after the other, ended in that
order.

Duty: `run_side_by_side`. A thread that waited for each upload before it begins the next would mostly wait, and a thread
for each would mostly hand the interpreter's lock around. Must never leave a piece without an outcome while it returns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Work", "run_side_by_side"]

Item = TypeVar("Item")
Begun = TypeVar("Begun")

_AHEAD = 16
_AHEAD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[Item, Begun]):
    """What is done with each item. Called from several threads; `end` must not raise what belongs to one item only."""

    begin: Callable[[Item], Begun | None]
    """None: it has ended already."""
    end: Callable[[Begun], None]
    size_bytes: Callable[[Begun], int]
    """What one under way keeps in memory, or how long it takes: a large one is ended before the next is begun."""


def run_side_by_side(items: Iterable[Item], work: Work[Item, Begun], *, pool: ThreadPoolExecutor, threads: int) -> None:
    """Begin and end them all; returns when none is under way. Whatever `work` raises, or an interruption, stops the
    rest, and passes once what was begun has ended or was given up.
    """
    lane = _Lane(iter(items), work)
    running = [pool.submit(lane.run) for _ in range(threads)]
    try:
        for each in running:
            each.result()
    finally:
        lane.stop()


class _Lane(Generic[Item, Begun]):
    """The items that are left, for all threads."""

    def __init__(self, items: Iterable[Item], work: Work[Item, Begun]) -> None:
        self._left = iter(items)
        self._work = work
        self._lock = threading.Lock()
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    def run(self) -> None:
        work, under_way = self._work, deque[Begun]()
        try:
            for item in iter(self._take, None):
                begun = work.begin(item[0])
                if begun is not None:
                    under_way.append(begun)
                while len(under_way) > _AHEAD or sum(map(work.size_bytes, under_way)) > _AHEAD_BYTES:
                    work.end(under_way.popleft())
            while under_way and not self._is_stopped:
                work.end(under_way.popleft())
        except BaseException:  # an interrupt, too: no other thread may begin anything more
            self.stop()
            raise

    def _take(self) -> tuple[Item] | None:
        """In a tuple, so that no item is taken for the end."""
        with self._lock:
            if self._is_stopped:
                return None
            return next(((item,) for item in self._left), None)
