"""How fast files may be read: so many bytes a second, all threads together."""

from __future__ import annotations

import threading
from collections.abc import Callable

from durastore.clock import Clock

__all__ = ["RateLimit", "RateStopped"]

_BURST_S = 0.25
_LOOK_S = 0.25


class RateStopped(Exception):
    """Nothing more is to be read: it is over, and whoever ended it has said why."""


class RateLimit:
    """Thread-safe. `bytes_per_s` 0: as fast as it goes, until `is_over`."""

    def __init__(self, bytes_per_s: float, *, clock: Clock, is_over: Callable[[], bool] | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._is_over = is_over
        self._lock = threading.Lock()
        self._due_s = clock.monotonic()
        """When all that was spent so far may have been read."""

    @property
    def is_unlimited(self) -> bool:
        return not self._bytes_per_s

    def spend(self, size_bytes: int) -> None:
        """Wait until so many more bytes may be read. After a pause no more than a quarter of a second is made up.

        `RateStopped` once it is over: in the middle of a file too, which at this rate may take hours more.
        """
        self._refuse_late()
        if not self._bytes_per_s:
            return
        with self._lock:
            now_s = self._clock.monotonic()
            self._due_s = max(self._due_s, now_s - _BURST_S) + size_bytes / self._bytes_per_s
            wait_s = self._due_s - now_s
        while wait_s > 0:
            slept_s = wait_s if self._is_over is None else min(wait_s, _LOOK_S)
            self._clock.sleep(slept_s)
            self._refuse_late()
            wait_s -= slept_s

    def _refuse_late(self) -> None:
        if self._is_over is not None and self._is_over():
            raise RateStopped
