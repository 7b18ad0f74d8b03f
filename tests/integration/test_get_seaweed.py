"""`durastore get` from a real server: whole samples, a kill inside of a large one, and the same command again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import durastore
from durastore.codec.decode import scan_sample
from durastore.demo.seaweed import SeaweedServer
from durastore_cli.main import run

ROOT = Path(__file__).parents[2]
SIZE = 160_000_000  # for the one that is killed in the middle of it
SOME = 20_000_000  # a pack of its own, too


def command(server: SeaweedServer, bucket: str, *arguments: str) -> list[str]:
    return ["get", "--bucket", f"s3://{bucket}/p", "--endpoint-url", server.endpoint_url, *arguments]


@pytest.fixture
def filled(
    request: pytest.FixtureRequest, seaweed: SeaweedServer, bucket: str, tmp_path: Path, aws_env: dict[str, str]
) -> torch.Tensor:
    """A sample of so many bytes and small ones are in the bucket."""
    del aws_env
    big = torch.randint(-(2**31), 2**31 - 1, (request.param // 4_000, 1_000), dtype=torch.int32)
    url = f"s3://{bucket}/p"
    with durastore.open(url, local=tmp_path / "spool", endpoint_url=seaweed.endpoint_url, compress="none") as store:
        store.put("big", {"h": big})
        store.put_many({f"small/{n}": {"h": torch.full((10, n), float(n))} for n in range(1, 20)})
    return big


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("filled", [SOME], indirect=True)
def test_samples_by_name_and_all_of_them(
    seaweed: SeaweedServer, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(command(seaweed, bucket, "small/3", "small/7", "--out", str(out), "--json")) == 0
    assert json.loads(capsys.readouterr().out)["written"] == 2
    assert run(command(seaweed, bucket, "--all", "--out", str(out), "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["written"], report["present"], report["failures"]) == (18, 2, [])
    with durastore.Dataset(f"s3://{bucket}/p", endpoint_url=seaweed.endpoint_url) as dataset:
        for sample_id in dataset.ids:
            header = scan_sample((out / f"{sample_id}.safetensors").read_bytes())
            assert header.digest == dataset.row(sample_id).entry.header_digest


@pytest.mark.parametrize("filled", [SIZE], indirect=True)
def test_a_kill_in_the_middle_costs_what_was_in_flight(
    seaweed: SeaweedServer,
    bucket: str,
    tmp_path: Path,
    filled: torch.Tensor,
    aws_env: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    arguments = command(seaweed, bucket, "big", "--out", str(out), "--json")
    environment = {**aws_env, "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"}
    process = subprocess.Popen(
        [sys.executable, "-m", "durastore_cli.main", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if any(part.stat().st_blocks * 512 > SIZE // 3 for part in out.glob(".*.part")):
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    assert process.wait(timeout=30) == -signal.SIGKILL
    assert not (out / "big.safetensors").exists()
    assert run(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["written"] == 1
    assert report["bytes_fetched"] < SIZE * 3 // 4
    tensors = durastore.Dataset(f"s3://{bucket}/p", endpoint_url=seaweed.endpoint_url)["big"].tensors
    assert torch.equal(tensors["h"], filled)
    from safetensors.torch import load_file

    assert torch.equal(load_file(out / "big.safetensors")["h"], filled)
    assert list(out.glob(".*.part")) == []
