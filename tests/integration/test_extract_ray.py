"""An extraction by actors of a Ray cluster: the loss of one changes nothing of the result."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import durastore
from durastore.demo.material import find_model, write_prompts
from durastore.demo.seaweed import SeaweedServer
from durastore.errors import ConfigError
from durastore.extract.job import run_extract
from durastore.extract.runner import RunnerLimits
from durastore.extract.transformers_engine import ModelSettings
from durastore.fsio.folder import Folder
from durastore.integrations.ray_cluster import LOCAL, Needs, RayCluster, connected
from durastore.integrations.ray_extract import RaySettings, extract_on_ray
from tests.integration.extract_lab import Job, Queue, Running, extracting, model_folder
from tests.integration.worker_engines import FORWARDS, HELD, counting_engine

__all__ = ["model_folder"]  # fixtures

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("ray") is None, reason="there is no Ray for this Python"),
]

ALONE = RunnerLimits(batch_tokens=1)
"""A batch for each sample: what is compared bit by bit must not depend on its neighbours."""


@pytest.fixture(scope="module")
def forwards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A line for each sample that went through a model: process id and sample id."""
    return tmp_path_factory.mktemp("forwards") / "forwards.txt"


@pytest.fixture(scope="module", autouse=True)
def cluster(forwards: Path, seaweed: SeaweedServer) -> Iterator[None]:
    """Ray on this machine, with what its actors find in their environment: they are children of it, not of a test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**seaweed.environment(), FORWARDS: str(forwards)}.items():
            patch.setenv(name, value)
        with connected(LOCAL, Needs(workers=4)):
            yield


@pytest.fixture
def job(tmp_path: Path, model_folder: Path, seaweed: SeaweedServer) -> Job:
    return Job(tmp_path, model_folder, seaweed)


def by_actors(job: Job, **more: Any) -> Running:
    """By two actors."""
    request = job.request(**{"workers": 2, "limits": ALONE, "grace_s": 30.0, **more})
    settings = RaySettings(address=LOCAL)
    return Running(lambda: extract_on_ray(request, settings, engine=counting_engine), within_s=800)


def _rows(samples: int) -> Iterator[dict[str, object]]:
    for number in range(samples):
        length = 1 + number * 7 % 39
        yield {"id": f"task/{number}", "input_ids": [(number + at) % 61 for at in range(length)] + [number % 61]}


def _passed(forwards: Path) -> list[list[str]]:
    """Process id and sample id of each pass so far."""
    return [line.split() for line in forwards.read_text("utf-8").splitlines()] if forwards.exists() else []


def _workers(forwards: Path) -> set[str]:
    return {pid for pid, _ in _passed(forwards)}


def _until(is_so: Callable[[], bool], running: Running) -> None:
    while not is_so():
        assert running.is_alive
        time.sleep(0.05)


def _contents(job: Job) -> dict[str, dict[str, bytes]]:
    """Sample -> tensor -> its bytes."""
    dataset = job.dataset()
    samples = {name: dataset[name] for name in dataset.ids}
    return {
        name: {tensor: value.reshape(-1).view(torch.uint8).numpy().tobytes() for tensor, value in each.tensors.items()}
        for name, each in samples.items()
    }


def _alone(job: Job, folder: Path, model: Path, server: SeaweedServer, **more: Any) -> Job:
    """The same input, by one process without a queue, to a bucket of its own."""
    with Folder.create(folder):
        other = Job(folder, model, server)
    other.input.write_bytes(job.input.read_bytes())
    report = run_extract(other.request(**{"limits": ALONE, **more}))
    assert report.exit_code == 0
    return other


def test_the_loss_of_an_actor_changes_nothing_of_the_result(
    job: Job, forwards: Path, tmp_path: Path, model_folder: Path, seaweed: SeaweedServer
) -> None:
    samples = 40
    job.write(*_rows(samples))
    held = forwards.with_suffix(HELD)
    held.write_text("12", encoding="utf-8")  # so that both are in a pass
    running = by_actors(job)
    _until(lambda: len(_passed(forwards)) >= 12 and len(_workers(forwards)) == 2, running)
    _until(lambda: Queue(job.root).stored() == len(_passed(forwards)) - 2, running)  # and what they stored is told
    killed = _passed(forwards)[-1][0]
    os.kill(int(killed), signal.SIGKILL)
    _until(lambda: len(_workers(forwards)) == 3, running)  # another took its place, and is in a pass
    held.unlink()
    report = running.report()
    assert (report.error, report.local_only, report.left_behind, report.exit_code) == (None, (), (), 0)
    counts = report.counts
    assert (counts.ok, counts.failed, counts.skipped, counts.left) == (samples, 0, 0, 0)
    passed = Counter(name for _, name in _passed(forwards))
    assert (len(passed), sum(passed.values()) - samples) == (samples, 1)  # the one that it was in
    dataset = job.dataset()
    assert (len(dataset), dataset.duplicates) == (samples, ())
    assert _contents(job) == _contents(_alone(job, tmp_path / "alone", model_folder, seaweed))
    again = by_actors(job).report()
    assert (again.exit_code, again.counts.ok, again.counts.skipped) == (0, 0, samples)


def _kill_some(running: Running, queue: Queue, *, samples: int, kills: int) -> int:
    """SIGKILL to the actor that was in a pass last, so many times over the run. The samples that these had leased."""
    in_flight, killed = 0, set[int]()
    for number in range(kills):
        goal = (number + 1) * samples // (kills + 2)
        _until(  # the leases of one that was killed stay until the command has noticed
            lambda goal=goal: queue.stored() >= goal and bool(queue.busy_pids().keys() - killed),  # type: ignore[misc]
            running,
        )
        pid = max(queue.busy_pids().keys() - killed)
        killed.add(pid)
        os.kill(pid, signal.SIGSTOP)  # or what it leases would change between the look and the kill
        time.sleep(2)  # what it was asked before is answered by now
        in_flight += queue.busy_pids().get(pid, 0)
        os.kill(pid, signal.SIGKILL)
    return in_flight


def test_what_no_machine_has_is_refused_and_named() -> None:
    with pytest.raises(ConfigError, match=r"2 GPU, 1 CPU for each; the cluster has 0 GPU, \d+ CPU"):
        RayCluster(Needs(num_gpus=2))


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_three_kills_with_a_real_model_change_nothing_of_the_result(
    tmp_path: Path, forwards: Path, seaweed: SeaweedServer
) -> None:
    """SmolLM2 and HumanEval's prompts, in batches; against one process that was not disturbed."""
    samples, model = 100, find_model()
    job = Job(tmp_path, model, seaweed)
    with Folder.create(tmp_path / "prompts") as folder:
        job.input.write_bytes(write_prompts(folder, count=samples).read_bytes())
    forwards.unlink(missing_ok=True)
    few: dict[str, Any] = {
        "settings": ModelSettings(device="cpu", dtype="float32"),
        "max_tokens": 64,
        "is_truncated": True,
    }
    few["limits"] = RunnerLimits(batch_tokens=512)
    running = by_actors(job, **few)
    in_flight = _kill_some(running, Queue(job.root), samples=samples, kills=3)
    report = running.report()
    assert (report.error, report.local_only, report.left_behind, report.exit_code) == (None, (), (), 0)
    assert (report.counts.ok, report.counts.failed, report.counts.left) == (samples, 0, 0)
    passed = Counter(name for _, name in _passed(forwards))
    wasted = sum(passed.values()) - samples
    sys.stdout.write(f"\n{samples} samples, 3 kills, {in_flight} in flight, {wasted} forwards wasted\n")
    assert len(passed) == samples
    assert wasted <= in_flight
    dataset = job.dataset()
    assert (len(dataset), dataset.duplicates) == (samples, ())
    other = _alone(job, tmp_path / "alone", model, seaweed, **few)
    _states_are_close(dataset, other.dataset())


