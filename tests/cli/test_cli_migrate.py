"""`durastore migrate`: exit codes, what is printed, and the whole of it in processes of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from durastore_cli.main import run
from tests.unit.migrate_lab import MigrateLab, mig
from tests.unit.reconcile_lab import npy

__all__ = ["mig"]


def arguments(mig: MigrateLab, *more: str) -> list[str]:
    return ["migrate", str(mig.source), str(mig.target), *more]


def test_plan_copy_and_free(mig: MigrateLab, capsys: pytest.CaptureFixture[str]) -> None:
    mig.fill(3)
    mig.write("x.npy", npy(1))
    assert run(arguments(mig, "--dry-run")) == 0
    out = capsys.readouterr().out
    assert "plan: 4 files" in out
    assert "copied" not in out
    assert not mig.target.exists()
    assert run(arguments(mig, "--jobs", "2", "--limit-rate", "1GiB")) == 0
    out = capsys.readouterr().out
    assert "copied 4 files" in out
    assert "3 no prior evidence" in out
    assert "1 whole by its own header" in out
    assert run(arguments(mig, "--reclaim-source", "--any-filesystem", "--json")) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["reclaimed"], shown["there_before"], shown["exit_code"]) == (4, 4, 0)
    assert shown["proven"] == {"digest": 0, "length": 1, "none": 3}
    assert sorted(shown["no_prior_evidence"]) == sorted(path for path in mig.written if path != "x.npy")
    assert mig.here() == {}
    mig.check(is_all_there=True)


def test_exit_codes_say_what_came_of_it(mig: MigrateLab, capsys: pytest.CaptureFixture[str]) -> None:
    # case B123
    mig.write("a.npy", npy(1)[:-1])
    assert run(arguments(mig)) == 12
    assert "damaged at the source" in capsys.readouterr().out
    (mig.target / "b").write_bytes(b"another")
    mig.write("b", 10)
    assert run(arguments(mig)) == 3
    assert "FAILED: b: the destination has another file" in capsys.readouterr().out
    assert run(["migrate", str(mig.source), str(mig.source / "in")]) == 2
    assert run(["migrate", str(mig.source / "absent"), str(mig.target)]) == 10
    assert run(["migrate", str(mig.source), str(mig.target / "x" / "y")]) == 10
    assert "overlap" in capsys.readouterr().err
    assert run(["migrate", str(mig.source)]) == 2


def test_what_ends_with_the_machine_frees_nothing(mig: MigrateLab, capsys: pytest.CaptureFixture[str]) -> None:
    mig.write("a", 10)
    assert run(arguments(mig)) == 0
    assert run(arguments(mig, "--reclaim-source")) == 2
    assert "REFUSED: DST is on tmpfs, no local disk" in capsys.readouterr().out
    assert mig.here() == mig.there() == mig.written
    assert run(arguments(mig, "--reclaim-source", "--any-filesystem")) == 0
    assert (mig.here(), mig.there()) == ({}, mig.written)


def test_one_device_frees_nothing(mig: MigrateLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mig.write("a", 10)
    mig.target = tmp_path / "target"
    assert run(arguments(mig, "--reclaim-source")) == 2
    assert "REFUSED: SRC and DST are on one device" in capsys.readouterr().out
    assert not mig.target.exists()
    assert run(arguments(mig)) == 0
    assert mig.here() == mig.there() == mig.written


def test_names_that_are_no_text_can_be_shown(mig: MigrateLab, capsys: pytest.CaptureFixture[str]) -> None:
    # case B132
    name = os.fsencode(mig.source) + b"/\xff\x1b[31m"
    Path(os.fsdecode(name)).write_bytes(b"x")
    os.mkfifo(os.fsencode(mig.source) + b"/p\xfe")
    assert run(arguments(mig)) == 0
    out = capsys.readouterr().out
    assert "\\xfe" in out
    assert "\x1b" not in out
    assert run(arguments(mig, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["no_prior_evidence"] == ["\\xff\x1b[31m"]
