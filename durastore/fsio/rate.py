"""How fast files may be read: so many bytes a second, all threads together."""

from __future__ import annotations

import threading

from durastore.clock import Clock

__all__ = ["RateLimit"]

_BURST_S = 0.25


class RateLimit:
    """Thread-safe. `bytes_per_s` 0: as fast as it goes."""

    def __init__(self, bytes_per_s: float, *, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._due_s = clock.monotonic()
        """When all that was spent so far may have been read."""

    @property
    def is_unlimited(self) -> bool:
        return not self._bytes_per_s

    def spend(self, size_bytes: int) -> None:
        """Wait until so many more bytes may be read. After a pause no more than a quarter of a second is made up."""
        if not self._bytes_per_s:
            return
        with self._lock:
            now_s = self._clock.monotonic()
            self._due_s = max(self._due_s, now_s - _BURST_S) + size_bytes / self._bytes_per_s
            wait_s = self._due_s - now_s
        if wait_s > 0:
            self._clock.sleep(wait_s)
