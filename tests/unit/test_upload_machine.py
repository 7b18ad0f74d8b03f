"""The machine's cap on requests: shared out without a remainder, looked at once a second, never a reason to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durastore.clock import ManualClock
from durastore.errors import SpoolUnreadable
from durastore.fsio.presence import Presence, Standing
from durastore.objectstore.retrying import RetryPolicy
from durastore.upload.allowance import RequestGate
from durastore.upload.engine import Uploader
from durastore.upload.job import UploadLimits
from durastore.upload.machine import MachineShare, share_of
from tests.unit.upload_fakes import FakeTransport, Pack


@given(cap=st.integers(1, 1_000), count=st.integers(1, 1_000))
def test_the_shares_make_up_the_cap_and_nobody_gets_none(cap: int, count: int) -> None:
    shares = [share_of(cap, Standing(rank=rank, count=count)) for rank in range(count)]
    assert sum(shares) == max(cap, count)
    assert min(shares) >= 1
    assert max(shares) - min(shares) <= 1


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_shares_follow_who_is_there(runtime: Path) -> None:
    clock = ManualClock()
    first, second = MachineShare(100, clock=clock), MachineShare(100, clock=clock)
    assert first.limit() == 100
    assert second.limit() == 50
    assert first.limit() == 100, "within a second nothing is asked again"
    clock.advance(1)
    assert (first.limit(), second.limit()) == (50, 50)
    second.close()
    second.close()
    clock.advance(1)
    assert first.limit() == 100
    assert second.limit() == 50, "it takes its place again when it is asked"
    first.close()
    second.close()


@pytest.mark.parametrize("error", [PermissionError("read-only"), SpoolUnreadable("not a file")])
def test_where_nobody_can_be_counted_the_own_limit_stands_and_one_line_says_so(
    caplog: pytest.LogCaptureFixture, runtime: Path, error: Exception
) -> None:
    clock = ManualClock()
    is_broken = True

    def take() -> Presence:
        if is_broken:
            raise error
        return Presence("requests")

    share = MachineShare(4, clock=clock, take=take)
    gate = RequestGate(32, clock=clock, share=share.limit)
    with caplog.at_level(logging.WARNING, "durastore"):
        for _ in range(40):
            gate.succeeded()
            clock.advance(1)
    assert gate.limit == 32
    assert len(caplog.records) == 1
    is_broken = False
    clock.advance(1)
    gate.succeeded()
    assert gate.limit == 4
    share.close()


def test_a_forked_childs_share_leaves_the_parents_place_alone(runtime: Path) -> None:
    clock = ManualClock()
    share, other = MachineShare(10, clock=clock), MachineShare(10, clock=clock)
    share.limit()
    child = os.fork()
    if child == 0:
        share.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert other.limit() == 5
    share.close()
    other.close()


def _gate(share: Callable[[], int | None]) -> RequestGate:
    gate = RequestGate(32, clock=ManualClock(), share=share)
    for _ in range(40):
        gate.succeeded()
    return gate


def test_a_gate_shrinks_and_grows_with_its_share() -> None:
    now: list[int | None] = [12]
    gate = _gate(lambda: now[0])
    assert gate.limit == 12
    now[0] = 3
    gate.succeeded()
    assert gate.limit == 3
    now[0] = 1
    gate.succeeded()
    assert gate.limit == 1
    now[0] = None
    for _ in range(40):
        gate.succeeded()
    assert gate.limit == 32


def test_an_overload_still_halves_what_the_share_left() -> None:
    gate = _gate(lambda: 12)
    gate.overloaded(0)
    assert gate.limit == 6


def test_requests_under_way_when_the_share_falls_end_and_new_ones_wait() -> None:
    async def main() -> None:
        now = [8]
        gate = RequestGate(8, clock=ManualClock(), share=lambda: now[0])
        most: list[int] = []
        gates = [asyncio.Event() for _ in range(20)]

        async def one(number: int) -> None:
            async with gate.request():
                most.append(gate.in_flight)
                await gates[number].wait()
                gate.succeeded()

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(one(number))
            await asyncio.sleep(0)
            assert gate.in_flight == 8
            now[0] = 2
            for number in range(20):
                gates[number].set()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        assert len(most) == 20
        assert max(most[8:]) <= 7, "none was let in before those under way had made room"
        assert most[-1] <= 2

    asyncio.run(main())


class Crowded(FakeTransport):
    """Counts the requests that are under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.before, self.after = self._enter, self._leave

    async def _enter(self, op: str, nth: int) -> None:
        self.now += 1
        self.peak = max(self.peak, self.now)
        for _ in range(20):
            await asyncio.sleep(0)

    async def _leave(self, op: str, nth: int) -> None:
        self.now -= 1


@pytest.mark.parametrize("cap, expected", [(None, 16), (1_000, 16), (9, 3), (3, 1), (1, 1)])
def test_an_engine_keeps_to_its_share_beside_two_other_processes(
    runtime: Path, tmp_path: Path, cap: int | None, expected: int
) -> None:
    held = [subprocess.Popen([sys.executable, "-c", HOLD], stdin=-1, stdout=-1) for _ in range(2)]
    try:
        for process in held:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
        transport = Crowded()
        limits = UploadLimits(max_requests=16, machine_requests=cap)
        engine = Uploader(transport.open, limits=limits, policy=RetryPolicy(budget_s=1))
        packs = [Pack.make(tmp_path, f"p{n}", b"x" * 100) for n in range(120)]
        for future in [engine.submit(pack.job()) for pack in packs]:
            future.result(30)
        engine.close(10)
        assert transport.peak == expected
        assert Presence("requests").look().count == 3, "a closed engine holds no place"
    finally:
        for process in held:
            process.kill()
            process.communicate()


HOLD = """
import sys
from durastore.fsio.presence import Presence
held = Presence("requests")
print("held", flush=True)
sys.stdin.read()
"""
