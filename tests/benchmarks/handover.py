"""What the model's thread pays to hand one sample of 1.18 MB to the writer of an extraction.

The real path behind it: the engine's own cutting of a pass into samples, the writer's queue and memory, and in the
writer's thread the check, the codec and a durable put on the disk. Between hand-overs the model's thread computes (it
holds no lock of the interpreter meanwhile, as in a forward pass), and the next sample comes while the writer works on
the one before: the moment at which the two threads are most in each other's way.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

import durastore
from durastore.demo.material import find_model
from durastore.extract.layers import parse_layers
from durastore.extract.model_identity import resolve_model
from durastore.extract.rows import TokenRow, input_digest
from durastore.extract.tally import Tally
from durastore.extract.transformers_engine import ModelSettings, TransformersEngine
from durastore.extract.writer import StoreWriter
from durastore.model import SampleId
from tests.benchmarks.pairs import Line

__all__ = ["handover_lines"]

ALLOWED_MS = 0.3
_QUEUE_BYTES = 1 << 30


def handover_lines(samples: Sequence[torch.Tensor], *, turns: int, work: Path) -> Iterator[Line]:
    """The hand-over beside what is allowed, and beside a put that the model's thread makes itself."""
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        handed_s, put_s = _measure(samples, Path(folder), turns=turns)
    p50_ms, p95_ms = statistics.median(handed_s) * 1e3, float(np.quantile(handed_s, 0.95)) * 1e3
    yield Line(
        name="hand-over of 1.18 MB by the model's thread, p50",
        durastore=p50_ms,
        peer=ALLOWED_MS,
        peer_name=f"allowed (p95 here {p95_ms:.3f})",
        unit="ms",
        goal="<= 1.0",
    )
    yield Line(
        name="the same, beside put in the model's thread",
        durastore=p50_ms,
        peer=statistics.median(put_s) * 1e3,
        peer_name="durastore put, p50",
        unit="ms",
        goal="<= 0.1",
    )


def _measure(samples: Sequence[torch.Tensor], place: Path, *, turns: int) -> tuple[list[float], list[float]]:
    """Seconds of each hand-over, and of each put by the model's thread itself; the first of each does not count."""
    source = resolve_model(str(find_model()))
    engine = TransformersEngine(source, parse_layers("2,15,28,last", num_layers=30), settings=ModelSettings())
    store = durastore.open("memory://bench-handover", local=place / "spool", reclaim="never", seal_age_s=3600.0)
    try:
        tally = Tally(turns + 1, record=lambda failure: None)
        writer = StoreWriter(store, tally, limit_bytes=_QUEUE_BYTES)
        writer.start()
        handed_s = [_hand_over(engine, writer, samples[at % len(samples)], at) for at in range(turns + 1)]
        writer.finish()
        while not writer.wait():
            pass
        if writer.error is not None or tally.counts().ok != turns + 1:
            raise SystemExit(f"the samples were not stored: {writer.error}, {tally.failures()}")
        put_s = []
        for at in range(turns + 1):
            begun = time.perf_counter()
            store.put(f"own/{at}", {"hidden_states": samples[at % len(samples)]})
            put_s.append(time.perf_counter() - begun)
    finally:
        store.close()
    return handed_s[1:], put_s[1:]


def _hand_over(engine: TransformersEngine, writer: StoreWriter, sample: torch.Tensor, at: int) -> float:
    states = sample.clone()[None]  # [1, T, L, H]: a pass of one row
    ids = np.full(sample.shape[0], at, dtype=np.int64)
    row = TokenRow(
        line=at + 1, sample_id=SampleId(f"s/{at}"), input_ids=ids, loss_mask=None, input_digest=input_digest(ids, None)
    )
    _compute_until(writer)
    begun = time.perf_counter()
    (extracted,) = engine._cut([row], states)
    writer.submit(row, extracted, may_wait=lambda: True)
    return time.perf_counter() - begun


def _compute_until(writer: StoreWriter) -> None:
    """A forward pass's stand-in: until the writer has at most one sample left, which it is working on."""
    left = torch.ones(256, 256)
    while True:
        left = (left @ left).clamp_(max=1.0)
        with writer._changed:
            if len(writer._queue) == 0:
                return
