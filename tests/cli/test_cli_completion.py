"""Completion in a shell: commands, options, choices, files and folders."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from durastore_cli.main import COMMANDS, run
from tests.architecture.source_tree import REPO


def offered(line: str, shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that the shell's own script is answered with, `line` being typed up to its end."""
    words = line.split(" ")
    monkeypatch.setenv("_DURASTORE_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    return capsys.readouterr().out.strip("\n").splitlines()


def test_commands_are_offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert offered("durastore ", "bash", monkeypatch, capsys) == [f"plain,{name}" for name in sorted(COMMANDS)]
    assert offered("durastore rec", "bash", monkeypatch, capsys) == ["plain,reconcile"]
    assert "rebuild" in offered("durastore manifest ", "zsh", monkeypatch, capsys)


@pytest.mark.parametrize(
    "line, bash, zsh",
    [
        ("durastore status --loc", ["plain,--local"], ["plain", "--local"]),
        ("durastore ls --addressing-style v", ["plain,virtual"], ["plain", "virtual", "_"]),
        ("durastore status --local ", ["dir,"], ["dir", "", "_"]),
        ("durastore migrate ", ["dir,"], ["dir", "", "_"]),
        ("durastore migrate /old /ne", ["dir,/ne"], ["dir", "/ne", "_"]),
        ("durastore extract in", ["file,in"], ["file", "in", "_"]),
        ("durastore extract in.jsonl --model ./m", ["file,./m"], ["file", "./m", "_"]),
        ("durastore artifacts push ", ["dir,"], ["dir", "", "_"]),
        ("durastore ls --bucket ./b", ["dir,./b"], ["dir", "./b", "_"]),
        ("durastore ls --bucket s3://b", [], []),
        ("durastore ls --endpoint-url ", [], []),
    ],
)
def test_options_choices_and_paths_are_offered(
    line: str, bash: list[str], zsh: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered(line, "bash", monkeypatch, capsys) == bash
    told = offered(line, "zsh", monkeypatch, capsys)
    assert told[: len(zsh)] == zsh
    assert bool(told) == bool(zsh)


def test_bash_itself_completes(tmp_path: Path) -> None:
    """The script of the README, in a real bash, as a press of the tab key calls it."""
    command = tmp_path / "bin" / "durastore"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m durastore_cli.main "$@"\n')
    command.chmod(0o755)
    script = """
        eval "$(_DURASTORE_COMPLETE=bash_source durastore)"
        complete -p durastore
        COMP_WORDS=(durastore quar); COMP_CWORD=1; _durastore_completion durastore; echo "${COMPREPLY[@]}"
    """
    environment = {
        **os.environ,
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'cli'}",
    }
    done = subprocess.run(
        ["bash", "-euc", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    registered, completed = done.stdout.splitlines()
    assert registered.endswith("durastore")
    assert completed == "quarantine"
