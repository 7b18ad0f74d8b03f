"""What commands say of a folder that is no spool root, not yet one, or one that nobody opens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from durastore.errors import InventoryIncomplete, RootMismatch, StoreMissing
from durastore.extract.stop import StopOutcome, StoppedProcess, StopReport, stop
from durastore.formats.spool_root import INCOMING_NAME
from durastore.monitor.sampler import look_once
from durastore_cli.main import run
from tests.unit.test_migrate_roots import put, spool_in

_AGAIN = "run the same `durastore migrate` again"


def _fill(path: Path) -> None:
    path.mkdir()
    (path / INCOMING_NAME).write_text("0" * 32 + "\n/old/spool\n")
    (path / "w-00" / "packs").mkdir(parents=True)


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["drain"],
        ["doctor", "--bucket", "s3://bucket/run"],
        ["quarantine", "list"],
        ["quarantine", "release", "x", "--to", "y"],
    ],
)
def test_a_root_that_migrate_is_filling_is_one(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _fill(tmp_path / "new")
    assert run([*command, "--local", str(tmp_path / "new")]) == 12
    said = "".join(capsys.readouterr())
    assert "is being filled by `durastore migrate` from /old/spool" in said
    assert _AGAIN in said
    assert "not a spool root" not in said


def test_the_monitor_names_the_migrate_that_did_not_end(tmp_path: Path) -> None:
    _fill(tmp_path / "new")
    (banner,) = look_once([tmp_path / "new"]).banners
    assert "is being filled by `durastore migrate`" in banner.detail
    (banner,) = look_once([tmp_path / "absent"]).banners
    assert "does not exist (yet)" in banner.detail


def test_a_file_in_the_place_of_a_root_is_told_from_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for name, words in (("file", "is not a directory"), ("absent", "does not exist")):
        assert run(["status", "--local", str(tmp_path / name)]) == 10
        assert words in capsys.readouterr().err


def test_status_tells_a_copy_and_too_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with spool_in(tmp_path / "root") as spool:
        put(spool, "a")
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    assert run(["status", "--local", str(tmp_path / "root")]) == 0
    assert "copy" not in capsys.readouterr().out.replace(str(tmp_path), "")
    assert run(["status", "--local", str(tmp_path / "copy")]) == 0
    assert "this root is a copy, and no process opens it" in capsys.readouterr().out
    monkeypatch.setattr("durastore.spool.glance.free_bytes", lambda _: 1000)
    assert run(["status", "--local", str(tmp_path / "root")]) == 0
    assert "less than the reserve is free" in capsys.readouterr().out


def test_a_spool_that_never_had_a_bucket_names_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with spool_in(tmp_path / "root"):
        pass
    assert run(["status", "--local", str(tmp_path / "root")]) == 0
    assert "for None" not in capsys.readouterr().out


def test_stop_of_a_folder_that_is_no_root_is_not_nobody(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="not a spool root"):
        stop(tmp_path, 1)
    _fill(tmp_path / "new")
    shutil.rmtree(tmp_path / "new" / "w-00")
    with pytest.raises(RootMismatch, match="is being filled"):
        stop(tmp_path / "new", 1)


def test_who_may_not_look_is_not_told_that_nobody_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with spool_in(tmp_path / "root"):
        pass

    def refuse(*asked: object) -> list[str]:
        raise PermissionError(13, "Permission denied", str(asked[0]))

    monkeypatch.setattr("durastore.spool.nearby.os.listdir", refuse)
    with pytest.raises(InventoryIncomplete, match="Permission denied"):
        stop(tmp_path / "root", 1)
    assert run(["stop", "--local", str(tmp_path / "root")]) == 12
    assert "no process" not in "".join(capsys.readouterr())
    monkeypatch.undo()
    monkeypatch.setattr("durastore.extract.stop.holders", refuse)
    with pytest.raises(InventoryIncomplete, match="as the user"):
        stop(tmp_path / "root", 1)


@pytest.mark.parametrize(
    "outcome, words",
    [
        (StopOutcome.STILL_RUNNING, "the same command again waits on, --grace N for longer"),
        (StopOutcome.REFUSED, "another user's process"),
        (StopOutcome.STOPPED, None),
    ],
)
def test_a_stop_that_ran_out_of_time_names_the_next_step(
    outcome: StopOutcome,
    words: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = StopReport(processes=(StoppedProcess(pid=7, spools=("w-00",), outcome=outcome),))
    monkeypatch.setattr("durastore.extract.stop.stop", lambda *_: report)
    assert run(["stop", "--local", str(tmp_path)]) == (11 if words else 0)
    out, err = capsys.readouterr()
    assert out == f"process 7 (w-00): {outcome.value}\n"
    assert (f"hint: {report.next_step}\n" if words else "") == err
    assert (words or "") in err
