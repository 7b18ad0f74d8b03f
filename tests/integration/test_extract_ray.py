"""An extraction by actors of a Ray cluster: the loss of one changes nothing of the result."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from durastore.demo.seaweed import SeaweedServer
from durastore.extract.job import run_extract
from durastore.extract.report import ExtractReport
from durastore.extract.runner import RunnerLimits
from durastore.fsio.folder import Folder
from durastore.integrations.ray_cluster import LOCAL, Needs, connected
from durastore.integrations.ray_extract import RaySettings, extract_on_ray
from tests.integration.extract_lab import FORWARDS, HELD, Job, counting_engine, model_folder

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


class Running:
    """An extraction by two actors, in a thread of its own."""

    def __init__(self, job: Job, **more: Any) -> None:
        self.reports: list[ExtractReport] = []
        self.errors: list[BaseException] = []
        self._request = job.request(**{"workers": 2, "limits": ALONE, "grace_s": 30.0, **more})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.reports.append(extract_on_ray(self._request, RaySettings(address=LOCAL), engine=counting_engine))
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            self.errors.append(exc)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def report(self) -> ExtractReport:
        self._thread.join(800)
        assert not self._thread.is_alive()
        assert self.errors == []
        return self.reports[0]


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


def _alone(job: Job, folder: Path, model: Path, server: SeaweedServer) -> Job:
    """The same input, by one process without a queue, to a bucket of its own."""
    with Folder.create(folder):
        other = Job(folder, model, server)
    other.input.write_bytes(job.input.read_bytes())
    report = run_extract(other.request(limits=ALONE))
    assert report.exit_code == 0
    return other


def test_the_loss_of_an_actor_changes_nothing_of_the_result(
    job: Job, forwards: Path, tmp_path: Path, model_folder: Path, seaweed: SeaweedServer
) -> None:
    samples = 40
    job.write(*_rows(samples))
    held = forwards.with_suffix(HELD)
    held.write_text("12", encoding="utf-8")  # so that both are in a pass
    running = Running(job)
    _until(lambda: len(_passed(forwards)) >= 12 and len(_workers(forwards)) == 2, running)
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
    again = Running(job).report()
    assert (again.exit_code, again.counts.ok, again.counts.skipped) == (0, 0, samples)
