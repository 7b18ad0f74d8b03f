"""The command line's frame: help, exit codes, where output goes, and how quickly it starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest

import durastore
from durastore import __version__, errors
from durastore.errors import DurastoreError, SpoolFull
from durastore.objectstore.retrying import RetryPolicy
from durastore_cli import main as main_module
from durastore_cli.exits import EXIT_CODES
from durastore_cli.main import COMMANDS, run
from durastore_cli.next_step import AGAIN
from durastore_cli.progress import Ticker
from tests.unit.reconcile_lab import npy

ROOT = Path(__file__).parents[2]
ALL_COMMANDS = [
    [],
    *([name] for name in COMMANDS),
    *(["manifest", each] for each in ("show", "compact", "rebuild")),
    *(["artifacts", each] for each in ("push", "watch", "pull", "ls")),
    ["quarantine", "list"],
    ["quarantine", "release"],
]


def _child(*arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"}
    command = [sys.executable, "-m", "durastore_cli.main", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_the_readme_names_every_command_with_its_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("\n## Commands\n") : text.index("\n## What is promised\n")]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    assert {name.split()[0] for row in rows for name in re.findall(r"`([^`]+)`", row[2])} == set(COMMANDS)
    for row in rows:
        pages = re.findall(r"\]\(([^)#]*)", row[3])
        assert pages
        assert all((ROOT / page).exists() for page in pages), row


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=lambda c: " ".join(c) or "durastore")
def test_every_help_shows_the_exit_codes(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for code, meaning in EXIT_CODES.items():
        assert f"{code:<4} {meaning}" in out


@pytest.mark.parametrize("group", ["artifacts", "manifest", "quarantine"])
def test_no_summary_of_a_subcommand_is_cut(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group, "--help"]) == 0
    _, _, summaries = capsys.readouterr().out.partition("Commands:")
    assert summaries
    assert "..." not in summaries


def test_a_dead_endpoint_is_told_before_the_patience_and_after_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told_before_asking_again = []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setattr(
        RetryPolicy, "delay_s", lambda *_: told_before_asking_again.append(capsys.readouterr().err)
    )  # None: gives up
    assert run(["ls", "--bucket", "s3://bucket/p", "--endpoint-url", "http://127.0.0.1:9", "--region", "x"]) == 20
    (told,) = told_before_asking_again
    assert "no connection to 127.0.0.1:9 " in told
    assert "asked again" in told
    assert "hint: check endpoint_url and that the server runs" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["drain"], ["quarantine", "list"], ["stop"], ["status", "--failed"]])
def test_a_mistyped_root_is_told_with_the_next_step(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--local", str(tmp_path / "nope")]) == 10
    assert "hint: check" in capsys.readouterr().err


def test_status_tells_sizes_as_people_read_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with durastore.open("memory://sizes", local=tmp_path, reclaim="never") as store:
        store.put("a", {"x": np.arange(4000)})
        store.flush()
    assert run(["status", "--local", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "GB free (reserve 1.07 GB)" in out
    assert "35.3 kB here for memory://sizes: 1 manifested (35.3 kB)" in out


def test_quarantine_of_a_reconciled_folder_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, bucket = tmp_path / "files", tmp_path / "bucket"
    folder.mkdir()
    bucket.mkdir()
    (folder / "half.npy").write_bytes(npy(2)[:90])
    remote = ["--bucket", str(bucket), "--any-filesystem"]
    assert run(["reconcile", "--local", str(folder), *remote, "--apply"]) == 12
    capsys.readouterr()
    assert run(["quarantine", "list", "--local", str(folder)]) == 10
    private = capsys.readouterr().err.rpartition(" is in ")[2].strip()
    assert run(["quarantine", "list", "--local", private]) == 0
    assert "half.npy" in capsys.readouterr().out


def test_progress_of_an_unknown_total_names_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("durastore_cli.progress._EVERY_S", 0.0)
    tick = Ticker("adopt", "files")
    tick(1, 0)
    tick(1, 2)
    assert capsys.readouterr().err.splitlines() == ["adopt: 1 files", "adopt: 1 of 2 files"]


def test_the_last_line_of_progress_is_the_end_and_not_the_middle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("durastore_cli.progress._EVERY_S", 0.0)
    tick = Ticker("adopt", "files")
    tick(1, 3)
    monkeypatch.setattr("durastore_cli.progress._EVERY_S", 1000.0)
    tick(2, 3)
    tick(2, 3)
    tick(3, 3)
    assert capsys.readouterr().err.splitlines() == ["adopt: 1 of 3 files", "adopt: 2 of 3 files", "adopt: 3 of 3 files"]
    short = Ticker("adopt", "files")
    short(3, 3)  # over before there was anything to show
    assert capsys.readouterr().err == ""


def test_an_interrupt_tells_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tick = Ticker("adopt", "files")
    tick(2, 9)
    _raising(monkeypatch, KeyboardInterrupt())
    assert run(["raise"]) == 130
    assert capsys.readouterr().err.splitlines()[-2:] == ["adopt: 2 of 9 files", f"durastore: interrupted; {AGAIN}"]


def test_every_error_has_an_exit_code_that_help_shows() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    assert {c.exit_code for c in classes if issubclass(c, DurastoreError)} <= set(EXIT_CODES)


def test_help_imports_little_and_nothing_heavy() -> None:
    # its time goes with what it imports, and seconds would fail on a busy machine
    code = (
        "import sys; from durastore_cli.main import run; assert run(['--help']) == 0;"
        "heavy = {'torch', 'boto3', 'botocore', 'obstore', 'pyarrow', 'numpy', 'transformers', 'rich'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "assert len(sys.modules) < 250, len(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, timeout=60)


def test_the_version_is_the_library_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"durastore, version {__version__}"


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["nothing"], "No such command"),
        (["statsu"], "Did you mean status?"),
        (["extract"], "Missing argument"),
        (["extract", "x.jsonl"], "--model"),
        (["extract", "x.jsonl", "--model", "m", "--layers", "1", "--high-watermark", "lots"], "lots"),
        (["stop", "--grace", "-1"], "--grace"),
        (["stop"], "--local"),
        (["manifest", "show"], "--bucket"),
        (["ls"], "--bucket"),
        (["status"], "--local"),
        (["drain"], "--local"),
        (["quarantine", "list"], "--local"),
        (["quarantine", "release", "x", "--local", "y"], "--to"),
        (["verify"], "--bucket"),
        (["verify", "--sample", "101%", "--bucket", "b"], "not a share"),
        (["verify", "--sample", "nan", "--bucket", "b"], "not a share"),
        (["verify", "--sample", "1", "--bucket", "b"], "write 1% for 1 in a hundred, or --deep for all"),
        (["verify", "--sample", "5.0", "--bucket", "b"], "write 5.0% for"),
        (["extract", "x", "--model", "m", "--layers", "1", "--audit", "1"], "write 1% for 1 in a hundred, or 100%"),
        (["ls", "--bucket", "s3://b/run "], "--bucket begins or ends with a blank"),
        (["drain", "--local", "/nvme/spool\n"], "--local begins or ends with a blank"),
        (["status", "--local", ""], "--local is empty"),
        (["ls", "--bucket", "b", "--meta"], "together with --json"),
        (["manifest", "show", "--bucket", "b", "--sample", "x", "--ids"], "give one of them"),
        (["ls", "--bucket", "bucket/run"], "did you forget the s3:// in front?"),
        (["ls", "--bucket", "s3:/bucket/run"], "s3: takes two slashes"),
        (["verify", "--deep", "--sample", "1%", "--bucket", "b"], "leave out --sample"),
        (["get", "--out", "x", "--bucket", "b"], "in one way"),
        (["get", "a", "--all", "--out", "x", "--bucket", "b"], "in one way"),
        (["get", "a", "--bucket", "b"], "--out"),
        (["get", "--ids", "/nothing/here", "--out", "x", "--bucket", "b"], "cannot be read"),
        (["get", "--ids", "/nothing/here", "--out", "x", "--bucket", "b"], "hint: check the path"),
        (["get", "--ids", "/dev/null", "--out", "x", "--bucket", "b"], "names no sample"),
    ],
)
def test_wrong_usage_is_2_and_on_stderr(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in err


@pytest.mark.parametrize("what", ["show", "compact", "rebuild"])
def test_a_mistyped_prefix_is_no_empty_store(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["manifest", what, "--bucket", str(tmp_path)]) == 10
    assert "there is no durastore" in capsys.readouterr().err


def test_a_sample_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bucket").mkdir()
    with durastore.open(tmp_path / "bucket", local=tmp_path / "spool", reclaim="never") as store:
        store.put("a", {"x": np.zeros(1)})
    assert run(["manifest", "show", "--bucket", str(tmp_path / "bucket"), "--sample", "a"]) == 0
    assert run(["manifest", "show", "--bucket", str(tmp_path / "bucket"), "--sample", "b"]) == 1
    assert "no sample b" in capsys.readouterr().err


def test_no_command_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Commands" in err


def _raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command()
    def command() -> None:
        raise error

    module = type(sys)("durastore_cli_raising")
    module.__dict__["command"] = command
    monkeypatch.setitem(sys.modules, "durastore_cli_raising", module)
    monkeypatch.setattr(main_module, "COMMANDS", {"raise": ("durastore_cli_raising", "")})


@pytest.mark.parametrize(
    "error, code, shown",
    [
        (SpoolFull("no room", hint="free some"), 14, ["durastore: no room [spool-full]", "hint: free some"]),
        (KeyboardInterrupt(), 130, [f"durastore: interrupted; {AGAIN}"]),
        (ValueError("odd"), 1, ["durastore: unexpected ValueError: odd"]),
        (
            PermissionError(13, "Permission denied", "/nvme/spool"),
            1,
            [
                "durastore: /nvme/spool: Permission denied [error]",
                "hint: check owner and mode of it and of the folders above; `id` tells who you are here",
            ],
        ),
    ],
)
def test_errors_become_lines_and_exit_codes(
    error: BaseException,
    code: int,
    shown: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _raising(monkeypatch, error)
    assert run(["raise"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.split("\n")[-len(shown) - 1 : -1] == shown
    assert "Traceback" not in err


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _raising(monkeypatch, SpoolFull("no room"))
    assert run(["--debug", "raise"]) == 14
    assert "Traceback" in capsys.readouterr().err


def test_stop_of_an_absent_root_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stop", "--local", str(tmp_path / "absent")]) == 10
    assert "[no-store]" in capsys.readouterr().err


def test_stop_of_an_idle_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w-00").mkdir()
    assert run(["stop", "--local", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"processes": [], "exit_code": 0}


def test_the_environment_names_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DURASTORE_LOCAL", str(tmp_path))
    (tmp_path / "w-00").mkdir()
    assert run(["stop"]) == 0
    assert capsys.readouterr().out == "no process holds a spool of this root\n"


@pytest.mark.parametrize("written", ["variable", "file"])
def test_a_wrong_bucket_is_named_by_its_source_and_not_quoted(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if written == "variable":
        monkeypatch.setenv("DURASTORE_BUCKET", "hunter2/run")
    else:
        (tmp_path / "durastore.toml").write_text('bucket = "hunter2/run"')
    assert run(["drain", "--local", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert {"variable": "DURASTORE_BUCKET: neither", "file": f"{tmp_path / 'durastore.toml'}: neither"}[written] in err
    assert "hunter2" not in err
