"""This process's share of the requests that all of the user's stores on one machine may have under way.

Duty: `MachineShare`: the cap divided by the live engines, looked at again every second. Must never be a reason to send
nothing: every engine has at least one request, and where the others cannot be counted its own limit stands.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from durastore.clock import Clock
from durastore.errors import DurastoreError
from durastore.fsio.presence import Presence, Standing
from durastore.observe.events import LOGGER

__all__ = ["MachineShare", "share_of"]

_NAME = "requests"
_LOOK_EVERY_S = 1.0


def share_of(cap: int, standing: Standing) -> int:
    """Requests for one of `standing.count` engines. All shares make up `cap`, or one each where there are more."""
    whole, rest = divmod(cap, standing.count)
    return max(1, whole + (standing.rank < rest))


class MachineShare:
    """For one engine, on its loop. The looks are a few system calls on a local file, and come once a second at most."""

    def __init__(self, cap: int, *, clock: Clock, take: Callable[[], Presence] | None = None) -> None:
        """`cap`: requests of all engines together. Nothing is taken before the first `limit`."""
        self._cap = cap
        self._clock = clock
        self._take = take or (lambda: Presence(_NAME))
        self._presence: Presence | None = None
        self._limit: int | None = None
        self._look_at = -1.0
        self._is_told = False
        self._pid = os.getpid()

    def limit(self) -> int | None:
        """Requests that this engine may have under way now; None where the others cannot be counted."""
        now_s = self._clock.monotonic()
        if now_s >= self._look_at:
            self._look_at = now_s + _LOOK_EVERY_S
            self._limit = self._looked()
        return self._limit

    def close(self) -> None:
        """The others get this share, from their next look on. Safe to repeat."""
        presence, self._presence, self._look_at = self._presence, None, -1.0
        if presence is not None and os.getpid() == self._pid:
            presence.close()

    def _looked(self) -> int | None:
        try:
            if self._presence is None:
                self._presence = self._take()
            return share_of(self._cap, self._presence.look())
        except (OSError, DurastoreError) as exc:
            if not self._is_told:
                LOGGER.warning("requests are not shared out with other processes of this machine: %s", exc)
            self._is_told = True
            return None
