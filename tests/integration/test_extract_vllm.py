"""Extraction through a server that behaves as vLLM does: what it did not answer for is not stored, the rest once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from durastore.demo.seaweed import SeaweedServer
from durastore.errors import EngineFailed
from durastore.extract.engine import Engine
from durastore.extract.engine_choice import ServerEngines
from durastore.extract.layers import parse_layers
from durastore.extract.model_identity import resolve_model
from durastore.extract.request_stream import Pace
from durastore.extract.runner import RunnerLimits
from durastore.extract.server_settings import ServerSettings
from durastore.extract.transformers_engine import ModelSettings
from durastore.formats.staging import GOING_NAME, STAGING_MARKER_NAME, render_request, render_session_file
from durastore.store.opening import OptionOverrides
from durastore_cli.main import run as cli
from tests.integration.extract_lab import (
    Job,
    extract_command,
    extracting,
    job,
    make_tokenizer,
    model_folder,
)
from tests.integration.model_servers import States, VllmServer, random_states
from tests.integration.served_lab import LAYERS, Served, rows_of, small_states

__all__ = ["job", "model_folder", "small_states"]  # fixtures

PASSING = ("late", "failed", "partial", "slow", "error", "other answer", "other ids", "stale", "short", "nan")
"""Each of these happens once to its sample; what comes of it is never stored."""


@pytest.fixture
def server(small_states: States, tmp_path: Path) -> VllmServer:
    folder = tmp_path / "hs"
    folder.mkdir()
    return VllmServer(folder, small_states)


@pytest.fixture
def served(server: VllmServer, job: Job, small_states: States) -> Iterator[Served]:
    with server.running() as url:
        settings = ServerSettings(
            endpoints=(f"{url}/v1",), staging=server.folder, pace=Pace(concurrency=8), timeout_s=2.0
        )
        yield Served(job, engine="vllm", settings=settings, states=small_states)


def left_in(folder: Path) -> list[str]:
    """What lies there, without durastore's own files."""
    assert not any((folder / GOING_NAME).iterdir())
    return sorted(name for name in os.listdir(folder) if not name.startswith((".durastore-", STAGING_MARKER_NAME)))


def test_every_sample_is_stored_once_and_its_files_are_gone(
    served: Served, server: VllmServer, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(60)
    served.write(rows)
    report = served.run(limits=RunnerLimits(audit_share=0.3))
    assert (report.error, report.exit_code, report.counts.ok) == (None, 0, 60)
    served.check_stored()
    assert left_in(server.folder) == []
    assert 5 < report.checks.audited < 30
    assert report.checks.worst_difference == 0.0
    assert len(server.asked) == 60 + report.checks.audited  # an audited one is asked for twice
    settings = served.settings
    command = extract_command(served.job, Path(served.job.request().model), "--layers", LAYERS, "--engine", "vllm")
    command += ["--endpoint", settings.endpoints[0], "--staging", str(settings.staging), "--staging-limit", "1MiB"]
    assert cli(command) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["ok"], again["skipped"], len(server.asked)) == (0, 60, 60 + report.checks.audited)
    assert cli([*command, "--layers", "2", "--engine", "nothing"]) == 2


def test_nothing_of_a_request_that_went_wrong_is_stored_and_all_else_is_once(
    served: Served, server: VllmServer
) -> None:
    rows = rows_of(40)
    for row, fault in zip(rows, PASSING, strict=False):
        server.plan.add(row["input_ids"], fault)
    refused, hopeless = rows[20], rows[21]
    server.plan.add(refused["input_ids"], "refused")
    server.plan.add(hopeless["input_ids"], "partial", "failed", "short")
    served.write(rows)
    old = server.folder / "old.safetensors"

    # What an earlier session left: its process is gone, and so is whoever could say that these files are whole.
    dead, living = "0" * 16, "1" * 16
    orphans = [f"cmpl-{render_request(session, 1)}-0-1a2b3c4d.safetensors" for session in (dead, living, "2" * 16)]
    engine = _engine(served)
    engine.start()  # makes the folder a staging folder
    engine.close()
    (server.folder / render_session_file(dead)).touch()
    alive = os.open(server.folder / render_session_file(living), os.O_RDWR | os.O_CREAT)
    fcntl.flock(alive, fcntl.LOCK_EX)
    for name in orphans:
        (server.folder / name).write_bytes(server.bytes_of(rows[0]["input_ids"], fault="poison"))
        (server.folder / f"{name}.lock").touch()
    old.write_bytes(server.bytes_of(rows[PASSING.index("stale")]["input_ids"], fault="stale"))
    (server.folder / "old.safetensors.lock").touch()
    os.utime(old, (1, 1))

    report = served.run()
    assert (report.error, report.exit_code) == (None, 3)
    assert (report.counts.ok, report.counts.failed, report.counts.left) == (38, 2, 0)
    reasons = {str(failure.sample_id): failure for failure in report.failures}
    assert "400" in reasons[refused["id"]].reason
    assert (reasons[hopeless["id"]].attempts, reasons[refused["id"]].attempts) == (3, 1)
    served.check_stored(without=[refused["id"], hopeless["id"]])
    # A living session's and an unknown one's files stay, and what is of no request of ours.
    kept = [*orphans[1:], *(f"{name}.lock" for name in orphans[1:]), "old.safetensors", "old.safetensors.lock"]
    assert set(kept) <= set(left_in(server.folder))  # and of the request that hung, if it was written after the end
    again = served.run(is_retry=True)
    assert (again.exit_code, again.counts.ok, again.counts.skipped) == (0, 2, 38)
    served.check_stored()
    assert left_in(server.folder) == sorted(kept)
    os.close(alive)


