"""How much may be under way at once: a first-come allowance, and the request gate that gives way when asked to.

Duty: bound bytes in memory (`Allowance`) and requests in flight (`RequestGate`: additive increase, multiplicative
decrease on SlowDown, and a pause). Belongs to one event loop. Must never drop a waiter or grant more than it has.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from durastore.clock import Clock

__all__ = ["Allowance", "RequestGate"]

_FIRST_LIMIT = 8
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0


class Allowance:
    """`capacity` units handed out in order of asking. An amount above the capacity is granted when nothing else is."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, amount: int) -> None:
        """Waits until `amount` is free and takes it. A cancelled wait takes nothing."""
        if not self._waiters and self._fits(amount):
            self.used += amount
            return
        waiter = (amount, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if waiter[1].done() and not waiter[1].cancelled():
                self.release(amount)  # granted in the same turn of the loop as the cancellation
            else:
                self.wake()  # those behind a cancelled waiter may fit where it did not
            raise

    def release(self, amount: int) -> None:
        self.used -= amount
        self.wake()

    def wake(self) -> None:
        """Grants to the waiters in front what fits now."""
        while self._waiters:
            amount, granted = self._waiters[0]
            if not granted.done() and not self._fits(amount):
                return
            self._waiters.popleft()
            if not granted.done():
                self.used += amount
                granted.set_result(None)

    def _fits(self, amount: int) -> bool:
        return self.used == 0 or self.used + amount <= self.capacity


class RequestGate:
    """Requests in flight, at most `ceiling`, and at most what `share` says now (None: nothing).

    The limit begins low and doubles each round trip until the first overload. An overload answer halves it and pauses
    new requests; answers to requests sent before that moment count as the same event. From then on each success lets
    the limit grow by 1/limit: one more after a full round.
    """

    def __init__(self, ceiling: int, *, clock: Clock, share: Callable[[], int | None] | None = None) -> None:
        self._most = self._ceiling = ceiling
        self._share = share
        self._limit = float(min(ceiling, _FIRST_LIMIT))
        self._allowance = Allowance(int(self._limit))
        self._clock = clock
        self._pause_s = 0.0
        self._paused_until = 0.0
        self._overloads = 0

    @property
    def limit(self) -> int:
        return self._allowance.capacity

    @property
    def in_flight(self) -> int:
        return self._allowance.used

    @asynccontextmanager
    async def request(self) -> AsyncIterator[int]:
        """One request's turn. Yields the token to hand to `overloaded`."""
        self._heed_share()
        await self._allowance.acquire(1)
        try:
            rest_s = self._paused_until - self._clock.monotonic()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
            yield self._overloads
        finally:
            self._allowance.release(1)

    def succeeded(self) -> None:
        self._heed_share()  # here too: with many waiting no new one may come for a long time
        self._pause_s /= 2
        self._set_limit(self._limit + (1 / self._limit if self._overloads else 1))

    def overloaded(self, token: int) -> None:
        """The endpoint asked for fewer requests, or a request got stuck."""
        if token != self._overloads:
            return  # sent before the last decrease: it says nothing about the new limit
        self._overloads += 1
        self._pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))
        self._paused_until = self._clock.monotonic() + self._pause_s
        self._set_limit(self._limit / 2)

    def _heed_share(self) -> None:
        share = self._share() if self._share is not None else None
        ceiling = self._most if share is None else min(self._most, share)
        if ceiling != self._ceiling:
            self._ceiling = ceiling
            self._set_limit(self._limit)

    def _set_limit(self, limit: float) -> None:
        self._limit = min(float(self._ceiling), max(1.0, limit))
        self._allowance.capacity = int(self._limit)
        self._allowance.wake()
