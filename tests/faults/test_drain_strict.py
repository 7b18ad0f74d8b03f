"""`durastore drain` at an endpoint that does not keep what it takes: nothing counts as proven, and nothing goes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import durastore
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from durastore_cli.main import run


@pytest.fixture
def bucket(strict_s3: StrictS3, monkeypatch: pytest.MonkeyPatch) -> str:
    """On a server that was not probed, with its credentials where a command looks for them."""
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DURASTORE_PROBE", "never")
    return strict_s3.make_bucket()


def test_what_cannot_be_proven_is_13_and_stays(
    strict_s3: StrictS3, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = tmp_path / "spool"
    strict_s3.script(Rule(lie=Lie.FLIP_BYTE, key_part="/packs/"))
    store = durastore.open(f"s3://{bucket}/p", local=local, endpoint_url=strict_s3.endpoint_url)
    store.put("a", {"x": np.zeros(10_000)})
    store.abandon()
    (pack,) = local.glob("w-00/packs/*")
    command = ["drain", "--local", str(local), "--endpoint-url", strict_s3.endpoint_url, "--timeout", "3", "--json"]
    assert run(command) == 13
    report = json.loads(capsys.readouterr().out)
    (left,) = report["spools"][0]["left"]
    assert (left["samples"], report["exit_code"]) == (1, 13)
    assert left["why"]
    assert pack.exists()
    strict_s3.script()
    assert run([*command[:-3], "--timeout", "60", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spools"][0]["left"] == []
    assert pack.exists()  # proven, and freed by the usual rules only


def test_what_is_proven_and_not_freed_in_time_is_3(
    strict_s3: StrictS3, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = tmp_path / "spool"
    store = durastore.open(f"s3://{bucket}/p", local=local, endpoint_url=strict_s3.endpoint_url)
    store.put("a", {"x": np.zeros(10_000)})
    store.flush(60)
    store.abandon()
    (pack,) = local.glob("w-00/packs/*")
    command = ["drain", "--local", str(local), "--endpoint-url", strict_s3.endpoint_url, "--json"]
    assert run([*command, "--reclaim", "eager", "--timeout", "2"]) == 3  # settle_s is ten minutes
    report = json.loads(capsys.readouterr().out)
    (spool,) = report["spools"]
    assert (spool["left"], spool["packs_proven"], spool["packs_freed"], spool["error"]) == ([], 1, 0, "partly-done")
    assert pack.exists()
