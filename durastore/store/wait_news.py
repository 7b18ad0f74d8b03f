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
        self._ended_at = -_AGAIN_S
        self._waited_s = 0.0
        """Of all waits with short pauses between them that are over."""
        self._next_at = 0.0
        self._pause_s = _AGAIN_S
        self._has_line = self._has_event = False
        """Whether the wait under way was told of."""

    def note_put(self, size_bytes: int) -> None:
        """Samples of so many bytes got through."""
        self._pace.emit("put", bytes=size_bytes)

    def begin(self) -> None:
        """This thread's put begins to wait. Nothing is said yet."""
        with self._lock:
            self._waiting += 1
            if self._waiting > 1:
                return
            now = self._since = self._clock.monotonic()
            self._has_line = self._has_event = False
            if now - self._ended_at >= _AGAIN_S:  # else it is one more of many short waits, of which few lines tell
                self._next_at, self._pause_s, self._waited_s = now, _AGAIN_S, 0.0
            self._pace.pause()

    def tell(self, cause: str, text: Callable[[], str]) -> None:
        """Why puts wait, if it is time to say so: at once, after 60 s, then at doubling intervals up to 10 minutes.
        Waits with less than 60 s between them count as one. Observers hear of each, once.
        """
        with self._lock:
            now = self._clock.monotonic()
            waited_s = self._waited_s + now - self._since
            is_due, is_new = now >= self._next_at, not self._has_event
            self._has_event = True
            if is_due:
                self._has_line = True
                self._next_at = now + self._pause_s
                self._pause_s = min(_AGAIN_CAP_S, 2 * self._pause_s)
        if not is_due and not is_new:
            return
        rates = self._pace.rates()
        if is_due:
            since = f" (for {waited_s:.0f} s so far)" if waited_s >= 1 else ""
            LOGGER.warning("put waits%s: %s; %s", since, text(), rates.render())
        if is_new:
            self._observer.emit(
                "put.waits",
                cause=cause,
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
            now = self._ended_at = self._clock.monotonic()
            waited_s = now - self._since
            self._waited_s += waited_s
            is_line_due = self._has_line or not is_admitted
            self._pace.go_on()
        if is_line_due:
            LOGGER.warning("put %s after %.1f s of waiting", "goes on" if is_admitted else "gave up", waited_s)
        self._observer.emit("put.resumed" if is_admitted else "put.gave_up", waited_s=waited_s)
