"""`durastore reconcile` without a server: exit codes, what is printed, where the report goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from durastore_cli.main import run
from tests.unit.reconcile_lab import npy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    (path / "a.npy").write_bytes(npy(1))
    return path


def _arguments(folder: Path, *more: str) -> list[str]:
    bucket = folder.parent / "bucket"
    bucket.mkdir(exist_ok=True)
    return ["reconcile", "--local", str(folder), "--bucket", str(bucket), "--any-filesystem", *more]


def test_look_apply_look(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_arguments(folder)) == 12
    out = capsys.readouterr().out
    assert "only-local (local): 1" in out
    assert "--apply: upload it" in out
    assert not (folder / ".durastore").exists()
    report = folder.parent / "report.json"
    assert run(_arguments(folder, "--apply", "--report", str(report), "--json")) == 0
    shown = json.loads(capsys.readouterr().out)
    assert json.loads(report.read_text()) == shown
    assert (shown["applied"]["uploaded"], shown["sums_agree"], shown["exit_code"]) == (1, True, 0)
    assert run(_arguments(folder)) == 0
    assert "nothing disagrees" in capsys.readouterr().out
    assert run(_arguments(folder, "--report", str(report))) == 2  # an existing file is never overwritten
    assert json.loads(report.read_text()) == shown


def test_wrong_usage_and_places_that_are_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_arguments(folder, "--reclaim")) == 2
    assert run(_arguments(folder.parent / "absent")) == 10
    assert run(["reconcile", "--local", str(folder), "--bucket", str(folder / "x" / "y")]) in (2, 10)
    empty = folder.parent / "empty"
    empty.mkdir()
    assert run(_arguments(empty, "--apply")) == 12
    assert list(empty.iterdir()) == []
    assert "no disk is mounted" in capsys.readouterr().err


def test_a_bucket_on_the_same_disk_frees_nothing(folder: Path) -> None:
    assert run(_arguments(folder, "--apply", "--reclaim")) == 2
    assert (folder / "a.npy").read_bytes() == npy(1)


def test_a_bucket_inside_the_folder_is_refused(folder: Path) -> None:
    inner = folder / "bucket"
    inner.mkdir()
    assert run(["reconcile", "--local", str(folder), "--bucket", str(inner), "--apply"]) == 2


def test_names_are_shown_in_order_whatever_the_disk_s_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in (2, 0, 8, 5, 1, 4, 3, 7, 6):
        (folder / f"data_{n}.npy").write_bytes(npy(n))
    assert run(_arguments(folder)) == 12
    shown = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    assert [name for name in shown if name.startswith("data_")] == [f"data_{n}.npy" for n in range(9)]
