"""What tests of engines that ask a server share: a job whose states come from one, and what it has to end with."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import pytest
import torch

from durastore.extract.engine import Extracted
from durastore.extract.entry import extract
from durastore.extract.layers import parse_layers
from durastore.extract.model_identity import resolve_model
from durastore.extract.report import ExtractReport
from durastore.extract.server_settings import ServerSettings
from durastore.extract.transformers_engine import ModelSettings, TransformersEngine
from tests.integration.extract_lab import Job, token_rows
from tests.integration.model_servers import States

__all__ = ["LAYERS", "Served", "rows_of", "small_states"]

LAYERS = "1,3,last"


class Served:
    """A job whose states come from a server."""

    def __init__(self, job: Job, *, engine: str, settings: ServerSettings, states: States) -> None:
        self.job = job
        self.engine = engine
        self.settings = settings
        self._states = states
        self._rows: list[dict[str, Any]] = []

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = list(rows)
        self.job.write(*rows)

    def run(self, **changes: Any) -> ExtractReport:
        values = {"engine": self.engine, "server": self.settings, "layers": LAYERS, **changes}
        return extract(self.job.request(**values))

    def check_stored(self, *, without: Sequence[str] = ()) -> None:
        """Every sample but these is in the bucket, once, with exactly the model's own states."""
        dataset = self.job.dataset()
        wanted = {str(row["id"]): row["input_ids"] for row in self._rows if row["id"] not in without}
        assert sorted(dataset.ids) == sorted(wanted)
        for name, ids in wanted.items():
            sample = dataset[name]
            assert sample.tensors["input_ids"].tolist() == ids
            bits = torch.from_numpy(self._states(ids).view("u2").copy())
            assert torch.equal(sample.tensors["hidden_states"].view(torch.uint16), bits), name


@pytest.fixture(scope="module")
def small_states(model_folder: Path) -> Iterator[States]:
    """The small model's states, as the engine in the process gives them to a sample alone."""
    plan = parse_layers(LAYERS, num_layers=4)
    engine = TransformersEngine(resolve_model(str(model_folder)), plan, settings=ModelSettings(device="cpu"))
    engine.start()
    known: dict[tuple[int, ...], Any] = {}
    lock = threading.Lock()  # an engine is used from one thread at a time

    def states(ids: Sequence[int]) -> Any:
        key = tuple(ids)
        with lock:
            if key not in known:
                (result,) = engine.extract(token_rows([ids]))
                assert isinstance(result, Extracted)
                known[key] = result.tensors["hidden_states"].view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
            return known[key]

    yield states
    engine.close()


def rows_of(count: int) -> list[dict[str, Any]]:
    """Samples of many lengths, no two of the same tokens."""
    return [
        {"id": f"s/{number}", "input_ids": [number % 61, *((number * 7 + at) % 61 for at in range(2 + number % 30))]}
        for number in range(count)
    ]
