"""One request at a time, done properly: its turn at the gate, a watchdog, and the retry policy's waiting.

Duty: `Calls.run` and `Calls.once`. What is retried, how often and after how long is `objectstore.retrying`'s decision
alone; here that decision is only awaited. Must never retry a cancellation, nor turn a stuck write into a failure: a
write whose answer did not come is `AmbiguousWrite`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from durastore.clock import Clock
from durastore.errors import AmbiguousWrite, DurastoreError, EndpointUnreachable, OverloadedEndpoint
from durastore.objectstore.retrying import RetryPolicy
from durastore.observe.events import Observer
from durastore.upload.allowance import RequestGate
from durastore.upload.job import UploadLimits

__all__ = ["Calls", "Request"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is being asked, for errors, events and the watchdog."""

    what: str
    is_write: bool
    body_bytes: int = 0


class Calls:
    """Makes requests for all jobs of one engine, on its loop."""

    def __init__(
        self, *, gate: RequestGate, policy: RetryPolicy, limits: UploadLimits, clock: Clock, observer: Observer
    ) -> None:
        self._gate = gate
        self._policy = policy
        self._limits = limits
        self._clock = clock
        self._observer = observer

    async def run(self, request: Request, attempt: Callable[[], Awaitable[T]]) -> T:
        """Awaits `attempt()` until it answers or the policy gives up; then its last error comes out unchanged.

        Each attempt is made, and so signed, only when its turn has come.
        """
        deadline_s: float | None = None
        attempts = 0
        while True:
            attempts += 1
            try:
                return await self.once(request, attempt)
            except DurastoreError as exc:
                now_s = self._clock.monotonic()
                if deadline_s is None:
                    deadline_s = now_s + self._policy.budget_s  # from the first failure: waiting for a turn is none
                delay_s = self._policy.delay_s(attempts, exc)
                if delay_s is None or now_s + delay_s > deadline_s:
                    raise
                self._observer.emit(
                    "upload.retry", what=request.what, error=exc.code, attempt=attempts, delay_s=delay_s
                )
            await asyncio.sleep(delay_s)

    async def once(self, request: Request, attempt: Callable[[], Awaitable[T]]) -> T:
        """One attempt, under the gate and the watchdog."""
        async with self._gate.request() as token:
            try:
                async with asyncio.timeout(self._limits.timeout_s(request.body_bytes)):
                    answer = await attempt()
            except TimeoutError as exc:
                self._gate.overloaded(token)  # a link that is too slow for this many requests looks the same
                self._observer.emit("upload.stuck", what=request.what)
                kind = AmbiguousWrite if request.is_write else EndpointUnreachable
                raise kind(f"{request.what} was stuck and has been given up") from exc
            except OverloadedEndpoint:
                self._gate.overloaded(token)
                self._observer.emit("upload.overloaded", what=request.what, limit=self._gate.limit)
                raise
            self._gate.succeeded()
            return answer
