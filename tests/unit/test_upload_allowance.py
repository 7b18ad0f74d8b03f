"""The byte budget and the request gate."""

from __future__ import annotations

import asyncio
import random

from durastore.clock import SYSTEM_CLOCK
from durastore.upload.allowance import Allowance, RequestGate


def test_it_never_grants_more_than_it_has_and_serves_in_order() -> None:
    async def scene() -> list[int]:
        allowance = Allowance(10)
        served: list[int] = []

        async def ask(number: int, amount: int) -> None:
            await allowance.acquire(amount)
            served.append(number)
            assert allowance.used <= 10
            await asyncio.sleep(0)
            allowance.release(amount)

        await asyncio.gather(*(ask(n, 1 + n * 7 % 10) for n in range(50)))
        assert allowance.used == 0
        return served

    assert asyncio.run(scene()) == list(range(50))


def test_an_amount_above_the_capacity_goes_alone_instead_of_never() -> None:
    async def scene() -> None:
        allowance = Allowance(10)
        await allowance.acquire(1)
        large = asyncio.ensure_future(allowance.acquire(25))
        await asyncio.sleep(0)
        assert not large.done()
        allowance.release(1)
        await large
        assert allowance.used == 25
        small = asyncio.ensure_future(allowance.acquire(1))
        await asyncio.sleep(0)
        assert not small.done()
        allowance.release(25)
        await small

    asyncio.run(scene())


def test_cancelled_waiters_at_any_moment_leak_nothing() -> None:
    async def scene(seed: int) -> None:
        chance = random.Random(seed)
        allowance = Allowance(8)

        async def work() -> None:
            amount = chance.randint(1, 8)
            await allowance.acquire(amount)
            try:
                await asyncio.sleep(0)
            finally:
                allowance.release(amount)

        tasks = [asyncio.ensure_future(work()) for _ in range(40)]
        for _ in range(30):
            await asyncio.sleep(0)
            chance.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert allowance.used == 0
        await asyncio.wait_for(allowance.acquire(8), 1)

    for seed in range(40):
        asyncio.run(scene(seed))


def test_one_overload_halves_once_and_success_grows_back_to_the_ceiling() -> None:
    async def scene() -> None:
        gate = RequestGate(16, clock=SYSTEM_CLOCK)
        assert gate.limit == 8
        for _ in range(20):
            gate.succeeded()  # until the first overload each success is one more
        assert gate.limit == 16
        async with gate.request() as first, gate.request() as second:
            gate.overloaded(first)
            gate.overloaded(second)  # sent before the first decrease: the same event
        assert gate.limit == 8
        async with gate.request() as third:
            gate.overloaded(third)
        assert gate.limit == 4
        for _ in range(200):
            gate.succeeded()
        assert gate.limit == 16

    asyncio.run(scene())


def test_the_limit_never_falls_below_one_request() -> None:
    async def scene() -> None:
        gate = RequestGate(3, clock=SYSTEM_CLOCK)
        for _ in range(3):
            async with gate.request() as token:
                gate.overloaded(token)
        assert gate.limit == 1
        async with gate.request():
            assert gate.in_flight == 1

    asyncio.run(scene())


def test_after_an_overload_new_requests_pause() -> None:
    async def scene() -> float:
        gate = RequestGate(4, clock=SYSTEM_CLOCK)
        async with gate.request() as token:
            gate.overloaded(token)
        started = SYSTEM_CLOCK.monotonic()
        async with gate.request():
            return SYSTEM_CLOCK.monotonic() - started

    assert asyncio.run(scene()) >= 0.04
