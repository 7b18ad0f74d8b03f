"""Engines for worker processes: counted, held and faulty ones. Imports no torch: each worker would pay seconds for it.

`counted_stand_in` and `faulty_stand_in` are for what workers do with their samples, whatever computes the states;
`counting_engine` is the real engine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from durastore.extract.engine import Engine, Extracted, Refused
from durastore.extract.job import transformers_engine
from durastore.extract.layers import LayerPlan
from durastore.extract.model_identity import ModelSource
from durastore.extract.rows import TokenRow
from durastore.extract.state_faults import find_array_fault
from durastore.extract.transformers_engine import ModelSettings

__all__ = [
    "FAULTS",
    "FORWARDS",
    "HELD",
    "counted_stand_in",
    "counting_engine",
    "faulty_engine",
    "faulty_stand_in",
    "stand_in_states",
]

FORWARDS = "DURASTORE_TEST_FORWARDS"
"""Environment variable: the file that a counted engine adds a line to for each sample of a pass."""

HELD = ".held"
"""Suffix of a file beside that one, `<samples> [<process id>]`: while it exists, passes wait once so many samples went
into one, but for those of that process."""

FAULTS = "DURASTORE_TEST_FAULTS"
"""Environment variable: a JSON file of sample id -> how a faulty engine fails it."""

_WIDTH = 32


def stand_in_states(ids: Sequence[int], layers: Sequence[int]) -> np.ndarray[Any, np.dtype[Any]]:
    """bfloat16 [T, L, 32]: of each token what came up to it, so that no two samples and no two layers have the same."""
    seen = np.cumsum(np.asarray(ids, dtype=np.float64) + 1)[:, None, None]
    level = np.asarray(layers, dtype=np.float64)[None, :, None] + 1
    states: np.ndarray[Any, np.dtype[Any]] = np.sin(seen * level * np.arange(1, _WIDTH + 1)).astype(ml_dtypes.bfloat16)
    return states


class _StandIn:
    """No model: states that are a function of the sample alone."""

    def __init__(self, plan: LayerPlan) -> None:
        self._layers = plan.indices

    def start(self) -> None:
        pass

    def health(self) -> str | None:
        return None

    def close(self) -> None:
        pass

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        return [self._extracted(row) for row in batch]

    def _extracted(self, row: TokenRow) -> Extracted:
        states = stand_in_states(row.input_ids.tolist(), self._layers)
        tensors = {"hidden_states": states, "input_ids": row.input_ids}
        return Extracted(
            tensors=tensors,
            held_bytes=states.nbytes + row.input_ids.nbytes,
            find_fault=lambda each: find_array_fault(each["hidden_states"], self._layers),
        )


class _Watched:
    """An engine, and a file that belongs to it."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self._path = path

    def start(self) -> None:
        self._engine.start()

    def health(self) -> str | None:
        return self._engine.health()

    def close(self) -> None:
        self._engine.close()


class _Counting(_Watched):
    """Writes down which samples it was asked for before it works."""

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        with self._path.open("ab", buffering=0) as stream:
            stream.write("".join(f"{os.getpid()} {row.sample_id}\n" for row in batch).encode())
        while _is_held(self._path):
            time.sleep(0.02)
        return self._engine.extract(batch)


def _is_held(path: Path) -> bool:
    try:
        limit, *spared = path.with_suffix(HELD).read_text(encoding="utf-8").split() or ["0"]
    except FileNotFoundError:
        return False
    whole = path.read_bytes().rpartition(b"\n")[0]
    passed = {line.split()[1] for line in whole.splitlines()}  # once, however often they were asked for
    return str(os.getpid()) not in spared and len(passed) >= int(limit)


class _Faulty(_Watched):
    """Has planned faults; the file is read at each pass, so that a cause can go away."""

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        faults = json.loads(self._path.read_text(encoding="utf-8"))
        planned = [faults.get(str(row.sample_id)) for row in batch]
        if "kill" in planned:
            os.kill(os.getpid(), signal.SIGKILL)
        if "oom" in planned:
            raise _out_of_memory()
        if "timeout" in planned:
            raise TimeoutError("no answer in 120 s (planned)")
        results = self._engine.extract(batch)
        return [_spoilt(result, fault) for result, fault in zip(results, planned, strict=True)]


def _out_of_memory() -> Exception:
    """As torch says it, where the engine is one of torch's."""
    torch = sys.modules.get("torch")
    return (torch.OutOfMemoryError if torch is not None else MemoryError)("CUDA out of memory (planned)")


def _spoilt(result: Extracted | Refused, fault: str | None) -> Extracted | Refused:
    if fault is None or isinstance(result, Refused):
        return result
    tensors = dict(result.tensors)
    states = deepcopy(tensors["hidden_states"])  # of torch or numpy
    if fault == "nan":
        states[-1, 1, 3] = float("nan")
    elif fault == "zero":
        states[:, 0] = 0
    elif fault == "constant":
        states[:] = 1
    elif fault == "short":
        states = states[:-1]
    elif fault == "mismatch":
        tensors["input_ids"] = tensors["input_ids"][::-1].copy()
    return replace(result, tensors={**tensors, "hidden_states": states})


def counting_engine(source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> Engine:
    """The real engine, counted."""
    return _Counting(transformers_engine(source, plan, settings=settings), Path(os.environ[FORWARDS]))


def counted_stand_in(source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> Engine:
    """States without a model, counted."""
    del source, settings
    return _Counting(_StandIn(plan), Path(os.environ[FORWARDS]))


def faulty_engine(source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> Engine:
    """The real engine, counted, with the faults that are planned at the moment."""
    return _Faulty(counting_engine(source, plan, settings=settings), Path(os.environ[FAULTS]))


def faulty_stand_in(source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> Engine:
    """States without a model, counted, with the same faults."""
    return _Faulty(counted_stand_in(source, plan, settings=settings), Path(os.environ[FAULTS]))
