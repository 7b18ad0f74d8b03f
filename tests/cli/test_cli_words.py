"""Small words of commands that lead on, or would lead astray."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import durastore
from durastore.demo.serve import DEMO_PORT, Served
from durastore.errors import RunMismatch
from durastore.formats.marker import MARKER_FORMAT, Marker
from durastore.manifest.marker_store import check_run
from durastore.model import Run
from durastore_cli.main import run


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "durastore_cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("durastore, version")


@pytest.mark.parametrize("port, more", [(DEMO_PORT, ""), (8399, " --port 8399")])
def test_the_demo_starts_again_where_its_other_terminal_looks(port: int, more: str) -> None:
    served = Served(
        endpoint_url=f"http://127.0.0.1:{port}",
        port=port,
        folder=Path("/d"),
        environment=Path(f"/d/s3-{port}.env"),
        has_run=False,
        example=None,
    )
    assert list(served.lines())[-1].endswith(f"durastore demo --serve --keep /d{more}")


@pytest.mark.parametrize("command, name", [(["ls"], "bucket"), (["status"], "local")])
def test_a_missing_place_names_every_way_to_give_it(
    command: list[str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(command) == 2
    err = capsys.readouterr().err
    assert f"DURASTORE_{name.upper()}" in err
    assert f'{name} = "..." into durastore.toml' in err


def test_get_tells_what_there_is_and_makes_no_folder_called_like_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with durastore.open(bucket, local=tmp_path / "spool", reclaim="never") as store:
        store.put("a", {"x": np.zeros(3), "y": np.zeros(2)})
    command = ["get", "a", "--bucket", str(bucket), "--out"]
    assert run([*command, str(tmp_path / "got"), "--tensors", "typo"]) == 3
    assert "hint: it has x, y" in capsys.readouterr().err
    assert run([*command, str(tmp_path / "x.pt")]) == 2
    assert "name a file that ends in .safetensors" in capsys.readouterr().err
    assert not (tmp_path / "x.pt").exists()
    assert run([*command, str(tmp_path / "got")]) == 0
    (tmp_path / "got" / "a.safetensors").write_bytes(b"mine")
    capsys.readouterr()
    assert run([*command, str(tmp_path / "got")]) == 3
    assert "hint: give another --out" in capsys.readouterr().err


def test_a_prefix_without_a_run_is_told_as_one() -> None:
    marker = Marker(store_id="a" * 32, format=MARKER_FORMAT, run=None, created_ns=1)
    with pytest.raises(RunMismatch) as caught:
        check_run(marker, Run.of({"model": "m", "layers": [1]}), prefix="plain")
    assert "prefix plain is one without a run" in caught.value.message
    assert "(absent)" not in caught.value.message


def test_the_system_s_own_refusal_is_no_surprise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "spx"))

    monkeypatch.setattr("durastore.store.overview.look_at_store", refuse)
    assert run(["status", "--local", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert f"durastore: {tmp_path / 'spx'}: Permission denied [error]" in err
    assert "hint: check owner and mode" in err
    assert "unexpected" not in err


@pytest.mark.parametrize(
    "name, words",
    [("speculators_train", "pip install speculators"), ("speculators_launch", "name speculators' launch script")],
)
def test_what_starts_another_tool_says_what_is_missing(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module(f"durastore.integrations.{name}")
    monkeypatch.setattr(sys, "argv", [name])
    if hasattr(module, "find_spec"):
        monkeypatch.setattr(module, "find_spec", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert words in str(ended.value.code)
