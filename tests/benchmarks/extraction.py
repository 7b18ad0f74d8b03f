"""What a real extraction costs besides the model: 164 prompts through SmolLM2 into a real S3 server, until drained.

A process of its own, so that nothing else's threads count. What is counted, in CPU seconds of all its threads (user and
system; the S3 server is another process and does not count):

* total: from the opening of the store to the end of the drain, less the loading of the model's tokeniser. Imports (also
  those that a store does at its first opening) and the loading of the model come before it and are reported apart.
* forward: what the model's thread spends inside the decoder's forward pass, less the hooks that keep the wanted states
  (those are ours), and what torch's compute threads spend meanwhile.
* outside: all the rest, so also what torch's threads spend on anything else.

Torch's threads sleep while they wait for each other: by default they spin, and on a machine that others use as well the
forward pass then costs several times the CPU seconds, which would flatter the share.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aioboto3  # noqa: F401 - what a store imports at its first opening
import boto3  # noqa: F401 - as above
import obstore  # noqa: F401 - as above
import pyarrow.parquet  # noqa: F401 - as above
import torch
import transformers  # noqa: F401 - imported lazily, too

from durastore.demo import run as demo
from durastore.demo.material import find_model, write_prompts
from durastore.extract import job, transformers_engine
from durastore.extract.layers import LayerPlan, parse_layers
from durastore.extract.model_identity import ModelSource, identify_model, resolve_model
from durastore.extract.tokens import TransformersTokenizer
from durastore.extract.transformers_engine import ModelSettings, TransformersEngine
from durastore.fsio.folder import Folder
from durastore.store import opening
from tests.benchmarks.pairs import Line
from tests.benchmarks.thread_cpu import cpu_of, native_threads

__all__ = ["extraction_lines"]

PROMPTS = 164
_LEAST_WARM_TOKENS = 512


def extraction_lines(*, work: Path, prompts: int = PROMPTS) -> Iterator[Line]:
    """CPU seconds outside the forward pass beside all of them."""
    facts = measure_extraction(work, prompts=prompts)
    yield Line(
        name=f"CPU outside the forward pass, {prompts} prompts",
        durastore=facts["outside_s"],
        peer=facts["total_s"],
        peer_name="all CPU seconds, open to drained",
        unit="CPU-s",
        goal="<= 0.02",
    )


def measure_extraction(work: Path, *, prompts: int = PROMPTS) -> dict[str, Any]:
    """Run the extraction in a process of its own and return what it counted."""
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        command = [sys.executable, "-m", "tests.benchmarks.extraction", folder, str(prompts)]
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        facts: dict[str, Any] = json.loads((Path(folder) / "facts.json").read_text(encoding="utf-8"))
    return facts


@dataclass(frozen=True, slots=True)
class _Spent:
    """CPU seconds of the model's thread, and of the torch threads that compute for it."""

    own_s: float = 0.0
    torch_s: float = 0.0

    def __add__(self, other: _Spent) -> _Spent:
        return _Spent(self.own_s + other.own_s, self.torch_s + other.torch_s)

    def __sub__(self, other: _Spent) -> _Spent:
        return _Spent(self.own_s - other.own_s, self.torch_s - other.torch_s)

    @property
    def total_s(self) -> float:
        return self.own_s + self.torch_s


