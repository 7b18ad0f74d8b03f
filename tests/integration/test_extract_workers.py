"""Several processes share one extraction: each sample once, whoever is killed, added or taken out."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from durastore.demo.seaweed import SeaweedServer
from durastore.extract.crew_job import run_shared_extract
from durastore.extract.report import ExtractReport
from durastore.extract.runner import RunnerLimits
from durastore.extract.work_db import WORK_FILE
from tests.integration.extract_lab import FORWARDS, Job, counting_engine, make_model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def job(tmp_path: Path, model_folder: Path, seaweed: SeaweedServer, aws_env: dict[str, str]) -> Job:
    del aws_env
    return Job(tmp_path, model_folder, seaweed)


@pytest.fixture
def forwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line for each sample that went through a model: process id and sample id."""
    path = tmp_path / "forwards.txt"
    monkeypatch.setenv(FORWARDS, str(path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return path


class Running:
    """A shared extraction in a thread of its own."""

    def __init__(self, job: Job, *, workers: int, batch_tokens: int = 64) -> None:
        self._job = job
        self.reports: list[ExtractReport] = []
        self.errors: list[BaseException] = []
        self._request = job.request(workers=workers, limits=RunnerLimits(batch_tokens=batch_tokens), grace_s=30.0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.reports.append(run_shared_extract(self._request, engine_factory=counting_engine))
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            self.errors.append(exc)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def report(self) -> ExtractReport:
        self._thread.join(300)
        assert not self._thread.is_alive()
        assert self.errors == []
        return self.reports[0]


class Queue:
    """What the shared file says, read behind the library's back."""

    def __init__(self, root: Path) -> None:
        self._path = root / WORK_FILE

    def ask(self, query: str) -> list[tuple[int, ...]]:
        if not self._path.exists():
            return []
        with closing(sqlite3.connect(self._path, timeout=30)) as conn, contextlib.suppress(sqlite3.OperationalError):
            return conn.execute(query).fetchall()
        return []

    def stored(self) -> int:
        return sum(number for (number,) in self.ask("SELECT count(*) FROM task WHERE state = 'stored'"))

    def busy_pids(self) -> dict[int, int]:
        """Process id of each worker that leases something -> how many samples."""
        query = (
            "SELECT w.pid, count(*) FROM task t JOIN worker w ON w.id = t.worker WHERE t.state = 'leased' GROUP BY 1"
        )
        return {row[0]: row[1] for row in self.ask(query)}


def _until(is_so: Callable[[], bool], running: Running) -> bool:
    """Wait; False if the run ended first."""
    while running.is_alive:
        if is_so():
            return True
        time.sleep(0.02)
    return False


def _kill_one(queue: Queue, chance: random.Random) -> int:
    """SIGKILL to a worker that is at work; the samples it had leased. A child of ours: its id is not reused."""
    busy = queue.busy_pids()
    if not busy:
        return 0
    pid = chance.choice(sorted(busy))
    os.kill(pid, signal.SIGSTOP)  # or what it leases would change between the look and the kill
    leased = queue.busy_pids().get(pid, 0)
    os.kill(pid, signal.SIGKILL)
    return leased


def _forwards(path: Path) -> Counter[str]:
    return Counter(line.split()[1] for line in path.read_text(encoding="utf-8").splitlines())


def _run_with_kills(job: Job, forwards: Path, *, samples: int, kills: int, seed: int = 7) -> None:
    chance = random.Random(seed)
    running, queue = Running(job, workers=2), Queue(job.root)
    in_flight = done = 0
    for number in range(kills):
        goal = (number + 1) * samples // (kills + 2)
        if not _until(lambda goal=goal: queue.stored() >= goal and bool(queue.busy_pids()), running):  # type: ignore[misc]
            break
        if leased := _kill_one(queue, chance):
            in_flight += leased
            done += 1
    report = running.report()
    counts = report.counts
    assert (report.error, report.local_only, report.exit_code) == (None, (), 0)
    assert (counts.ok, counts.failed, counts.skipped, counts.left) == (samples, 0, 0, 0)
    dataset = job.dataset()
    assert len(dataset) == samples
    passed = _forwards(forwards)
    assert len(passed) == samples
    wasted = sum(passed.values()) - samples
    sys.stdout.write(f"\n{samples} samples, {done} kills, {in_flight} in flight, {wasted} forwards wasted\n")
    assert done == kills
    assert wasted <= in_flight


def _rows(samples: int) -> Iterator[dict[str, object]]:
    for number in range(samples):
        length = 1 + number * 7 % 39
        yield {"id": f"task/{number}", "input_ids": [(number + at) % 61 for at in range(length)] + [number % 61]}


def test_workers_share_the_samples_and_the_result_is_as_of_one(job: Job, forwards: Path) -> None:
    job.write(*_rows(60))
    report = Running(job, workers=2).report()
    assert (report.error, report.exit_code, report.counts.ok, report.counts.left) == (None, 0, 60, 0)
    assert set(_forwards(forwards).values()) == {1}
    dataset = job.dataset()
    assert len(dataset) == 60
    for row in _rows(60):
        sample = dataset[str(row["id"])]
        assert sample.tensors["input_ids"].tolist() == row["input_ids"]
    again = Running(job, workers=2).report()
    assert (again.exit_code, again.counts.ok, again.counts.skipped) == (0, 0, 60)
    assert sum(_forwards(forwards).values()) == 60  # no model was asked again
    assert job.run().counts.skipped == 60


def test_killed_workers_cost_no_sample(job: Job, forwards: Path) -> None:
    job.write(*_rows(200))
    _run_with_kills(job, forwards, samples=200, kills=2)
