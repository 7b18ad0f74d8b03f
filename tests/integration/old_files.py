"""Old files as other tools leave them, with the real states of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from durastore.extract.engine import Extracted, Refused
from durastore.extract.layers import LayerPlan
from durastore.extract.model_identity import ModelSource
from durastore.extract.rows import TokenRow, input_digest
from durastore.extract.transformers_engine import ModelSettings, TransformersEngine
from durastore.model import SampleId

__all__ = ["LAYERS", "CountingEngine", "make_run_file", "save_rows_pt", "states_of"]

LAYERS = LayerPlan(indices=(1, 3, 4), num_layers=4, is_last_normed=False)
"""What `extract_lab.Job` extracts."""


class CountingEngine:
    """The real engine; remembers which samples went through the model."""

    def __init__(self) -> None:
        self.forwards: list[str] = []
        self.starts = 0

    def __call__(self, source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> CountingEngine:
        self._engine = TransformersEngine(source, plan, settings=settings)
        return self

    def start(self) -> None:
        self.starts += 1
        self._engine.start()

    def health(self) -> str | None:
        return self._engine.health()

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        self.forwards += [str(row.sample_id) for row in batch]
        return self._engine.extract(batch)

    def close(self) -> None:
        self._engine.close()


def states_of(model: Path, tokens: Sequence[Sequence[int]], *, plan: LayerPlan = LAYERS) -> list[torch.Tensor]:
    """States [T, L, H] of each row, by a forward pass of its own."""
    engine = TransformersEngine(ModelSource(folder=model), plan, settings=ModelSettings(device="cpu"))
    try:
        return [_states(engine, ids) for ids in tokens]
    finally:
        engine.close()


def _states(engine: TransformersEngine, ids: Sequence[int]) -> torch.Tensor:
    array = np.array(ids, dtype=np.int64)
    row = TokenRow(
        line=1, sample_id=SampleId("x"), input_ids=array, loss_mask=None, input_digest=input_digest(array, None)
    )
    (result,) = engine.extract([row])
    assert isinstance(result, Extracted)
    states: torch.Tensor = result.tensors["hidden_states"].clone()
    return states


def save_rows_pt(folder: Path, number: int, states: torch.Tensor, **keys: Any) -> Path:
    """`rows_0-2000/data_<number>.pt` as a script with `torch.save` leaves it."""
    path = folder / f"rows_{number // 2000 * 2000}-{number // 2000 * 2000 + 2000}" / f"data_{number}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"hidden_states": states, **keys}, path)
    return path


def make_run_file(path: Path, model: Path, **words: Any) -> Path:
    """The run of `extract_lab.Job`, in the words of `durastore extract`."""
    values = {"model": str(model), "layers": "1,3,last", **words}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in values.items()]
    path.write_text("[extract]\n" + "".join(lines), encoding="utf-8")
    return path
