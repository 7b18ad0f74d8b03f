"""Failures in a real bucket: told by every machine, known on every machine, and gone once their samples are stored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from durastore.errors import EndpointUnreachable
from durastore.extract.crew_job import run_shared_extract
from durastore.extract.failure_book import load_failures
from durastore.extract.failure_teller import opened_bucket
from durastore.extract.job import run_extract
from durastore.extract.report import ExtractReport
from durastore.extract.runner import RunnerLimits
from durastore.extract.shards import Shard
from durastore.extract.shared_failures import SharedFailure, fetch_failures
from durastore.formats.keys import failures_listing_prefix
from durastore_cli.main import run as cli
from tests.integration.extract_lab import ROOT, Job, extract_command, job, model_folder
from tests.integration.worker_engines import FAULTS, FORWARDS, faulty_stand_in

__all__ = ["job", "model_folder"]  # fixtures

pytestmark = pytest.mark.timeout(600)


class Machines:
    """Each has a root of its own; they share the bucket and the input."""

    def __init__(self, job: Job, plan: Path) -> None:
        self.job, self._plan = job, plan
        self.faults({})

    def faults(self, planned: dict[str, str]) -> None:
        self._plan.write_text(json.dumps(planned), encoding="utf-8")

    def root(self, name: str) -> Path:
        return self.job.root.parent / name

    def run(self, name: str, *, workers: int | None = None, **more: Any) -> ExtractReport:
        limits = RunnerLimits(batch_tokens=256)
        request = self.job.request(local=self.root(name), limits=limits, workers=workers, **more)
        run = run_extract if workers is None else run_shared_extract
        return run(request, engine_factory=faulty_stand_in)

    def told(self) -> dict[str, SharedFailure]:
        with opened_bucket(self.job.request(local=self.root("reader"))) as (store, prefix):
            found = fetch_failures(store, prefix)
        assert (found.ignored, found.problem) == ((), None)
        return {each.sample_id or f"line {each.line}": each for each in found.failures}

    def lists(self) -> int:
        with opened_bucket(self.job.request(local=self.root("reader"))) as (store, prefix):
            return sum(len(page) for page in store.list(failures_listing_prefix(prefix)))

    def status(self, *more: str) -> int:
        where = ["--endpoint-url", str(self.job.options["endpoint_url"]), "--addressing-style", "path"]
        return cli(["status", "--failed", *where, *more])


@pytest.fixture
def machines(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    monkeypatch.setenv(FORWARDS, str(tmp_path / "forwards.txt"))
    monkeypatch.setenv(FAULTS, str(tmp_path / "faults.json"))
    return Machines(job, tmp_path / "faults.json")


def _rows(count: int) -> list[dict[str, Any] | str]:
    return [{"id": f"s/{number}", "input_ids": [number + 1, number + 2, 3]} for number in range(count)]


def _balanced(report: ExtractReport) -> tuple[int, int, int, int]:
    counts = report.counts
    assert counts.ok + counts.failed + counts.skipped + counts.left == counts.inputs
    return counts.ok, counts.failed, counts.skipped, counts.left


@pytest.mark.parametrize("workers", [None, 2])
def test_what_two_shards_could_not_do_a_third_machine_retries_and_settles(
    machines: Machines, capsys: pytest.CaptureFixture[str], workers: int | None
) -> None:
    job = machines.job
    rows = [*_rows(12), "{", {"id": "long", "input_ids": [1] * 41}]
    job.write(*rows)
    faults = {f"s/{number}": "nan" for number in range(4)}
    machines.faults(faults)
    for index in (0, 1):
        report = machines.run(f"host-{index}", shard=Shard(index=index, count=2))
        assert (report.error, report.exit_code) == (None, 3)
        machines.root(f"host-{index}").rename(machines.root(f"gone-{index}"))  # nobody sees its disk again
    told = machines.told()
    assert set(told) == {*faults, "long", "line 13"}
    assert {each.runs for each in told.values()} == {1}
    assert {told[name].stage for name in faults} == {"states"}

    assert machines.status("--bucket", job.bucket, "--json") == 3
    shown = json.loads(capsys.readouterr().out)
    assert {row["sample_id"] for row in shown["failed"]} == {*faults, "long", None}
    assert shown["ignored"] == []
    assert machines.status("--bucket", job.bucket) == 3
    assert "s/3: states: state 3 has a NaN or an infinity (attempts 1, runs 1, pid" in capsys.readouterr().out

    job.write(*rows, {"id": "new", "input_ids": [9]})
    again = machines.run("third", workers=workers, is_retry=True)
    assert (_balanced(again), again.exit_code) == ((0, 6, 8, 1), 3), "only what failed; the new one is not attempted"
    assert {each.runs for each in machines.told().values()} == {2}
    assert {failure.runs for failure in load_failures(machines.root("third"))} == {2}

    machines.faults({})
    job.write(*_rows(12), {"id": "was-unreadable", "input_ids": [7]}, {"id": "long", "input_ids": [1] * 40})
    last = machines.run("fourth", workers=workers, is_retry=True)
    assert (_balanced(last), last.exit_code) == ((6, 0, 8, 0), 0)
    assert machines.told() == {}
    assert machines.status("--bucket", job.bucket) == 0
    assert "no sample that failed" in capsys.readouterr().out
    assert len(job.dataset()) == 14


def test_the_dataset_and_its_inventory_are_the_same_with_failures_told(
    machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    job = machines.job
    job.write(*_rows(6))
    machines.faults({"s/1": "zero"})
    machines.run("host")
    assert (machines.lists(), len(job.dataset())) == (1, 5)
    assert "s/1" not in job.dataset().ids
    where = ["--bucket", job.bucket, "--endpoint-url", str(job.options["endpoint_url"]), "--addressing-style", "path"]
    assert cli(["reconcile", "--local", str(machines.root("host")), *where]) == 0
    assert cli(["verify", *where]) == 0
    assert cli(["manifest", "compact", *where]) == 0
    capsys.readouterr()
    assert set(machines.told()) == {"s/1"}, "a compaction leaves the lists as they are"
    machines.run("host")
    assert (machines.lists(), machines.told()["s/1"].runs) == (2, 2)


def test_the_bucket_or_the_root_whichever_is_named(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = machines.job
    job.write(*_rows(3))
    machines.faults({"s/1": "zero"})
    machines.run("host")
    root = str(machines.root("host"))
    for words, of_the_bucket in ((["--local", root], False), (["--bucket", job.bucket, "--local", root], True)):
        assert machines.status("--json", *words) == 3
        assert ("ignored" in json.loads(capsys.readouterr().out)) == of_the_bucket
    monkeypatch.setenv("DURASTORE_BUCKET", job.bucket)
    assert machines.status("--json", "--local", root) == 3
    assert "ignored" not in json.loads(capsys.readouterr().out), "a root that is named is what was asked for"
    assert machines.status("--json") == 3
    assert "ignored" in json.loads(capsys.readouterr().out)
    assert machines.status("--bucket", f"{job.bucket}/not") == 10


@pytest.mark.parametrize("workers", [None, 2])
def test_a_bucket_that_takes_no_lists_costs_the_run_nothing_and_the_next_one_tells(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, workers: int | None
) -> None:
    job = machines.job
    job.write(*_rows(5), "{")
    machines.faults({"s/1": "zero"})

    def unreachable(_: object) -> Any:
        raise EndpointUnreachable("nobody answers")

    with monkeypatch.context() as patch:
        for module in ("job", "crew_job"):
            patch.setattr(f"durastore.extract.{module}.opened_bucket", unreachable)
        report = machines.run("host", workers=workers, is_retry=False)
        assert (_balanced(report), report.error, report.exit_code) == ((4, 2, 0, 0), None, 3)
        retried = machines.run("host", workers=workers, is_retry=True)
        assert (_balanced(retried), retried.exit_code) == ((0, 2, 4, 0), 3), "what this root knows is tried"
    assert (machines.lists(), machines.told()) == (0, {})
    job.write(*_rows(5))
    machines.faults({})
    assert machines.run("host", limit=1).exit_code == 0  # has nothing to do with what failed
    told = machines.told()
    assert {name: each.runs for name, each in told.items()} == {"s/1": 2, "line 6": 2}


def _run(script: str, command: list[str], aws_env: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """The command line in a process of its own, with something in its way."""
    environment = {**aws_env, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}", "DURASTORE_SEAL_AGE_S": "0.2"}
    return subprocess.run(
        [sys.executable, "-c", script, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=300,
        check=False,
    )


_KILLED = """
import os, signal, sys
from durastore.extract.failure_book import FailureBook
FailureBook.told = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from durastore_cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_kill_between_the_list_and_its_note_is_told_again_and_counts_once(
    machines: Machines, model_folder: Path, aws_env: dict[str, str]
) -> None:
    job = machines.job
    job.write("{", *_rows(3), {"id": "long", "input_ids": [1] * 41})
    killed = _run(_KILLED, extract_command(job, model_folder), aws_env)
    assert killed.returncode == -signal.SIGKILL
    first = machines.told()
    assert set(first) == {"line 1", "long"}
    code = cli(extract_command(job, model_folder))
    assert code == 3
    assert machines.lists() > 1
    told = machines.told()
    assert set(told) == {"line 1", "long"}
    assert {each.runs for each in told.values()} == {2}


_STOPPED = """
import os, signal, sys
from durastore.extract import failure_teller
from durastore.extract.failure_teller import FailureTeller
tell, go_on, waits, stops = FailureTeller.tell, failure_teller._go_on, [], []
def started(teller, over):
    waits.append(over)
    go_on(teller, over)
def stopped(self):
    if waits[0].is_set() and not stops:  # all is done: how often it told before is the machine's speed
        stops.append(os.kill(os.getpid(), signal.SIGTERM))
    return tell(self)
failure_teller._go_on, FailureTeller.tell = started, stopped
from durastore_cli.main import run
code = run(sys.argv[1:])
sys.exit(code if stops else "no signal was sent")
"""


def test_a_signal_while_the_last_list_is_told_costs_no_report(
    machines: Machines, model_folder: Path, aws_env: dict[str, str]
) -> None:
    job = machines.job
    job.write(*_rows(3), {"id": "long", "input_ids": [1] * 41})
    stopped = _run(_STOPPED, extract_command(job, model_folder), aws_env)
    assert stopped.returncode == 3, "all was done before the signal came"
    report = json.loads(stopped.stdout)
    assert (report["ok"], report["failed"], report["not_attempted"]) == (3, 1, 0)
    assert set(machines.told()) == {"long"}
