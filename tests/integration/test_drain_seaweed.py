"""`durastore drain` and `durastore status` after real kills, against a real server."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.demo.seaweed import SeaweedServer
from durastore.errors import ConfigError
from durastore_cli.main import run

ROOT = Path(__file__).parents[2]
LIFE = """
import sys
import numpy as np
import durastore
url, local, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
run = {"model": "m", "layers": [2, 15]}
store = durastore.open(url, local=local, run=run, seal_age_s=1e6, pack_target_bytes=40_000, probe="never")
for number in range(first, first + 20):
    store.put(f"s{number:03d}", {"x": np.full(1_000, number)}, input_digest=f"{number:032x}")
print("ready", flush=True)
sys.stdin.read()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(seaweed: SeaweedServer, aws_env: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts a process that holds a spool of the root with 20 samples, most of them not uploaded yet."""
    environment = {
        **aws_env,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}",
        "DURASTORE_ENDPOINT_URL": seaweed.endpoint_url,
        "DURASTORE_ADDRESSING_STYLE": "path",
    }
    started: list[subprocess.Popen[str]] = []

    def begin(url: str, first: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", LIFE, url, str(tmp_path / "spool"), str(first)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def kill(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture
def where(seaweed: SeaweedServer, tmp_path: Path) -> list[str]:
    return ["--local", str(tmp_path / "spool"), "--endpoint-url", seaweed.endpoint_url, "--json"]


def report_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def held(seaweed: SeaweedServer, url: str) -> dict[str, int]:
    with durastore.Dataset(url, endpoint_url=seaweed.endpoint_url) as dataset:
        assert [run.text for run in dataset.runs.values()] == ['{"layers":[2,15],"model":"m"}']
        return {sample.id: int(np.asarray(sample.tensors["x"])[0]) for sample in dataset}


def test_what_killed_extractors_left_comes_to_the_bucket(
    start: Start, seaweed: SeaweedServer, bucket: str, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{bucket}/p"
    kill(start(url, 0), start(url, 100))
    assert run(["status", *where]) == 0
    before = report_of(capsys)
    assert [spool["held_by"] for spool in before["spools"]] == [[]] * len(before["spools"])
    assert run(["drain", *where]) == 0  # neither the run nor the bucket has to be told
    report = report_of(capsys)
    assert all(spool["bucket"] == url and spool["left"] == [] for spool in report["spools"])
    assert held(seaweed, url) == {f"s{n:03d}": n for n in [*range(20), *range(100, 120)]}
    assert run(["status", *where, "--bucket", url]) == 0
    after = report_of(capsys)
    assert [spool["only_local_samples"] for spool in after["spools"]] == [0] * len(after["spools"])
    assert (after["manifest"]["samples"], after["manifest"]["duplicates"]) == (40, 0)
    assert run(["drain", *where]) == 0  # run twice is run once


def test_eager_waits_until_the_files_are_gone(
    start: Start, bucket: str, where: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill(start(f"s3://{bucket}/p", 0))
    assert run(["drain", *where, "--reclaim", "eager", "--settle", "0"]) == 0
    (spool,) = report_of(capsys)["spools"]
    assert (spool["bytes_left"], spool["left"]) == (0, [])
    assert spool["packs_freed"] == spool["packs_proven"] > 0
    assert list((tmp_path / "spool").glob("w-*/packs/*")) == []
    assert run(["drain", *where]) == 0
    assert report_of(capsys)["spools"] == []


def test_eager_says_how_long_it_waits(
    start: Start, bucket: str, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kill(start(f"s3://{bucket}/p", 0))
    assert run(["drain", *where]) == 0
    assert run(["drain", *where, "--reclaim", "eager", "--settle", "9000", "--timeout", "1"]) == 3
    err = capsys.readouterr().err
    assert re.search(r"settle_s=9000 s after its upload: the last one [89]\d\d\d s from now, at 20\d\d-", err), err


def test_a_live_extractor_keeps_its_spool(
    start: Start, seaweed: SeaweedServer, bucket: str, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{bucket}/p"
    alive = start(url, 0)
    assert run(["drain", *where]) == 11
    assert "[locked]" in capsys.readouterr().err
    dead = start(url, 100)
    kill(dead)
    assert run(["drain", *where]) == 0
    assert report_of(capsys)["locked"] == ["w-00"]
    assert set(held(seaweed, url)) >= {f"s{n:03d}" for n in range(100, 120)}
    alive.communicate("")
    assert alive.returncode == 0


def test_each_spool_goes_to_its_own_bucket(
    start: Start, seaweed: SeaweedServer, bucket: str, where: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = f"s3://{bucket}/one", f"s3://{bucket}/other"
    first = start(one, 0)
    second = start(other, 100)
    kill(first, second)
    assert run(["drain", *where, "--bucket", one]) == 13  # the other's samples are not proven
    out, err = capsys.readouterr()
    assert f"give --bucket {other}" in err
    spools = {spool["bucket"]: spool for spool in json.loads(out)["spools"]}
    assert spools[one]["left"] == []
    assert sum(pack["samples"] for pack in spools[other]["left"]) == 20
    assert run(["drain", *where]) == 0
    assert held(seaweed, one) == {f"s{n:03d}": n for n in range(20)}
    assert held(seaweed, other) == {f"s{n:03d}": n for n in range(100, 120)}


def test_an_endpoint_that_is_away_leaves_everything(
    start: Start,
    bucket: str,
    where: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("durastore.store.opening._PATIENCE_S", 0.5)
    kill(start(f"s3://{bucket}/p", 0))
    before = {path.name: path.read_bytes() for path in (tmp_path / "spool").glob("w-*/packs/*")}
    away = [*where[:3], "http://127.0.0.1:9", "--json"]
    assert run(["drain", *away]) == 20
    assert report_of(capsys)["spools"][0]["error"] == "endpoint-unreachable"
    assert {path.name: path.read_bytes() for path in (tmp_path / "spool").glob("w-*/packs/*")} == before
    assert run(["status", *away, "--bucket", f"s3://{bucket}/p"]) == 20  # what can be told of this machine is told
    assert report_of(capsys)["spools"][0]["only_local_samples"] > 0
    assert run(["drain", *where]) == 0


def test_a_root_that_is_none_is_not_made_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drain", "--local", str(tmp_path)]) == 10
    assert run(["status", "--local", str(tmp_path / "absent")]) == 10
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_spool_of_another_prefix_names_what_to_type(
    start: Start, seaweed: SeaweedServer, bucket: str, where: list[str], tmp_path: Path
) -> None:
    kill(start(f"s3://{bucket}/one", 0))
    options: Any = {"local": tmp_path / "spool", "endpoint_url": seaweed.endpoint_url}
    with pytest.raises(ConfigError, match="still holds") as caught:
        durastore.open(f"s3://{bucket}/two", run={"model": "m", "layers": [2, 15]}, **options)
    hint = str(caught.value.hint)
    command = shlex.split(hint[hint.index("durastore drain ") :])
    assert run([*command[1:], *where[2:], "--settle", "0"]) == 0
    with durastore.open(f"s3://{bucket}/two", run={"model": "m", "layers": [2, 15]}, **options) as store:
        assert store.status().local_bytes == 0
