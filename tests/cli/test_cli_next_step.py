"""No message ends without a next step: every error code has one, and what a newcomer meets first names its own."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import click
import pytest

import durastore
from durastore import errors
from durastore.errors import ConfigError, DiskFailed, DurastoreError, SampleAbsent, UnknownAnswer
from durastore.objectstore.retrying import RetryPolicy
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from durastore_cli import main as main_module
from durastore_cli.main import COMMANDS, run
from durastore_cli.next_step import BY_CODE, next_step
from tests.architecture.source_tree import REPO


def caused(error: DurastoreError, cause: Exception) -> DurastoreError:
    error.__cause__ = cause
    return error


def test_every_error_code_has_a_next_step_that_exists() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    assert BY_CODE.keys() == {each.code for each in classes if issubclass(each, DurastoreError)}
    for hint in BY_CODE.values():
        assert {name for name in re.findall(r"`durastore (\w+)", hint) if name not in COMMANDS} == set()
        assert all((REPO / page).is_file() for page in re.findall(r"docs/[\w/.-]+\.md", hint))


@pytest.mark.parametrize(
    "error, step",
    [
        (UnknownAnswer("x", hint="its own"), "its own"),
        (UnknownAnswer("x"), BY_CODE["unknown-answer"]),
        (DiskFailed("x", errno=errno.ENOSPC), "free some space"),
        (DiskFailed("x", errno=errno.EACCES), "owner and mode"),
        (DiskFailed("x"), BY_CODE["disk"]),
        (caused(ConfigError("x"), FileNotFoundError(errno.ENOENT, "No such file", "/a")), "check the path"),
        (caused(ConfigError("x"), ValueError("y")), BY_CODE["config"]),
        (caused(ConfigError("x", hint="its own"), FileNotFoundError(errno.ENOENT, "z")), "its own"),
        (PermissionError(errno.EACCES, "Permission denied", "/a"), "owner and mode"),
        (OSError(errno.EROFS, "Read-only file system", "/a"), "read-only"),
    ],
)
def test_the_nearest_step_is_taken(
    error: Exception, step: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def command() -> None:
        raise error

    module = type(main_module)("durastore_cli_raising")
    module.__dict__["command"] = command
    monkeypatch.setattr(main_module, "import_module", lambda _: module)
    assert run(["ls"]) == getattr(error, "exit_code", 1)
    (hint,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hint: ")]
    assert step in hint


def test_an_unknown_exception_gets_no_invented_step() -> None:
    assert next_step(ValueError("x")) is None
    assert next_step(OSError("without a number")) is None


@pytest.mark.parametrize(
    "rules, secret, scheme, code, told",
    [
        ((), "", "http", 10, "the first writer there makes it"),
        ((), "wrong", "http", 21, "AWS_SECRET_ACCESS_KEY"),
        ((), "", "https", 20, "does the server speak https?"),
        ((Rule(lie=Lie.ERROR, amount=403, text="AccessDenied"),), "", "http", 21, "docs/operations/iam.md"),
        ((Rule(lie=Lie.CLOCK_SKEW, amount=-3600),), "", "http", 1, "clock is off"),
        ((Rule(lie=Lie.REDIRECT, text="http://127.0.0.1:9/"),), "", "http", 2, "region"),
        ((Rule(lie=Lie.HTML_200),), "", "http", 20, "is endpoint_url an S3 endpoint?"),
    ],
    ids=["empty", "secret", "https", "permission", "clock", "region", "web-page"],
)
def test_what_goes_wrong_with_an_endpoint_first(
    rules: tuple[Rule, ...],
    secret: str,
    scheme: str,
    code: int,
    told: str,
    strict_s3: StrictS3,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)
    if secret:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setattr(RetryPolicy, "delay_s", lambda *_: None)
    bucket = strict_s3.make_bucket()
    strict_s3.script(*rules)
    endpoint = strict_s3.endpoint_url.replace("http", scheme)
    assert run(["ls", "--bucket", f"s3://{bucket}/p", "--endpoint-url", endpoint]) == code
    assert told in capsys.readouterr().err.rpartition("hint: ")[2]


def test_without_credentials_both_kinds_of_bucket_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`bucket` is a name at an endpoint, also where a directory is called so."""
    (tmp_path / "bucket").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run(["ls", "--bucket", "bucket"]) == 21
    hint = capsys.readouterr().err.rpartition("hint: ")[2]
    assert "AWS_ACCESS_KEY_ID" in hint
    assert "./dir" in hint
    assert run(["ls", "--bucket", "some/dir"]) == 2
    assert "./directory" in capsys.readouterr().err


def test_samples_and_inputs_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bucket").mkdir()
    with durastore.open(tmp_path / "bucket", local=tmp_path / "spool", reclaim="never", reserve_bytes=1):
        pass
    with durastore.Dataset(tmp_path / "bucket") as dataset, pytest.raises(SampleAbsent, match="`ids` lists"):
        dataset["nothing"]
    words = ["--bucket", str(tmp_path / "bucket"), "--local", str(tmp_path / "more"), "--layers", "1"]
    (tmp_path / "file").write_text("")
    capsys.readouterr()
    assert run(["extract", str(tmp_path / "in.jsonl"), "--model", str(tmp_path / "file"), *words]) == 2
    assert "name the folder it lies in" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no memory file system to try it on")
def test_a_spool_in_memory_names_what_allows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bucket").mkdir()
    root = Path("/dev/shm") / f"durastore-hint-{os.getpid()}"
    root.mkdir()
    try:
        with pytest.raises(errors.UnsupportedFilesystem, match="DURASTORE_IS_ANY_FILESYSTEM_ALLOWED=1"):
            durastore.open(tmp_path / "bucket", local=root, reclaim="never")
        assert list(root.iterdir()) == []
    finally:
        root.rmdir()
    assert capsys.readouterr().out == ""
