"""The example of training runs as it stands, with a tiny model and a folder for a bucket: killed, resumed, ended."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import durastore
from durastore.extract.job import ExtractRequest, run_extract
from durastore.extract.runner import RunnerLimits
from durastore.extract.transformers_engine import ModelSettings
from durastore.store.opening import OptionOverrides
from tests.architecture.source_tree import REPO
from tests.integration.export_lab import hurry
from tests.integration.extract_lab import make_model

SCRIPT = REPO / "examples/train_drafter/train.py"
STEPS = 14


def _decided(model: Path) -> Path:
    """Random weights give nearly equal chances to all tokens, of which nothing can be learnt."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    tensors["lm_head.weight"] *= 40
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """States of 18 short rows, extracted from a four-layer model."""
    hurry(monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so little work is slower with more
    random = np.random.default_rng(0)
    data = tmp_path / "train.jsonl"
    rows = [f'{{"id": "r{n}", "input_ids": {random.integers(3, 60, 20).tolist()}}}\n' for n in range(18)]
    data.write_text("".join(rows), encoding="utf-8")
    (tmp_path / "bucket").mkdir()
    request = ExtractRequest(
        input=data,
        model=str(_decided(make_model(tmp_path / "model"))),
        layers="1,2,3,last",
        bucket=str(tmp_path / "bucket"),
        local=tmp_path / "spool",
        options=OptionOverrides(is_any_filesystem_allowed=True, reclaim="never", seal_age_s=0.2),
        settings=ModelSettings(device="cpu"),
        limits=RunnerLimits(batch_tokens=256),
    )
    assert run_extract(request).exit_code == 0
    yield tmp_path / "bucket"
    torch.set_num_threads(threads)


def _arguments(bucket: Path, out: Path, *more: str) -> list[str]:
    place = ["--bucket", str(bucket), "--model", str(bucket.parent / "model"), "--out", str(out), "--any-filesystem"]
    sizes = ["--steps", str(STEPS), "--workers", "0", "--vocabulary", "32", "--save-every", "6", "--lr", "3e-3"]
    return [*place, *sizes, "--keep-last", "0", *more]


def _train(arguments: list[str]) -> list[tuple[int, float, float]]:
    spec = importlib.util.spec_from_file_location("train_drafter", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    log: list[tuple[int, float, float]] = module.train(module.parse(arguments))
    return log


def test_a_killed_training_goes_on_as_if_nothing_had_been(
    bucket: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = _train(_arguments(bucket, tmp_path / "whole", "--log-every", "1"))
    assert [step for step, _, _ in whole] == list(range(1, STEPS + 1))
    early, late = (float(np.mean([loss for _, loss, _ in part])) for part in (whole[:4], whole[-4:]))
    assert late < early - 0.05
    assert "accuracy" in capfd.readouterr().out

    (bucket / "artifacts").rename(bucket.parent / "first")  # what this training kept is not what the next one finds
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'cli'}"}
    command = [sys.executable, str(SCRIPT), *_arguments(bucket, tmp_path / "a", "--die-at", "9")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    for out, said in (("new-machine", "checkpoint 6 comes from the bucket\n"), ("a", "")):
        log = _train(_arguments(bucket, tmp_path / out))
        assert f"{said}goes on after step 6, inside of epoch 1" in capfd.readouterr().out
        assert log == whole[6:]


def test_a_trainer_s_checkpoints_go_to_the_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the callback alone, as transformers' `Trainer` calls it."""
    from types import SimpleNamespace

    from transformers import TrainerCallback

    hurry(monkeypatch)
    (tmp_path / "out/checkpoint-1").mkdir(parents=True)
    (tmp_path / "out/checkpoint-1/model.bin").write_bytes(b"weights")
    artifacts = durastore.Artifacts(tmp_path / "out", bucket="memory://trainer", is_any_filesystem_allowed=True)
    callback = artifacts.trainer_callback()
    assert isinstance(callback, TrainerCallback)
    for is_first in (False, True):
        state: Any = SimpleNamespace(is_world_process_zero=is_first)
        callback.on_save(None, state, None)
        callback.on_train_end(None, state, None)
        assert (artifacts.newest() is not None) == is_first
    report = durastore.Artifacts(tmp_path / "back", bucket="memory://trainer", name="out").pull()
    assert report.written == 1
    assert (tmp_path / "back/checkpoint-1/model.bin").read_bytes() == b"weights"


def test_the_whole_example_ends_with_an_error_where_a_step_of_it_does() -> None:
    spec = importlib.util.spec_from_file_location("drafter_run", SCRIPT.with_name("run.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    killed = "import os; os.kill(os.getpid(), 9)"
    module._type("ends well", sys.executable, "-c", "")
    module._type("is killed", sys.executable, "-c", killed, expect=-signal.SIGKILL)
    with pytest.raises(SystemExit, match="fails: exit code 3, and 0 was expected"):
        module._type("fails", sys.executable, "-c", "raise SystemExit(3)")
    with pytest.raises(SystemExit, match="lives: exit code 0, and -9 was expected"):
        module._type("lives", sys.executable, "-c", "", expect=-signal.SIGKILL)
