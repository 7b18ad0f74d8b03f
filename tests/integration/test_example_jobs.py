"""The examples of a loop of one's own, a Slurm array and a systemd unit do what their pages say."""

from __future__ import annotations

import configparser
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import durastore
from durastore_cli.exits import EXIT_CODES
from durastore_cli.extract import command as extract_command
from durastore_cli.main import run
from tests.architecture.source_tree import REPO
from tests.integration.extract_lab import make_model

LOOP = REPO / "examples/own_loop/loop.py"
BATCH = REPO / "examples/slurm_array/extract.sbatch"
UNIT = REPO / "examples/systemd/durastore-extract.service"


def test_the_loop_makes_everything_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DURASTORE_IS_ANY_FILESYSTEM_ALLOWED", "1")
    monkeypatch.setattr(sys, "argv", [str(LOOP)])
    monkeypatch.chdir(tmp_path)
    for made in (20, 0):
        runpy.run_path(str(LOOP), run_name="__main__")
        assert capsys.readouterr().out == f"{made} made, 20 in the bucket, poem/7 is (13, 8)\n"


def _typed_by_the_job(folder: Path, task: int, **variables: str) -> list[str]:
    """The words that the batch script gives to durastore as this task of an array."""
    recorder = folder / "bin" / "durastore"
    recorder.parent.mkdir(exist_ok=True)
    recorder.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    recorder.chmod(0o755)
    environment = {"PATH": f"{recorder.parent}{os.pathsep}{os.environ['PATH']}", "USER": "somebody", **variables}
    array = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": "1", "SLURM_NTASKS": "1"}
    done = subprocess.run(
        ["bash", str(BATCH), "--device", "cpu", "--dtype", "float32"],
        env={**environment, **array},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_array_s_parts_are_the_whole_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURASTORE_RECLAIM", "never")  # bucket and spool are on one disk here
    monkeypatch.setenv("DURASTORE_SEAL_AGE_S", "0.2")
    monkeypatch.setenv("DURASTORE_IS_ANY_FILESYSTEM_ALLOWED", "1")
    rows = [{"id": f"r{number}", "input_ids": [number + 3, 5, 7]} for number in range(9)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "bucket").mkdir()
    variables = {
        "PARTS": "2",
        "INPUT": str(tmp_path / "in.jsonl"),
        "MODEL": str(make_model(tmp_path / "model")),
        "LAYERS": "1,last",
        "BUCKET": str(tmp_path / "bucket"),
        "LOCAL": str(tmp_path / "spool"),
    }
    held = []
    for task in (0, 1):
        assert run(_typed_by_the_job(tmp_path, task, **variables)) == 0
        with durastore.Dataset(tmp_path / "bucket") as dataset:
            held.append(len(dataset))
    assert 0 < held[0] < held[1] == len(rows)


def test_the_array_has_as_many_jobs_as_parts() -> None:
    text = BATCH.read_text(encoding="utf-8")
    (first, last), (parts,) = re.findall(r"--array=(\d+)-(\d+)\n", text)[0], re.findall(r"PARTS:-(\d+)", text)
    assert (int(first), int(last)) == (0, int(parts) - 1)


@pytest.mark.parametrize("name", ["BUCKET", "MODEL"])
def test_a_job_without_its_place_says_so(name: str) -> None:
    variables = {
        "BUCKET": "s3://b/p",
        "MODEL": "m",
        "USER": "u",
        "PATH": os.environ["PATH"],
        "SLURM_ARRAY_TASK_ID": "0",
    }
    del variables[name]
    done = subprocess.run(["bash", str(BATCH)], env=variables, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode != 0
    assert name in done.stderr


def test_the_unit_s_command_and_exit_codes_exist() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # keys keep their case
    unit.read_string(UNIT.read_text(encoding="utf-8").replace("\\\n", " "))
    service = unit["Service"]
    program, subcommand, *words = shlex.split(service["ExecStart"])
    assert (Path(program).name, subcommand) == ("durastore", "extract")
    with extract_command.make_context("extract", words) as context:
        assert isinstance(context, click.Context)
        assert context.params["local"] == unit["Unit"]["RequiresMountsFor"]
        assert context.params["grace"] < int(service["TimeoutStopSec"])
    lasting = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert lasting <= EXIT_CODES.keys()
    assert lasting >= {2, 3, 10, 12, 21, 130, 143}, "what stays so would be tried for ever"
