"""An extraction on a Ray cluster of two machines (of one: two raylets), one of which is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from durastore.config import StoreOptions
from durastore.demo.seaweed import SeaweedServer
from durastore.extract.report import ExtractReport
from durastore.extract.runner import RunnerLimits
from durastore.integrations.ray_extract import RaySettings, extract_on_ray
from durastore.store.draining import drain_root
from tests.integration.extract_lab import Job, Queue, model_folder
from tests.integration.worker_engines import FORWARDS, HELD, counting_engine

__all__ = ["model_folder"]  # fixtures

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("ray") is None, reason="there is no Ray for this Python"),
]


@pytest.fixture
def forwards(tmp_path: Path) -> Path:
    return tmp_path / "forwards.txt"


@pytest.fixture
def cluster(forwards: Path, aws_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head with one core, started as `ray start` does."""
    del aws_env
    monkeypatch.setenv(FORWARDS, str(forwards))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    repo = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{repo}{os.pathsep}{repo / 'cli'}")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
    try:
        yield cluster
    finally:
        cluster.shutdown()


def _workers(forwards: Path) -> set[str]:
    """Process ids of the actors that were in a pass."""
    return {line.split()[0] for line in forwards.read_text("utf-8").splitlines()} if forwards.exists() else set()


def _passes(forwards: Path) -> int:
    return len(forwards.read_text("utf-8").splitlines())


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_lost_machine_costs_no_sample_and_its_spool_is_named(
    cluster: Any, tmp_path: Path, model_folder: Path, seaweed: SeaweedServer, forwards: Path
) -> None:
    job, samples = Job(tmp_path, model_folder, seaweed), 40
    job.write(*({"id": f"task/{n}", "input_ids": [1 + n % 60] * (1 + n % 30)} for n in range(samples)))
    lost = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    held = forwards.with_suffix(HELD)
    held.write_text("12", encoding="utf-8")
    reports: list[ExtractReport] = []
    request = job.request(limits=RunnerLimits(batch_tokens=1))  # as many workers as there is room for
    settings = RaySettings(address=cluster.address)
    run = threading.Thread(target=lambda: reports.append(extract_on_ray(request, settings, engine=counting_engine)))
    run.start()
    try:
        while len(_workers(forwards)) < 2:
            assert run.is_alive()
            time.sleep(0.1)
        # All but the two in a pass are stored, and told: one that was stored and not told would be there twice later.
        while Queue(job.root).stored() < _passes(forwards) - 2:
            assert run.is_alive()
            time.sleep(0.1)
        cluster.remove_node(lost, allow_graceful=False)
        while all(_is_alive(pid) for pid in _workers(forwards)):  # it notices that its raylet is gone
            time.sleep(0.1)
    finally:
        held.unlink()
        run.join(600)
    (report,) = reports
    assert (report.error, report.local_only, report.exit_code) == (None, (), 0)
    assert (report.counts.ok, report.counts.left) == (samples, 0)
    (left,) = report.left_behind
    assert Path(left.spool).parent == job.root
    assert "cannot be reached" in left.reason
    dataset = job.dataset()
    assert (len(dataset), dataset.duplicates) == (samples, ())
    options = StoreOptions(endpoint_url=seaweed.endpoint_url, addressing_style="path")
    assert drain_root(job.root, options=options).exit_code == 0  # as the report says to do, once the machine is back
