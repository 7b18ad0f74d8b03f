"""When a pack that met a passing trouble is looked at again, and how often the log hears of it."""

from __future__ import annotations

import random

from durastore.clock import Clock
from durastore.observe.events import LOGGER

__all__ = ["Backoff"]

_FIRST_S = 0.5
_CAP_S = 30.0
_TELL_EVERY_S = 30.0


class Backoff:
    """Used by one lane thread. The retries of a single request live in `objectstore.retrying`; this is the wait after
    its budget was spent, without an end: an outage of days is waited out.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts: dict[int, int] = {}
        self._waits: dict[int, int] = {}
        self._due: dict[int, float] = {}
        self._rewriting: set[int] = set()
        self._told_at = -_TELL_EVERY_S
        self.last_trouble: str | None = None

    def postpone(self, pack_id: int, *, is_rewriting: bool = False, is_counted: bool = True) -> None:
        """Look again later. Not counted: a failure that says nothing about the next attempt (case B160)."""
        waits = self._waits[pack_id] = self._waits.get(pack_id, 0) + 1
        self._attempts[pack_id] = self._attempts.get(pack_id, 0) + is_counted
        delay_s = min(_CAP_S, _FIRST_S * 2 ** min(waits, 10))
        self._due[pack_id] = self._clock.monotonic() + random.uniform(delay_s / 2, delay_s)
        if is_rewriting:
            self._rewriting.add(pack_id)

    def is_due(self, pack_id: int) -> bool:
        return self._clock.monotonic() >= self._due.get(pack_id, float("-inf"))

    def attempts(self, pack_id: int) -> int:
        return self._attempts.get(pack_id, 0)

    def is_rewriting(self, pack_id: int) -> bool:
        """The object was found wrong: the next upload has to replace it instead of finding it there."""
        return pack_id in self._rewriting

    def clear(self, pack_id: int) -> None:
        """It got through. A rewritten object was acknowledged before and was wrong: only its proof ends the count, or
        an endpoint that acknowledges and forgets would be sent the same pack for ever (case B05).
        """
        self._due.pop(pack_id, None)
        self.last_trouble = None
        if pack_id in self._rewriting:
            self._rewriting.discard(pack_id)
        else:
            self._attempts.pop(pack_id, None)
            self._waits.pop(pack_id, None)

    def tell(self, text: str) -> None:
        """One log line every 30 s at most, however many packs meet the same outage."""
        self.last_trouble = text
        now = self._clock.monotonic()
        if now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            LOGGER.warning("%s", text)
