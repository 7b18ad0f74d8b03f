"""`durastore extract --ray`: what is in the way is told with the next step, before anything is written."""

from __future__ import annotations

import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from durastore_cli.main import run

HAS_RAY = find_spec("ray") is not None


def _extract(folder: Path, *more: str, bucket: str = "s3://bucket/prefix") -> int:
    rows = folder / "rows.jsonl"
    rows.write_text('{"id": "a", "input_ids": [1, 2]}\n', encoding="utf-8")
    place = ["--bucket", bucket, "--local", str(folder / "spool")]
    code = run(["extract", str(rows), "--model", "none", "--layers", "1", *place, *more])
    assert not (folder / "spool").exists()
    return code


def test_without_ray_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert _extract(tmp_path, "--ray", "local") == 2
    assert "pip install 'durastore[ray]'" in capsys.readouterr().err


@pytest.mark.skipif(not HAS_RAY, reason="there is no Ray for this Python")
@pytest.mark.filterwarnings("default")
def test_where_no_cluster_answers_it_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        port = unused.getsockname()[1]
        assert _extract(tmp_path, "--ray", f"127.0.0.1:{port}") == 20
    told = capsys.readouterr().err
    assert f"no Ray cluster answers at 127.0.0.1:{port}" in told
    assert "ray status" in told


@pytest.mark.skipif(not HAS_RAY, reason="there is no Ray for this Python")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "address, told",
    [
        ("somewhere", "use local, auto or host:port"),
        ("ray://head:10001", "on a machine of the cluster"),
    ],
)
def test_an_address_that_cannot_work_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str, told: str
) -> None:
    assert _extract(tmp_path, "--ray", address) == 2
    assert told in capsys.readouterr().err


def test_a_gpu_of_one_machine_and_a_bucket_of_one_process_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _extract(tmp_path, "--ray", "local", "--device", "cuda:1") == 2
    assert "Ray gives each worker its own" in capsys.readouterr().err
    assert _extract(tmp_path, "--ray", "local", bucket="memory://b") == 2
    assert "use s3://bucket/prefix" in capsys.readouterr().err


def test_ray_options_without_ray_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _extract(tmp_path, "--num-gpus", "2") == 2
    assert "--ray" in capsys.readouterr().err
