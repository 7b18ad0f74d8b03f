"""What is told while puts wait: one line when the first begins to, one now and then, one when the last goes on.

Duty: log lines and observer events, once for all threads that wait together. Decides nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from durastore.clock import Clock
from durastore.observe.events import LOGGER, Observer
from durastore.store.pace import Pace

__all__ = ["WaitNews"]

_AGAIN_S = 60.0
_AGAIN_CAP_S = 600.0


class WaitNews:
    """Thread-safe. Each `begin` is followed by any number of `tell` and one `end` of the same thread."""

    def __init__(self, pace: Pace, *, observer: Observer, clock: Clock) -> None:
        self._pace = pace
        self._observer = observer
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = 0
        self._since = 0.0
        self._next_at = 0.0
        self._pause_s = _AGAIN_S

    def note_put(self, size_bytes: int) -> None:
        """Samples of so many bytes got through."""
        self._pace.emit("put", bytes=size_bytes)

    def begin(self) -> None:
        with self._lock:
            self._waiting += 1
            if self._waiting == 1:
                self._since = self._next_at = self._clock.monotonic()
                self._pause_s = _AGAIN_S
                self._pace.pause()

    def tell(self, cause: str, text: Callable[[], str]) -> None:
        """Why puts wait, if it is time to say so: at once, after 60 s, then at doubling intervals up to 10 minutes."""
        with self._lock:
            now = self._clock.monotonic()
            if now < self._next_at:
                return
            self._next_at = now + self._pause_s
            self._pause_s = min(_AGAIN_CAP_S, 2 * self._pause_s)
            waited_s = now - self._since
        rates = self._pace.rates()
        since = f" (for {waited_s:.0f} s now)" if waited_s >= 1 else ""
        LOGGER.warning("put waits%s: %s; %s", since, text(), rates.render())
        self._observer.emit(
            "put.waits",
            cause=cause,
            waited_s=waited_s,
            put_bytes_per_s=rates.put,
            uploaded_bytes_per_s=rates.uploaded,
            freed_bytes_per_s=rates.freed,
        )

    def end(self, *, is_admitted: bool) -> None:
        """This thread waits no more: there is room, or it gave up."""
        with self._lock:
            self._waiting -= 1
            if self._waiting:
                return
            waited_s = self._clock.monotonic() - self._since
            self._pace.go_on()
        LOGGER.warning("put %s after %.1f s of waiting", "goes on" if is_admitted else "gave up", waited_s)
        self._observer.emit("put.resumed" if is_admitted else "put.gave_up", waited_s=waited_s)
