"""A store in a folder, filled as `extract` fills one, for what other tools make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import durastore
from durastore.extract.rows import input_digest
from durastore.manifest import marker_store
from durastore_cli.main import run

__all__ = ["RUN", "ExportLab", "H", "N", "T", "hurry"]

T, H, N = 6, 4, 4
RUN = {"layers": [2, 4, 6, 8], "num_layers": 8, "dtype": "bfloat16"}


class ExportLab:
    """A store in a folder, filled as `extract` fills one; and the way back into another one."""

    def __init__(self, folder: Path, *, is_normed: bool) -> None:
        self.folder = folder
        self.run = {**RUN, "last_is_normed": is_normed}
        self.bucket = folder / "bucket"
        self.bucket.mkdir()
        self.data = folder / "train.jsonl"
        rows = [{"id": f"doc-{n}", "input_ids": self.tokens(n), "loss_mask": self.mask(n)} for n in range(N)]
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self._fill()

    @staticmethod
    def tokens(number: int) -> list[int]:
        return [100 * number + at + 1 for at in range(T + number)]

    @staticmethod
    def mask(number: int) -> list[int]:
        return [at % 2 for at in range(T + number)]

    def states(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        return torch.randn(T + number, 4, H, generator=generator).bfloat16()

    def _fill(self) -> None:
        self.put(*range(N))

    def put(self, *numbers: int) -> None:
        place: dict[str, Any] = {"local": self.folder / "spool", "is_any_filesystem_allowed": True, "reclaim": "never"}
        with durastore.open(str(self.bucket), run=self.run, **place) as store:
            for n in numbers:
                ids, mask = np.array(self.tokens(n)), np.array(self.mask(n), np.uint8)
                tensors = {"hidden_states": self.states(n), "input_ids": ids, "loss_mask": mask}
                store.put(f"doc-{n}", tensors, input_digest=input_digest(ids, mask).hex)
            store.flush()

    def export(self, form: str, *more: str) -> Path:
        out = self.folder / form
        names = [] if form == "vllm" else ["--data", str(self.data)]
        command = ["export", "--all", "--format", form, "--out", str(out), "--bucket", str(self.bucket), *names, *more]
        assert run(command) == 0
        return out

    def adopt(self, files: Path, rule: str) -> dict[str, Any]:
        """What the exported files become in a new store of the same run."""
        back = self.folder / f"back-{files.name}"
        back.mkdir()
        (self.folder / "run.toml").write_text(f"run = {_toml(self.run)}\n", encoding="utf-8")
        command = ["adopt", str(files), "--as-samples", "--run", str(self.folder / "run.toml"), "--any-filesystem"]
        command += ["--data", str(self.data), "--id-from", rule, "--local", str(self.folder / f"spool-{files.name}")]
        assert run([*command, "--bucket", str(back)]) == 0  # the record of the export is passed over
        dataset = durastore.Dataset(str(back))
        return {sample.id: sample for sample in dataset}


def _toml(run: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in run.items()) + "}"


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder needs no time to settle a new marker."""
    monkeypatch.setenv("DURASTORE_RECLAIM", "never")
    real = marker_store._settled_marker

    def settled(store: Any, prefix: str, *, clock: Any, waits_s: Any) -> Any:
        return real(store, prefix, clock=clock, waits_s=[0.0] * len(waits_s))

    monkeypatch.setattr(marker_store, "_settled_marker", settled)
