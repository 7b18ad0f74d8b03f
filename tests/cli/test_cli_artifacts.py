"""`durastore artifacts` without a server: push, ls, pull, watch; exit codes, what is printed."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from durastore_cli.main import run
from tests.integration.export_lab import hurry


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    hurry(monkeypatch)
    (tmp_path / "bucket").mkdir()
    path = tmp_path / "out"
    path.mkdir()
    (path / "train.py").write_text("print()\n")
    return path


def arguments(verb: str, folder: Path, *more: str) -> list[str]:
    return ["artifacts", verb, *more, "--bucket", str(folder.parent / "bucket")]


def pushed(verb: str, folder: Path, *more: str) -> list[str]:
    return arguments(verb, folder, str(folder), "--any-filesystem", *more)


def test_push_list_and_pull(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(pushed("push", folder)) == 0
    assert "new: 1 files, 8 bytes" in capsys.readouterr().out
    assert run(pushed("push", folder, "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["is_new"], report["files"], report["sent"]) == (False, 1, 0)
    assert run(arguments("ls", folder)) == 0
    assert capsys.readouterr().out.startswith(f"out  1  {report['snapshot']}  ")
    assert run(arguments("ls", folder, "--files", "--json")) == 0
    assert json.loads(capsys.readouterr().out)[0]["paths"][0]["path"] == "train.py"
    assert run(arguments("pull", folder, "--out", str(tmp_path / "back"), "--json")) == 0
    assert json.loads(capsys.readouterr().out)["written"] == 1
    assert (tmp_path / "back/train.py").read_text() == "print()\n"


def test_what_is_in_the_way_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "w.pt").write_bytes(b"")
    assert run(pushed("push", folder)) == 3
    printed = capsys.readouterr()
    assert printed.out == "out: no snapshot, 1 in the way\n"
    assert "in the way: w.pt: has no bytes" in printed.err
    assert "--exclude GLOB" in printed.err
    assert run(pushed("push", folder, "--exclude", "*.pt")) == 0
    assert run(arguments("ls", folder, "--name", "../x")) == 2
    assert run(arguments("pull", folder, "--out", "x", "--name", "other")) == 10


def test_watch_goes_on_until_it_is_told_to_stop(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(pushed("watch", folder, "--every", "soon")) == 2
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert run(pushed("watch", folder, "--every", "2h", "--quiet", "0")) == 0
    timer.join()
    assert capsys.readouterr().out.count("out 1 (") == 1
