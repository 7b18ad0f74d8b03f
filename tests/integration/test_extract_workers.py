"""Several processes share one extraction: each sample once, whoever is killed, added or taken out."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from durastore.demo.material import find_model, write_prompts
from durastore.demo.seaweed import SeaweedServer
from durastore.errors import EngineFailed
from durastore.extract import crew_job
from durastore.extract.crew import CrewEnd
from durastore.extract.crew_job import run_shared_extract
from durastore.extract.failure_book import load_failures
from durastore.extract.job import EngineFactory, run_extract
from durastore.extract.report import ExtractReport
from durastore.extract.runner import RunnerLimits
from durastore.extract.stop import stop
from durastore.extract.transformers_engine import ModelSettings
from durastore.fsio.folder import Folder
from durastore.fsio.lock import holders
from durastore.monitor.sampler import look_once
from durastore_cli.main import run as cli
from tests.integration.extract_lab import Job, Queue, Running, extracting, job, model_folder
from tests.integration.worker_engines import (
    FAULTS,
    FORWARDS,
    HELD,
    counted_stand_in,
    counting_engine,
    faulty_engine,
    faulty_stand_in,
    stand_in_states,
)

__all__ = ["job", "model_folder"]  # fixtures

# A process of the real engine loads torch before it works, and several do on few cores. Where a test is about leases
# and not about a model, workers have a stand-in for it.
pytestmark = pytest.mark.timeout(900)

BATCH_TOKENS = 64
"""As many samples can two workers hold: a batch each, of at least two tokens a sample."""

FAULT_KINDS = {
    "nan": "NaN",
    "zero": "zero everywhere",
    "constant": "the same number everywhere",
    "short": "rows of states",
    "mismatch": "token ids",
    "oom": "out of memory",
    "timeout": "no answer",
}


@pytest.fixture
def forwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line for each sample that went through a model: process id and sample id."""
    path = tmp_path / "forwards.txt"
    monkeypatch.setenv(FORWARDS, str(path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return path


def shared(
    job: Job,
    *,
    workers: int,
    engine: EngineFactory = counted_stand_in,
    batch_tokens: int = BATCH_TOKENS,
    **more: Any,
) -> Running:
    limits = RunnerLimits(batch_tokens=batch_tokens)
    request = job.request(**{"workers": workers, "limits": limits, "grace_s": 30.0, **more})
    return Running(lambda: run_shared_extract(request, engine_factory=engine), within_s=3000)


def _until(is_so: Callable[[], bool], running: Running) -> bool:
    """Wait; False if the run ended first."""
    while running.is_alive:
        if is_so():
            return True
        time.sleep(0.1)
    return False


def _kill_one(queue: Queue, killed: set[int], *, chance: random.Random) -> int:
    """SIGKILL to a worker that is at work; the samples it had leased. The killed lease until somebody notices."""
    busy = sorted(queue.busy_pids().keys() - killed)
    if not busy:
        return 0
    pid = chance.choice(busy)
    killed.add(pid)
    os.kill(pid, signal.SIGSTOP)  # or what it leases would change between the look and the kill
    leased = queue.busy_pids().get(pid, 0)
    os.kill(pid, signal.SIGKILL)
    return leased


def _hold(forwards: Path, after: int, *, but: int | None = None) -> None:
    """Passes wait once `after` samples went into one, but for those of process `but`: nothing ends too early for what a
    test does to it, however quick the workers are.
    """
    path, fresh = forwards.with_suffix(HELD), forwards.with_suffix(".fresh")
    fresh.write_text(f"{after}" if but is None else f"{after} {but}", encoding="utf-8")
    fresh.rename(path)  # never seen empty, which would hold everything


def _let_go(forwards: Path) -> None:
    forwards.with_suffix(HELD).unlink()


def _forwards(path: Path) -> Counter[str]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return Counter(line.split()[1] for line in text.splitlines())


def _passed(path: Path) -> set[int]:
    """Process ids of the workers that made a pass."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {int(line.split()[0]) for line in text.splitlines()}


def _run_with_kills(job: Job, forwards: Path, *, samples: int, kills: int, seed: int = 7, **more: Any) -> None:
    chance = random.Random(seed)
    most_held = more.get("batch_tokens", BATCH_TOKENS)
    _hold(forwards, 0)
    running, queue = shared(job, workers=2, **more), Queue(job.root)
    in_flight = done = 0
    killed: set[int] = set()
    for number in range(kills):
        goal = (number + 1) * samples // (kills + 4)
        behind = len(_forwards(forwards)) - queue.stored()  # what killed workers had may be done last
        _hold(forwards, goal + most_held + max(0, behind))
        leased = 0
        while not leased and _until(
            lambda goal=goal: queue.stored() >= goal and bool(queue.busy_pids()),  # type: ignore[misc]
            running,
        ):
            leased = _kill_one(queue, killed, chance=chance)
        in_flight += leased
        done += leased > 0
    _let_go(forwards)
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


def _rows(samples: int) -> Iterator[dict[str, Any]]:
    for number in range(samples):
        length = 1 + number * 7 % 39
        yield {"id": f"task/{number}", "input_ids": [(number + at) % 61 for at in range(length)] + [number % 61]}


def test_workers_share_the_samples_and_the_result_is_as_of_one(job: Job, forwards: Path) -> None:
    job.write(*_rows(60))
    report = shared(job, workers=2).report()
    assert (report.error, report.exit_code, report.counts.ok, report.counts.left) == (None, 0, 60, 0)
    assert set(_forwards(forwards).values()) == {1}
    _monitor_tells_the_end(job, inputs=60)
    dataset = job.dataset()
    assert len(dataset) == 60
    for row in _rows(60):
        sample, ids = dataset[str(row["id"])], row["input_ids"]
        assert sample.tensors["input_ids"].tolist() == ids
        bits = torch.from_numpy(stand_in_states(ids, [1, 3, 4]).view("i2"))
        assert torch.equal(sample.tensors["hidden_states"].view(torch.int16), bits)
    again = shared(job, workers=1).report()
    assert (again.exit_code, again.counts.ok, again.counts.skipped) == (0, 0, 60)
    assert sum(_forwards(forwards).values()) == 60  # no model was asked again
    assert job.run().counts.skipped == 60


def _monitor_tells_the_end(job: Job, *, inputs: int) -> None:
    """Each process that worked last in a spool said goodbye, and the queue's counts are those of the report."""
    view = look_once([job.root])
    shown = view.job
    assert shown is not None
    assert (shown.done, shown.inputs, shown.state, shown.workers) == (inputs, inputs, "finished", 2)
    assert {worker.state for worker in view.workers} == {"ended"}
    assert (view.risk.samples, view.banners) == (0, ())


def test_killed_workers_cost_no_sample(job: Job, forwards: Path) -> None:
    job.write(*_rows(200))
    _run_with_kills(job, forwards, samples=200, kills=2)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_ten_kills_of_a_small_model_cost_no_sample(job: Job, forwards: Path) -> None:
    job.write(*_rows(600))
    _run_with_kills(job, forwards, samples=600, kills=10, engine=counting_engine)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_ten_kills_cost_no_sample(
    tmp_path: Path, seaweed: SeaweedServer, forwards: Path, aws_env: dict[str, str]
) -> None:
    """With a real model and the beginnings of HumanEval's prompts: 600, of many lengths, under ids of their own."""
    del aws_env
    job = Job(tmp_path, find_model(), seaweed)
    with Folder.create(tmp_path / "prompts") as folder:
        prompts = [json.loads(line) for line in write_prompts(folder, count=164).read_text("utf-8").splitlines()]
    texts = {
        f"{row['id']}/{part}": row["prompt"][: 20 + 50 * part + number]
        for number, row in enumerate(prompts)
        for part in range(4)
    }
    job.write(*({"id": name, "prompt": text} for name, text in list(texts.items())[:600]))
    settings = ModelSettings(device="cpu", dtype="float32")  # several times as fast as bfloat16 on most processors
    limits = {"max_tokens": 64, "is_truncated": True}  # the longer ones would take hours on a few cores
    _run_with_kills(
        job, forwards, samples=600, kills=10, batch_tokens=1024, settings=settings, engine=counting_engine, **limits
    )


def test_a_worker_leaves_and_another_joins_in_the_middle(job: Job, forwards: Path) -> None:
    samples = 240
    job.write(*_rows(samples))
    _hold(forwards, 40)  # so that all three are at work, however quick one of them is
    running, queue = shared(job, workers=3), Queue(job.root)
    # One that leases may leave before its first pass: each has to have made one.
    assert _until(lambda: queue.stored() >= 20 and len(queue.busy_pids().keys() & _passed(forwards)) == 3, running)
    leaving = min(queue.busy_pids())
    os.kill(leaving, signal.SIGTERM)
    _hold(forwards, 120, but=leaving)  # and something is left for the one that joins
    assert _until(lambda: leaving not in queue.busy_pids() and queue.stored() >= 60, running)
    joining = shared(job, workers=1)
    assert _until(lambda: len(queue.ask("SELECT 1 FROM worker")) == 4 and len(queue.busy_pids()) == 3, joining)
    _let_go(forwards)
    first, second = running.report(), joining.report()
    for report in (first, second):
        assert (report.error, report.local_only, report.exit_code) == (None, (), 0)
        assert (report.counts.failed, report.counts.left) == (0, 0)
    assert first.counts.ok == samples
    assert second.counts.ok + second.counts.skipped == samples
    passed = _forwards(forwards)
    assert (len(passed), sum(passed.values())) == (samples, samples)  # 0 missing, 0 twice
    assert len(job.dataset()) == samples
    assert len(_passed(forwards)) == 4  # each of them worked


def test_workers_that_end_well_and_leave_all_samples_are_an_error(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write(*_rows(4))
    monkeypatch.setattr(crew_job, "run_crew", lambda *_, **__: CrewEnd())
    report = shared(job, workers=2).report()
    assert isinstance(report.error, EngineFailed)
    assert "left 4 samples" in report.error.message
    assert (report.counts.left, report.exit_code) == (4, report.error.exit_code)


def test_a_stop_hands_back_what_was_not_done_and_the_next_run_goes_on(job: Job, forwards: Path) -> None:
    samples = 200
    job.write(*_rows(samples))
    _hold(forwards, 20 + BATCH_TOKENS)
    running, queue = shared(job, workers=2), Queue(job.root)
    assert _until(lambda: queue.stored() >= 20 and len(queue.busy_pids()) == 2, running)
    assert stop(job.root, 0.0).exit_code == 11  # they got the signal in the middle of a pass, and finish that
    _let_go(forwards)
    assert stop(job.root, 60.0).exit_code == 0
    report = running.report()
    assert report.exit_code == 143
    assert report.counts.ok + report.counts.left == samples
    assert report.counts.left > 0
    assert (report.error, report.local_only) == (None, ())
    assert queue.busy_pids() == {}
    again = shared(job, workers=1).report()
    assert (again.exit_code, again.counts.skipped + again.counts.ok) == (0, samples)
    passed = _forwards(forwards)
    assert (len(passed), sum(passed.values())) == (samples, samples)


@pytest.mark.parametrize("workers", [None, 2])
def test_every_fault_ends_in_the_ledger_and_is_done_once_its_cause_is_gone(
    job: Job, forwards: Path, workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {f"task/{number}": fault for number, fault in enumerate(FAULT_KINDS, start=5)}
    plan = job.root.parent / "faults.json"
    monkeypatch.setenv(FAULTS, str(plan))
    plan.write_text(json.dumps(faults), encoding="utf-8")
    rows: list[dict[str, Any] | str] = [*_rows(40), "{", {"id": "long", "input_ids": [1] * 41}]
    job.write(*rows)

    def run(**more: Any) -> ExtractReport:
        if workers is not None:
            number = 1 if more.get("is_retry") else workers  # little is left for a retry
            return shared(job, workers=number, engine=faulty_stand_in, batch_tokens=256, **more).report()
        limits = RunnerLimits(batch_tokens=256)
        return run_extract(job.request(limits=limits, **more), engine_factory=faulty_engine)

    report = run()
    counts = report.counts
    assert (report.error, report.exit_code) == (None, 3)
    assert (counts.inputs, counts.ok, counts.failed, counts.skipped) == (42, 40 - len(faults), len(faults) + 2, 0)
    reasons = {str(failure.sample_id): failure.reason for failure in report.failures}
    known = {failure.sample_id: failure for failure in load_failures(job.root)}
    assert {str(name) for name in known} == set(reasons) == {*faults, "long", "None"}
    for name, fault in faults.items():
        assert FAULT_KINDS[fault] in reasons[name]
        assert known[name].reason == reasons[name]
        assert known[name].worker.startswith("pid" if workers is None else "worker")
    oom = next(known[name] for name, fault in faults.items() if fault == "oom")
    assert oom.attempts > 1  # halved until it stood alone
    assert cli(["status", "--failed", "--local", str(job.root)]) == 3
    assert len(job.dataset()) == counts.ok

    again = run(is_retry=True)
    assert (again.exit_code, again.counts.ok, again.counts.failed, again.counts.left) == (3, 0, len(known), 0)
    assert again.counts.skipped == counts.ok
    assert {failure.runs for failure in load_failures(job.root)} == {2}
    plan.write_text("{}", encoding="utf-8")
    job.write(*_rows(40), {"id": "was-unreadable", "input_ids": [7]}, {"id": "long", "input_ids": [1] * 40})
    last = run(is_retry=True)
    assert (last.error, last.exit_code) == (None, 0)
    assert (last.counts.ok, last.counts.failed, last.counts.skipped) == (len(known), 0, counts.ok)
    assert load_failures(job.root) == []
    assert cli(["status", "--failed", "--local", str(job.root)]) == 0
    assert len(job.dataset()) == 42
    del forwards


def test_a_retry_looks_at_nothing_that_did_not_fail(job: Job, forwards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = job.root.parent / "faults.json"
    monkeypatch.setenv(FAULTS, str(plan))
    plan.write_text(json.dumps({"task/3": "nan"}), encoding="utf-8")
    job.write(*_rows(5))
    run_extract(job.request(), engine_factory=faulty_engine)
    plan.write_text("{}", encoding="utf-8")
    job.write(*_rows(8))
    report = run_extract(job.request(is_retry=True), engine_factory=faulty_engine)
    assert (report.counts.ok, report.counts.skipped, report.counts.left) == (1, 4, 3)
    assert report.exit_code == 3  # the new ones are left, and that is told
    assert _forwards(forwards)["task/3"] == 2


def test_a_sample_that_kills_its_worker_fails_and_no_other_is_lost(
    job: Job, forwards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = job.root.parent / "faults.json"
    monkeypatch.setenv(FAULTS, str(plan))
    plan.write_text(json.dumps({"task/7": "kill"}), encoding="utf-8")
    job.write(*_rows(30))
    report = shared(job, workers=1, engine=faulty_stand_in).report()
    assert (report.error, report.exit_code, report.counts.ok, report.counts.failed) == (None, 3, 29, 1)
    (failure,) = report.failures
    assert (str(failure.sample_id), failure.stage, failure.attempts) == ("task/7", "worker", 3)
    assert len(job.dataset()) == 29
    del forwards


def test_workers_stop_when_the_command_that_started_them_is_killed(
    job: Job, model_folder: Path, forwards: Path, aws_env: dict[str, str]
) -> None:
    job.write(*_rows(400))
    with extracting(job, model_folder, aws_env, "--workers", "2", "--batch-tokens", "64") as command:
        queue = Queue(job.root)
        while queue.stored() < 10:
            assert command.poll() is None
            time.sleep(0.05)
        command.send_signal(signal.SIGKILL)
        command.wait()
    while queue.ask("SELECT 1 FROM task WHERE state = 'leased' LIMIT 1") or _held(job.root):
        time.sleep(0.1)  # they hand back, flush and leave; the test's own timeout is the limit
    assert len(job.dataset()) == queue.stored()
    report = shared(job, workers=1, layers="2,last").report()
    assert (report.exit_code, report.counts.ok + report.counts.skipped) == (0, 400)
    assert report.counts.skipped >= 10
    assert sum(_forwards(forwards).values()) == report.counts.ok


def _held(root: Path) -> bool:
    return any(holders(lock) for lock in root.glob("w-*/lock"))
