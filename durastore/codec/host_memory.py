"""A fixed piece of host memory, lent out in ranges.

Duty: lend byte ranges of one buffer and take them back, in any order and from any thread; wait while nothing is free.
Allocated once: page-locking memory anew stops every stream of a GPU, and fresh pages cost more than the copy.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from durastore.errors import DurastoreError

__all__ = ["HostMemory", "Lent"]

_ALIGN_BYTES = 512
_LOOK_EVERY_S = 0.1  # whoever waits asks this often whether it still may; a signal handler cannot take the lock


class Lent:
    """A range of a `HostMemory`; `buffer` is a flat byte tensor or array of at least the size asked for."""

    __slots__ = ("buffer", "end", "start")

    def __init__(self, buffer: Any, start: int, *, end: int) -> None:
        self.buffer = buffer
        self.start = start
        self.end = end


class HostMemory:
    """`size_bytes` of memory from `allocate` (size in bytes -> flat byte buffer), made at the first use. Thread-safe.

    What is larger than all of it gets a buffer of its own, one at a time.
    """

    def __init__(self, allocate: Callable[[int], Any], *, size_bytes: int) -> None:
        self._allocate = allocate
        self.size_bytes = size_bytes
        self._changed = threading.Condition()
        self._buffer: Any = None
        self._gaps = [(0, size_bytes)]
        """Free ranges in order; never two that touch."""
        self._has_oversize = False
        self._is_short = False
        self.waits = 0
        """How often somebody had to wait for a range."""

    def take(self, size_bytes: int, *, may_wait: Callable[[], bool]) -> Lent | None:
        """A free range; waits for one while `may_wait` says so, then gives None. `DurastoreError` instead of waiting
        once some of the memory does not come back.
        """
        size_bytes = -(-max(size_bytes, 1) // _ALIGN_BYTES) * _ALIGN_BYTES
        with self._changed:
            if (lent := self._find(size_bytes)) is not None:
                return lent
            self.waits += 1
            while may_wait():
                if self._is_short:
                    raise DurastoreError(
                        "memory for copies from a device was lost with the device", hint="start the process again"
                    )
                self._changed.wait(_LOOK_EVERY_S)
                if (lent := self._find(size_bytes)) is not None:
                    return lent
        return None

    def give_back(self, lent: Lent) -> None:
        """Nobody may touch the range's bytes after this. Once for each range."""
        with self._changed:
            if lent.end > self.size_bytes:
                self._has_oversize = False
            else:
                self._free(lent.start, lent.end)
            self._changed.notify_all()

    def give_up(self, lent: Lent) -> None:
        """The range is nobody's any more: a lost device may still write to it. Whoever waits for memory hears of it, as
        what else is lent is for copies of the same device.
        """
        with self._changed:
            self._is_short = True
            self._changed.notify_all()

    def _find(self, size_bytes: int) -> Lent | None:
        if size_bytes > self.size_bytes:
            return self._find_oversize(size_bytes)
        for at, (start, end) in enumerate(self._gaps):
            if end - start >= size_bytes:
                if self._buffer is None:
                    self._buffer = self._allocate(self.size_bytes)
                self._gaps[at : at + 1] = [(start + size_bytes, end)] if end - start > size_bytes else []
                return Lent(self._buffer[start : start + size_bytes], start, end=start + size_bytes)
        return None

    def _find_oversize(self, size_bytes: int) -> Lent | None:
        if self._has_oversize:
            return None
        buffer = self._allocate(size_bytes)
        self._has_oversize = True
        return Lent(buffer, 0, end=size_bytes)

    def _free(self, start: int, end: int) -> None:
        at = bisect_left(self._gaps, (start, end))
        if at < len(self._gaps) and self._gaps[at][0] == end:
            end = self._gaps.pop(at)[1]
        if at and self._gaps[at - 1][1] == start:
            at -= 1
            start = self._gaps.pop(at)[0]
        self._gaps.insert(at, (start, end))