class _Meter:
    """What the model's thread spends where. One thread uses it, but for `threads`."""

    def __init__(self) -> None:
        self.workers: frozenset[int] = frozenset()
        self.spent: dict[str, _Spent] = {"forward": _Spent(), "hooks": _Spent(), "loading": _Spent()}
        self.opened_at = _Spent()
        self.opened_at_s = 0.0
        """Of the whole process."""
        self.threads: dict[str, float] = {}
        """CPU seconds of each kind of Python thread that has ended, by name."""

    def now(self) -> _Spent:
        return _Spent(time.thread_time(), cpu_of(self.workers))

    def counted(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, with what it spends added under `name`."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            begun = self.now()
            try:
                return work(*args, **kwargs)
            finally:
                self.spent[name] += self.now() - begun

        return measured


def process_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _metered(meter: _Meter) -> Iterator[None]:
    """Count where the model's thread goes in and out; each wrapper costs microseconds and counts as outside."""
    open_store, load = opening.open_store, TransformersTokenizer._tokenizer
    run, take = threading.Thread.run, transformers_engine._Capture.take

    def opened(*args: Any, **kwargs: Any) -> Any:
        meter.opened_at, meter.opened_at_s = meter.now(), process_cpu_s()
        return open_store(*args, **kwargs)

    def loaded(self: TransformersTokenizer) -> Any:
        return load(self) if self._loaded is not None else meter.counted("loading", load)(self)

    def run_counted(self: threading.Thread) -> None:
        try:
            run(self)
        finally:
            name = self.name.rstrip("0123456789_-")
            meter.threads[name] = meter.threads.get(name, 0.0) + time.thread_time()

    with (
        patch.object(job, "open_store", opened),
        patch.object(TransformersTokenizer, "_tokenizer", loaded),
        patch.object(threading.Thread, "run", run_counted),
        patch.object(transformers_engine._Capture, "take", meter.counted("hooks", take)),
    ):
        yield


def _started_engine(source: ModelSource, plan: LayerPlan, *, meter: _Meter) -> TransformersEngine:
    """The engine with its model loaded and warm: torch's threads are there and known. Its forward is counted."""
    engine = TransformersEngine(source, plan, settings=ModelSettings())
    before = native_threads()
    engine.start()
    parts = engine._parts
    assert parts is not None
    with torch.inference_mode():
        parts.decoder(input_ids=torch.zeros((1, _LEAST_WARM_TOKENS), dtype=torch.long), use_cache=False)
    meter.workers = native_threads() - before
    parts.decoder.forward = meter.counted("forward", parts.decoder.forward)
    return engine


def _run(folder: Path, prompts: int) -> dict[str, Any]:
    imported_s = process_cpu_s()
    meter, model = _Meter(), find_model()
    source = resolve_model(str(model))
    plan = parse_layers(demo.LAYERS, num_layers=identify_model(source).num_layers)
    engine = _started_engine(source, plan, meter=meter)
    loaded_s = process_cpu_s()
    options = demo.DemoOptions(samples=prompts)
    with Folder.create(folder) as root, demo._bucket(options, folder) as (url, endpoint_url), _metered(meter):
        overrides = demo._overrides(endpoint_url)
        rows = write_prompts(root, count=prompts)
        request = replace(
            demo._request(options, rows, model=model, url=url, overrides=overrides), handles_signals=False
        )
        begun = time.perf_counter()
        report = job.run_extract(request, engine_factory=lambda *_, **__: engine)
        extracted_s = process_cpu_s()
        status = demo._drain(url, request.local, overrides=overrides)
        ended_s, ended, wall_s = process_cpu_s(), meter.now(), time.perf_counter() - begun
    if report.exit_code or report.counts.ok != prompts or status.local_bytes:
        raise SystemExit(f"the extraction did not end well: {report.render()}, {status}")
    loading, forward = meter.spent["loading"], meter.spent["forward"] - meter.spent["hooks"]
    total_s = ended_s - meter.opened_at_s - loading.total_s
    aside = ended - meter.opened_at - loading - forward
    return {
        "total_s": total_s,
        "forward_s": forward.total_s,
        "outside_s": total_s - forward.total_s,
        "outside_by_thread_s": {"model's thread": aside.own_s, "torch's threads": aside.torch_s, **meter.threads},
        "outside_hooks_s": meter.spent["hooks"].total_s,
        "outside_drain_s": ended_s - extracted_s,
        "tokens": report.counts.tokens,
        "tensor_bytes": report.counts.tensor_bytes,
        "wall_s": wall_s,
        "imports_s": imported_s,
        "model_load_s": loaded_s - imported_s,
        "tokeniser_load_s": loading.total_s,
        "torch_threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "facts.json").write_text(json.dumps(_run(place / "run", int(sys.argv[2]))), encoding="utf-8")
