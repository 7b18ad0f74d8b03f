"""What the threads of a store tell each other: something changed, something is fatally wrong, please hurry.

Duty: one condition variable with the few facts that waiting callers need. No I/O under its lock.
"""

from __future__ import annotations

import threading

from durastore.clock import Clock
from durastore.errors import BucketMissing, CredentialsRefused, DurastoreError

__all__ = ["Board"]


class Board:
    """Shared by the callers of a store and its lanes."""

    def __init__(self, clock: Clock) -> None:
        self.changed = threading.Condition()
        self._clock = clock
        self._fatal: DurastoreError | None = None
        self._progress_at = clock.monotonic()
        self._waiters = 0
        self._drainers = 0
        self.is_probing = False
        """While a probe is under way: what the endpoint refuses now it may take with other headers (case B160)."""
        self._short_bytes: dict[int, int] = {}
        """What each waiting put, by its thread, needs freed: one that got in must not take back what another asked."""

    def note_progress(self) -> None:
        """A pack moved on: whoever waits looks again, and no stall is counted from before this moment."""
        with self.changed:
            self._progress_at = self._clock.monotonic()
            self.changed.notify_all()

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def idle_s(self) -> float:
        """Seconds since the last progress."""
        with self.changed:
            return self._clock.monotonic() - self._progress_at

    def ask_for_room(self, short_bytes: int) -> None:
        """The put of this thread waits for so many bytes to be freed (0: no more)."""
        with self.changed:
            if short_bytes > 0:
                self._short_bytes[threading.get_ident()] = short_bytes
            else:
                self._short_bytes.pop(threading.get_ident(), None)

    @property
    def short_bytes(self) -> int:
        """What waiting puts need freed at most, beyond what lazy reclaim would free by itself; 0 while none waits."""
        with self.changed:
            return max(self._short_bytes.values(), default=0)

    def fail(self, error: DurastoreError) -> None:
        """From now on `put` refuses with this error (credentials, disk, journal)."""
        with self.changed:
            self._fatal = error
            self.changed.notify_all()

    def recover(self) -> None:
        """An upload got through: refused credentials and a missing bucket are over; nothing else heals by itself."""
        with self.changed:
            if isinstance(self._fatal, CredentialsRefused | BucketMissing):
                self._fatal = None

    @property
    def fatal(self) -> DurastoreError | None:
        return self._fatal

    def hurry(self, *, draining: bool) -> None:
        """Somebody waits for packs to be manifested (or, draining, reclaimed): no batching delays until `relax`."""
        with self.changed:
            self._waiters += 1
            self._drainers += draining
            self.changed.notify_all()

    def relax(self, *, draining: bool) -> None:
        with self.changed:
            self._waiters -= 1
            self._drainers -= draining

    @property
    def is_hurried(self) -> bool:
        """Also while a put waits for room: what is not full yet, or waits for company, is what keeps the room."""
        return self._waiters > 0 or self.short_bytes > 0

    @property
    def is_draining(self) -> bool:
        return self._drainers > 0
