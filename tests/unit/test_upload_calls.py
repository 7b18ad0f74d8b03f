"""One request's patience: a budget of time from the first failure, full jitter, and a watchdog that guesses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from durastore.clock import ManualClock
from durastore.errors import AmbiguousWrite, DurastoreError, EndpointUnreachable, IntegrityError, OverloadedEndpoint
from durastore.objectstore.retrying import RetryPolicy
from durastore.observe.events import Counting
from durastore.upload.allowance import RequestGate
from durastore.upload.calls import Calls, Request
from durastore.upload.job import UploadLimits

READ = Request(what="a look", is_write=False)
WRITE = Request(what="a write", is_write=True)


class Scene:
    def __init__(
        self, *, budget_s: float = 10.0, timeout_s: float = 60.0, cap_s: float = 0.001, jitter: float = 0.0
    ) -> None:
        self.clock = ManualClock()
        self.events = Counting()
        self.jitters, self._share = 0, jitter
        self.gate = RequestGate(4, clock=self.clock)
        self.calls = Calls(
            gate=self.gate,
            policy=RetryPolicy(budget_s=budget_s, cap_s=cap_s, max_attempts=100, jitter=self._jitter),
            limits=UploadLimits(request_timeout_s=timeout_s),
            clock=self.clock,
            observer=self.events,
        )
        self.attempts = 0

    def _jitter(self) -> float:
        self.jitters += 1
        return self._share

    def run(self, request: Request, attempt: Callable[[], Awaitable[object]]) -> object:
        async def counted() -> object:
            self.attempts += 1
            return await attempt()

        return asyncio.run(self.calls.run(request, counted))


def test_the_budget_counts_from_the_first_failure() -> None:
    scene = Scene(budget_s=10.0)

    async def slow() -> None:
        scene.clock.advance(3.0)
        raise EndpointUnreachable("scripted")

    with pytest.raises(EndpointUnreachable):
        scene.run(READ, slow)
    assert scene.attempts == 5  # failed at 3, 6, 9 and 12 s, then at 15 s, which is beyond 3 + 10
    assert scene.jitters == scene.attempts
    assert scene.events.count("upload.retry") == scene.attempts - 1


def test_a_delay_that_ends_beyond_the_budget_is_not_begun() -> None:
    scene = Scene(budget_s=1.0, cap_s=20.0, jitter=1.0)

    async def fails() -> None:
        raise OverloadedEndpoint("scripted")  # which asks for 0.8 s after the first failure, and 1.6 after the next

    with pytest.raises(OverloadedEndpoint):
        scene.run(READ, fails)
    assert scene.attempts == 2


@pytest.mark.parametrize("request_, kind", [(READ, EndpointUnreachable), (WRITE, AmbiguousWrite)])
def test_a_stuck_request_is_given_up_and_says_what_is_known(request_: Request, kind: type[DurastoreError]) -> None:
    # case B154
    scene = Scene(timeout_s=0.01)

    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(kind, match="stuck"):
        asyncio.run(scene.calls.once(request_, stuck))
    assert scene.events.count("upload.stuck") == 1
    assert (scene.gate.in_flight, scene.gate.limit) == (0, 2)


def test_a_mismatch_is_never_tried_again() -> None:
    scene = Scene()

    async def wrong() -> None:
        raise IntegrityError("scripted")

    with pytest.raises(IntegrityError):
        scene.run(READ, wrong)
    assert scene.attempts == 1
