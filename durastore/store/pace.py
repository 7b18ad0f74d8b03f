"""How fast samples come, objects arrive in the bucket and disk is freed, over the last minute.

Duty: an observer that turns events into rates, for the words of a put that waits. A rate that was not seen is None,
never a guess. Must never block.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from durastore.clock import Clock
from durastore.observe.events import Fact

__all__ = ["Pace", "Rates"]

_WINDOW_S = 60.0
_LEAST_S = 1.0
_SLOTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes a second, each None where nothing was seen. `put`: while no put waited."""

    put: float | None
    uploaded: float | None
    freed: float | None

    def render(self) -> str:
        """For example: "samples come at 210 MB/s, the bucket takes 95 MB/s; needed 210 MB/s to keep up"."""
        come = f"samples come at {_mb(self.put)}" if self.put is not None else "how fast samples come is not known yet"
        takes = f"the bucket takes {_mb(self.uploaded)}" if self.uploaded is not None else "the bucket took nothing"
        freed = f", {_mb(self.freed)} are freed" if self.freed is not None else ", nothing was freed"
        needed = f"; needed {_mb(self.put)} to keep up" if self.put is not None else ""
        return f"in the last {_WINDOW_S:.0f} s: {come}, {takes}{freed}{needed}"


def _mb(rate: float) -> str:
    return f"{rate / 1e6:.3g} MB/s"


class _Flow:
    """Bytes in slots of a second, and when the first of them came."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, int]] = deque(maxlen=_SLOTS + 1)
        self._since: float | None = None

    def add(self, now: float, size_bytes: int, *, begun: float) -> None:
        if self._since is None:
            self._since = begun
        slot = int(now)
        if self._slots and self._slots[-1][0] == slot:
            size_bytes += self._slots.pop()[1]
        self._slots.append((slot, size_bytes))

    def rate(self, now: float) -> float | None:
        total = sum(size for slot, size in self._slots if slot > now - _WINDOW_S)
        if self._since is None or not total:
            return None
        return total / max(_LEAST_S, min(_WINDOW_S, now - self._since))


class Pace:
    """Thread-safe. Hears `put`, `upload.done` and `reclaim.freed`; is told when a put begins and ends to wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = clock.monotonic()
        self._put, self._uploaded, self._freed = _Flow(), _Flow(), _Flow()
        self._waited_s = 0.0
        self._waiting_since: float | None = None

    def emit(self, name: str, **facts: Fact) -> None:
        """`bytes` of one of the three events counts; all other events pass."""
        size_bytes = facts.get("bytes")
        if name not in ("put", "upload.done", "reclaim.freed") or not isinstance(size_bytes, int):
            return
        with self._lock:
            now = self._clock.monotonic()
            if name == "put":
                at = self._put_clock(now)
                self._put.add(at, size_bytes, begun=at)
            elif name == "upload.done":
                self._uploaded.add(now, size_bytes, begun=self._begun)
            else:
                self._freed.add(now, size_bytes, begun=self._begun)

    def pause(self) -> None:
        """A put waits: until `go_on` the time does not count against the samples."""
        with self._lock:
            if self._waiting_since is None:
                self._waiting_since = self._clock.monotonic()

    def go_on(self) -> None:
        """No put waits any more."""
        with self._lock:
            now = self._clock.monotonic()
            self._waited_s += now - self._waiting_since if self._waiting_since is not None else 0.0
            self._waiting_since = None

    def rates(self) -> Rates:
        """Over the last 60 s, or less: since the first put, and for uploads and frees since the store was opened."""
        with self._lock:
            now = self._clock.monotonic()
            return Rates(
                put=self._put.rate(self._put_clock(now)),
                uploaded=self._uploaded.rate(now),
                freed=self._freed.rate(now),
            )

    def _put_clock(self, now: float) -> float:
        """Time that passed while no put waited."""
        return (now if self._waiting_since is None else self._waiting_since) - self._waited_s