def _states_are_close(left: durastore.Dataset, right: durastore.Dataset) -> None:
    """Sample by sample: the same ids, tokens and shapes; states as close as the same sample in other batches is."""
    assert left.ids == right.ids
    for name in left.ids:
        ours, theirs = left[name].tensors, right[name].tensors
        assert ours.keys() == theirs.keys()
        assert torch.equal(ours["input_ids"], theirs["input_ids"])
        torch.testing.assert_close(ours["hidden_states"], theirs["hidden_states"], rtol=1e-3, atol=1e-3)


@pytest.mark.exhaustive
def test_sigterm_to_the_command_flushes_all_actors_and_the_next_one_goes_on(
    job: Job, model_folder: Path, aws_env: dict[str, str], cluster: None
) -> None:
    """As typed: Ray is started for the command alone, and stdout is the report and nothing else."""
    del cluster
    samples = 400
    job.write(*_rows(samples))
    arguments = ("--ray", "local", "--workers", "2", "--batch-tokens", "1")
    with extracting(job, model_folder, aws_env, *arguments) as command:
        queue = Queue(job.root)
        while queue.stored() < 10 or len(queue.busy_pids()) < 2:
            assert command.poll() is None
            time.sleep(0.05)
        os.kill(max(queue.busy_pids()), signal.SIGKILL)  # Ray has something to print
        while len(queue.ask("SELECT 1 FROM worker")) < 3:
            assert command.poll() is None
            time.sleep(0.05)
        command.send_signal(signal.SIGTERM)
        out, err = command.communicate()
    assert command.returncode == 143, err
    report = json.loads(out)
    assert report["error"] is None
    (left,) = report["left_behind"]  # that of the killed one; nobody was asked to look into it any more
    assert Path(left["spool"]).parent == job.root
    assert (report["ok"] + report["not_attempted"], report["not_attempted"] > 0) == (samples, True)
    assert queue.busy_pids() == {}
    with extracting(job, model_folder, aws_env, *arguments) as command:
        out, err = command.communicate()
    assert command.returncode == 0, err
    again = json.loads(out)
    assert (again["ok"] + again["skipped"], again["left_behind"]) == (samples, [])
    assert len(job.dataset()) == samples
