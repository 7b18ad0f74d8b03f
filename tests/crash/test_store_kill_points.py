"""SIGKILL at counted steps of whole store lives, and of the recoveries after them (INV-1, INV-2, INV-3, INV-9).

A step is a system call that changes a file, either side of a journal commit, or either side of a request to the bucket.
Both oracles are held against what is left: every acknowledged sample is obtainable, every unlink was proven; and a
resumed extractor ends with one live row of the last version of each sample. Cases B02, B113.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.crash.fork_servers import judge, run_jobs, tell
from tests.crash.lives import LIVES, puts_of
from tests.crash.store_life import EARLIER, Trial

SERVER = Path(__file__).with_name("store_life.py")
SAMPLED = 3
SAMPLED_RECOVERIES = 6
FIRST_KILLS = 1
WANTED = 2_000


def run_trials(tmp_path: Path, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    return run_jobs(SERVER, [asdict(trial) for trial in trials], spools=tmp_path)


def count_steps(tmp_path: Path, trials: list[Trial]) -> dict[Trial, int]:
    """How many steps each has when its last life is not killed."""
    results = {_trial_of(result): result for result in run_trials(tmp_path, trials)}
    judge(list(results.values()))
    for trial, result in results.items():
        assert not result["killed"]
        if not trial.first_at:
            puts = puts_of([*LIVES[trial.life], *EARLIER.get(trial.life, ())])
            assert result["acknowledged"] == sum(map(len, puts))
    return {trial: int(result["steps"]) for trial, result in results.items()}


def _trial_of(result: dict[str, Any]) -> Trial:
    return Trial(life=result["life"], at=result["at"], first_at=result["first_at"])


def run_and_judge(tmp_path: Path, trials: list[Trial]) -> int:
    """All of them; how many were really killed. Threads interleave freely, so a last step may not come every time."""
    results = run_trials(tmp_path, trials)
    judge(results)
    return sum(result["killed"] for result in results)


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown by pytest if the test fails
    return random.Random(seed)


@pytest.mark.timeout(300)
def test_sampled_kill_points_lose_nothing(tmp_path: Path, rng: random.Random) -> None:
    steps = count_steps(tmp_path, [Trial(life=life, at=0) for life in LIVES])
    trials = [
        Trial(life=whole.life, at=at) for whole, count in steps.items() for at in rng.sample(range(1, count), SAMPLED)
    ]
    for _ in range(SAMPLED_RECOVERIES):
        life = rng.choice(list(LIVES))
        first_at = rng.randrange(1, steps[Trial(life=life, at=0)])
        trials.append(Trial(life=life, at=rng.randrange(1, 250), first_at=first_at))
    assert run_and_judge(tmp_path, trials) >= len(trials) * 0.8


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_every_kill_point_loses_nothing(tmp_path: Path) -> None:
    begun = time.monotonic()
    steps = count_steps(tmp_path, [Trial(life=life, at=0) for life in LIVES])
    trials = [Trial(life=whole.life, at=at) for whole, count in steps.items() for at in range(1, count + 1)]
    killed = run_and_judge(tmp_path, trials)
    seconds = time.monotonic() - begun
    tell(
        f"{killed} of {len(trials)} kill points of {len(steps)} lives by fork in {seconds:.0f} s: nothing lost, "
        "every unlink proven"
    )
    assert killed >= 0.95 * len(trials)
    assert killed >= WANTED


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_every_kill_point_of_a_recovery_loses_nothing(tmp_path: Path, rng: random.Random) -> None:
    """A process is killed somewhere, the one that recovers from it is killed at every step, and a third one looks."""
    lives = count_steps(tmp_path, [Trial(life=life, at=0) for life in LIVES])
    firsts = [rng.choice([(whole.life, at) for at in range(1, count)]) for whole, count in lives.items()]
    firsts += rng.sample([(whole.life, at) for whole, count in lives.items() for at in range(1, count)], FIRST_KILLS)
    recoveries = count_steps(tmp_path, [Trial(life=life, at=0, first_at=at) for life, at in dict.fromkeys(firsts)])
    trials = [
        Trial(life=whole.life, at=at, first_at=whole.first_at)
        for whole, count in recoveries.items()
        for at in range(1, count + 1)
    ]
    killed = run_and_judge(tmp_path, trials)
    tell(f"{killed} of {len(trials)} kill points of {len(recoveries)} recoveries: nothing lost, every unlink proven")
    assert killed >= 0.95 * len(trials)