def _engine(served: Served) -> Engine:
    source = resolve_model(served.job.request().model)
    plan = parse_layers(LAYERS, num_layers=4)
    return ServerEngines(name="vllm", server=served.settings)(source, plan, settings=ModelSettings())


def test_a_server_that_is_gone_or_useless_ends_the_run(served: Served, server: VllmServer) -> None:
    rows = rows_of(40)
    served.write(rows)
    server.is_sick = True
    report = served.run()
    assert isinstance(report.error, EngineFailed)
    assert (report.counts.failed, report.counts.left) == (0, 40)
    server.is_sick = False
    for row in rows:
        server.plan.add(row["input_ids"], "short")
    report = served.run(server=replace(served.settings, pace=Pace(concurrency=4, tries=1)))
    assert isinstance(report.error, EngineFailed)
    assert "nothing usable" in report.error.message
    assert report.counts.failed == 23
    server.plan.faults.clear()
    assert served.run().exit_code == 0
    served.check_stored()


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_killed_run_leaves_nothing_and_the_next_one_goes_on(
    served: Served, server: VllmServer, aws_env: dict[str, str]
) -> None:
    """Killed with requests in flight, files that nobody read, and files whose samples wait for their put."""
    served.write(rows_of(100))
    command = ["--layers", LAYERS, "--engine", "vllm", "--endpoint", served.settings.endpoints[0]]
    command += ["--staging", str(server.folder), "--concurrency", "4"]
    model = Path(served.job.request().model)
    with extracting(served.job, model, aws_env, *command) as process:
        while len(server.asked) < 40:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    asked = len(server.asked)
    report = served.run()
    assert (report.error, report.exit_code, report.counts.ok + report.counts.skipped) == (None, 0, 100)
    assert report.counts.skipped > 0
    assert len(server.asked) - asked == report.counts.ok
    sys.stdout.write(f"\n{asked} asked, then killed: {len(server.asked) - 100} of them asked again\n")
    served.check_stored()
    assert left_in(server.folder) == []


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_workers_share_a_server(served: Served, server: VllmServer) -> None:
    served.write(rows_of(60))
    report = served.run(workers=2, grace_s=30.0)
    assert (report.error, report.exit_code, report.counts.ok) == (None, 0, 60)
    served.check_stored()
    assert left_in(server.folder) == []
    assert len(server.asked) == 60


# --- bounded staging -----------------------------------------------------------------------------------------------

STAGING_BYTES = 64 << 20
SMALL_SPOOL = OptionOverrides(high_watermark_bytes=48 << 20, pack_target_bytes=8 << 20)


def _bytes_in(root: Path) -> int:
    """Of the packs in a spool root; one that goes meanwhile counts nothing."""
    total = 0
    for path in root.glob("w-*/packs/*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "shm"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={STAGING_BYTES}", "durastore-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a tmpfs of 64 MiB cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """States of 4,096 numbers from weights of a few MB."""
    folder = tmp_path_factory.mktemp("wide")
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=8,
        num_hidden_layers=4,
        num_attention_heads=1,
        head_dim=8,
        vocab_size=64,
        max_position_embeddings=256,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    make_tokenizer(folder)
    return folder


def test_samples_of_5_mb_pass_through_a_staging_folder_of_64(
    memory_disk: Path, wide_model: Path, tmp_path: Path, seaweed: SeaweedServer, aws_env: dict[str, str]
) -> None:
    """160 tokens, 4 layers, 4,096 numbers of 2 bytes: 5.2 MB each, 136 MB in all, through a spool of 48 MiB."""
    del aws_env
    states = random_states((4, 4096))
    job = Job(tmp_path, wide_model, seaweed)
    job.options.update(OptionOverrides(reclaim="eager", settle_s=0.1, **SMALL_SPOOL))
    spool_bytes: list[int] = []
    server = VllmServer(memory_disk, states)
    server.after_write = lambda: spool_bytes.append(_bytes_in(job.root))
    with server.running() as url:
        settings = ServerSettings(endpoints=(url,), staging=memory_disk, pace=Pace(concurrency=32))
        served = Served(job, engine="vllm", settings=settings, states=states)
        served.write([{"id": f"s/{n}", "input_ids": [n % 61, *((n * k) % 61 for k in range(159))]} for n in range(26)])
        report = served.run(layers="1,2,3,last")
    assert (report.error, report.exit_code, report.counts.ok, report.counts.failed) == (None, 0, 26, 0)
    assert server.errors == []  # the server met no full disk either
    assert 5 << 20 < server.peak_bytes < STAGING_BYTES
    assert max(spool_bytes) <= SMALL_SPOOL["high_watermark_bytes"]
    sys.stdout.write(f"\nstaging held {server.peak_bytes >> 20} MiB at most, the spool {max(spool_bytes) >> 20} MiB\n")
    served.check_stored()
    assert left_in(memory_disk) == []
