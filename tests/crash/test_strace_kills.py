"""SIGKILL at the kernel's own system calls of a real process (INV-1, INV-2, INV-3; cases B02, B113).

strace ends the process on entry of the n-th call of one kind, in whatever thread gets there first: SQLite's writes and
syncs, the interpreter's, and the wake-ups of the upload loop are among them. Then both oracles, as after a forked kill.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.crash.fork_servers import judge, run_jobs, tell
from tests.crash.strace_life import Stop

SERVER = Path(__file__).with_name("strace_life.py")
SAMPLED = 4
POINTS = 260
WANTED = 200
LIVES_UNDER_STRACE = ("groups", "supersede", "parts", "reopen")


def _why_not() -> str | None:
    """Why no process can be traced here; None if one can."""
    if shutil.which("strace") is None:
        return "strace is not installed (Debian: apt-get install strace)"
    tried = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-o", os.devnull, "true"], capture_output=True, text=True, check=False
    )
    return f"strace does not work here: {tried.stderr[-200:]}" if tried.returncode else None


pytestmark = pytest.mark.skipif(_why_not() is not None, reason=str(_why_not()))


def all_stops(tmp_path: Path, lives: tuple[str, ...]) -> list[Stop]:
    """Every call of every kind that a thread of these lives makes."""
    results = run_jobs(SERVER, [asdict(Stop(life=life)) for life in lives], spools=tmp_path)
    judge(results)
    assert not any(result["killed"] for result in results)
    return [
        Stop(life=result["life"], syscall=name, at=at)
        for result in sorted(results, key=lambda result: str(result["life"]))
        for name, most in sorted(result["calls"].items())
        for at in range(1, most + 1)
    ]


def spread(stops: list[Stop], count: int, *, rng: random.Random) -> list[Stop]:
    """That many at random, of every kind of call about as many; of a rare kind all."""
    taken: Counter[str] = Counter()
    turns: list[tuple[int, Stop]] = []
    for stop in rng.sample(stops, len(stops)):
        turns.append((taken[stop.syscall], stop))
        taken[stop.syscall] += 1
    return [stop for _, stop in sorted(turns, key=lambda turn: turn[0])[:count]]


def stop_and_judge(tmp_path: Path, stops: list[Stop]) -> dict[str, int]:
    """All of them; per kind of call how many processes were really killed there."""
    results = run_jobs(SERVER, [asdict(stop) for stop in stops], spools=tmp_path)
    judge(results)
    return dict(Counter(result["syscall"] for result in results if result["killed"]))


@pytest.mark.timeout(300)
def test_sampled_kills_at_system_calls_lose_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    stops = spread(all_stops(tmp_path, LIVES_UNDER_STRACE[:1]), SAMPLED, rng=random.Random(seed))
    killed = stop_and_judge(tmp_path, stops)
    assert sum(killed.values()) >= SAMPLED // 2, f"seed {seed}"


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_kills_at_system_calls_lose_nothing(tmp_path: Path) -> None:
    begun = time.monotonic()
    seed = random.randrange(1 << 32)
    known = all_stops(tmp_path, LIVES_UNDER_STRACE)
    stops = spread(known, POINTS, rng=random.Random(seed))
    killed = stop_and_judge(tmp_path, stops)
    total, seconds = sum(killed.values()), time.monotonic() - begun
    kinds = ", ".join(f"{name} {number}" for name, number in sorted(killed.items()))
    tell(f"{total} kills by strace of {len(known)} known calls in {seconds:.0f} s: nothing lost ({kinds}; seed {seed})")
    assert total >= WANTED, f"seed {seed}"
