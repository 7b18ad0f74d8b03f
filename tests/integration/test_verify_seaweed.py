"""`durastore verify` against a real server, killed in the middle, and the same command again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.demo.seaweed import SeaweedServer
from durastore_cli.main import run

ROOT = Path(__file__).parents[2]
PACKS = 30


@pytest.fixture
def command(seaweed: SeaweedServer, bucket: str, tmp_path: Path, aws_env: dict[str, str]) -> list[str]:
    del aws_env
    url = f"s3://{bucket}/p"
    with durastore.open(
        url, local=tmp_path / "spool", endpoint_url=seaweed.endpoint_url, probe="never", single_pack_bytes=100_000
    ) as store:
        rng = np.random.default_rng(5)
        for number in range(PACKS):
            store.put(f"s{number:02d}", {"x": rng.integers(0, 1 << 60, 60_000)})
    return ["verify", "--bucket", url, "--endpoint-url", seaweed.endpoint_url]


def packs(s3_client: Any, bucket: str) -> list[str]:
    return [e["Key"] for e in s3_client.list_objects_v2(Bucket=bucket, Prefix="p/packs/")["Contents"]]


def test_damage_behind_the_library_s_back_is_found(
    command: list[str], bucket: str, s3_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--deep", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["samples"], report["objects_read"], report["unverified"]) == (PACKS, PACKS, [])
    assert report["bytes_read"] == report["bytes_recorded"]
    gone, short, rotten, *_ = packs(s3_client, bucket)
    s3_client.delete_object(Bucket=bucket, Key=gone)
    body = s3_client.get_object(Bucket=bucket, Key=short)["Body"].read()
    s3_client.put_object(Bucket=bucket, Key=short, Body=body[:1000])
    body = bytearray(s3_client.get_object(Bucket=bucket, Key=rotten)["Body"].read())
    body[-5] ^= 4
    s3_client.put_object(Bucket=bucket, Key=rotten, Body=bytes(body))
    assert run([*command, "--json"]) == 12
    by_size = {f["key"]: f["kind"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert by_size == {gone: "dangling", short: "truncated"}
    assert run([*command, "--deep", "--json"]) == 12
    by_bytes = {f["key"]: f["kind"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert by_bytes == {gone: "dangling", short: "truncated", rotten: "divergent"}


def test_a_killed_scrub_goes_on(
    command: list[str], tmp_path: Path, aws_env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    environment = {**aws_env, "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"}
    arguments = [*command, "--deep", "--state", str(state)]
    process = subprocess.Popen(
        [sys.executable, "-m", "durastore_cli.main", *arguments, "--rate", "1MiB"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if state.exists() and state.read_bytes().count(b"\n") > 5:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    assert process.wait(timeout=30) == -signal.SIGKILL
    assert run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["objects_read_before"] >= 5
    assert report["objects_read"] + report["objects_read_before"] == PACKS
