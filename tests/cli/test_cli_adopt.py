"""`durastore adopt` without a server: what goes together, exit codes, what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from durastore_cli.main import run
from tests.unit.reconcile_lab import npy

RUN = '[run]\nlayers = [1, 2]\ndtype = "float32"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    (tmp_path / "bucket").mkdir()
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "train.jsonl").write_text('{"id": "s0", "input_ids": [1, 2, 3]}\n{"id": "s1", "input_ids": [4]}\n')
    return path


def _arguments(folder: Path, *more: str) -> list[str]:
    return ["adopt", str(folder), "--bucket", str(folder.parent / "bucket"), "--any-filesystem", *more]


def _as_samples(folder: Path, *more: str) -> list[str]:
    at = folder.parent
    files = ["--run", str(at / "run.toml"), "--data", str(at / "train.jsonl"), "--local", str(at / "spool")]
    return _arguments(folder, "--as-samples", *files, *more)


def test_plan_adopt_and_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.npy").write_bytes(npy(1))
    (folder / "half.npy").write_bytes(npy(2)[:90])
    assert run(_arguments(folder, "--dry-run")) == 12
    out = capsys.readouterr().out
    assert "without --dry-run: upload it" in out
    assert out.startswith(f"folder {folder} ")  # nothing was adopted
    assert "  manifest rows: 0\n" in out
    assert not (folder / ".durastore").exists()
    assert run(_arguments(folder, "--json")) == 12
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["applied"]["uploaded"], report["applied"]["quarantined"]) == (
        "adopted folder",
        1,
        {},
    )
    (folder / "half.npy").write_bytes(npy(2))
    assert run(_arguments(folder)) == 0
    assert "nothing disagrees" in capsys.readouterr().out
    assert run(["ls", "--bucket", str(folder.parent / "bucket")]) == 0
    assert capsys.readouterr().out.split() == ["a.npy", "half.npy"]


def test_samples_from_plan_to_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DURASTORE_RECLAIM", "never")
    monkeypatch.setenv("DURASTORE_SEAL_AGE_S", "0.1")
    torch.save({"hidden_states": torch.randn(3, 2, 4), "input_ids": torch.tensor([1, 2, 3])}, folder / "data_0.pt")
    torch.save({"hidden_states": torch.randn(1, 2, 4), "input_ids": torch.tensor([5])}, folder / "data_1.pt")
    assert run(_as_samples(folder, "--dry-run")) == 3
    out = capsys.readouterr().out
    assert "files 2: would be adopted 1, held before 0, not adopted 1" in out
    assert "data_1.pt: its token 0 is 5, and in line 2 of the input it is 4" in out
    assert not (folder.parent / "spool").exists()
    assert run(_as_samples(folder)) == 3
    assert "files 2: adopted 1, held before 0, not adopted 1" in capsys.readouterr().out
    (folder / "data_1.pt").unlink()
    assert run(_as_samples(folder, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["held"] == 1


def test_what_does_not_go_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.npy").write_bytes(npy(1))
    assert run(_arguments(folder, "--data", "x", "--id-from", "row")) == 2
    assert "--data, --id-from acts only together with --as-samples" in capsys.readouterr().err
    assert run(_arguments(folder, "--as-samples", "--local", str(folder.parent / "spool"))) == 2
    assert "--run" in capsys.readouterr().err
    assert run(_as_samples(folder, "--reclaim")) == 2
    assert "--reclaim does not go together with --as-samples" in capsys.readouterr().err
    assert run(_as_samples(folder, "--id-from", "nothing")) == 2
    assert run(_arguments(folder.parent / "absent")) == 10
    assert run(_arguments(folder, "--reclaim")) == 2  # a bucket on the same disk frees nothing
    assert (folder / "a.npy").read_bytes() == npy(1)


def test_without_torch_a_pt_file_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DURASTORE_RECLAIM", "never")
    monkeypatch.setattr("durastore.extras.find_spec", lambda _: None)
    torch.save({"hidden_states": torch.randn(3, 2, 4)}, folder / "data_0.pt")
    assert run(_as_samples(folder)) == 2
    assert "pip install 'durastore[torch]'" in capsys.readouterr().err
