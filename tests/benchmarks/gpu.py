"""What saving costs a model on a GPU: nothing to compare where there is none, and then it says so.

Two questions. What does the model's thread pay to hand over one sample whose states are on the GPU (it launches a copy
and goes on)? And how much longer does the same stream of passes take when every pass is saved: does the computing
stream ever wait? Passes are matrix products on one stream, timed by events on it; each makes states of its own in new
memory, and at the end the stored ones are compared with them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

import durastore
from durastore.extract.engine import Extracted
from durastore.extract.rows import TokenRow, input_digest
from durastore.extract.tally import Tally
from durastore.extract.writer import StoreWriter
from durastore.model import SampleId
from tests.benchmarks.pairs import Line

__all__ = ["gpu_lines", "why_no_gpu"]

ALLOWED_MS = 0.3
_WIDTH = 4096
_PRODUCTS = 24  # of one pass: about 3.3 TFLOP in bf16
_QUEUE_BYTES = 4 << 30


def why_no_gpu() -> str | None:
    """Why nothing can be measured here; None where it can."""
    if not torch.cuda.is_available():
        return f"no GPU here (torch {torch.__version__}): what saving from one costs is not measured"
    return None


def gpu_lines(samples: Sequence[torch.Tensor], *, turns: int, work: Path) -> Iterator[Line]:
    """Hand-over by the model's thread, and the passes with saving beside the same passes without."""
    if why_no_gpu() is not None:
        return
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        bench = _Bench(samples, Path(folder))
        try:
            handed_ms = bench.run(turns, save=bench.submit).handed_ms  # also makes memory, streams and kernels ready
            plain: list[float] = []
            saved: list[float] = []
            for turn in range(6):
                for kind in ("plain", "saved") if turn % 2 else ("saved", "plain"):
                    measured = bench.run(turns, save=bench.submit if kind == "saved" else None)
                    (saved if kind == "saved" else plain).append(measured.stream_ms)
                    handed_ms += measured.handed_ms if kind == "saved" else []
        finally:
            bench.close()
    device = torch.cuda.get_device_name()
    yield Line(
        name="hand-over of 1.18 MB from a GPU, p50",
        durastore=statistics.median(handed_ms),
        peer=ALLOWED_MS,
        peer_name=f"allowed (p95 {float(np.quantile(handed_ms, 0.95)):.3f}) on {device}",
        unit="ms",
        goal="<= 1.0",
    )
    yield Line(
        name=f"{turns} passes, each saved",
        durastore=statistics.median(saved),
        peer=statistics.median(plain),
        peer_name=f"the same passes, not saved ({device})",
        unit="ms of the stream",
        goal="<= 1.01",
    )


class _Measured:
    def __init__(self) -> None:
        self.handed_ms: list[float] = []
        """Wall time of each hand-over on the model's thread."""
        self.stream_ms = 0.0
        """From the first pass to the last on the computing stream, by its own events."""


class _Bench:
    """Passes on the current stream, and the writer of an extraction with a durable store behind it."""

    def __init__(self, samples: Sequence[torch.Tensor], place: Path) -> None:
        self._device = torch.device("cuda")
        self._weights = torch.randn(_WIDTH, _WIDTH, device=self._device, dtype=torch.bfloat16) / _WIDTH**0.5
        self._states = [sample.to(self._device) for sample in samples]
        self._store = durastore.open(
            "memory://bench-gpu", local=place / "spool", reclaim="never", seal_age_s=3600.0, compress="none"
        )
        self._tally = Tally(0, record=lambda failure: None)
        self._writer = StoreWriter(self._store, self._tally, limit_bytes=_QUEUE_BYTES)
        self._writer.start()
        self._number = 0

    def run(self, passes: int, *, save: Callable[[torch.Tensor], None] | None) -> _Measured:
        """`passes` passes in a row; the model's thread never waits for the device between them."""
        torch.cuda.synchronize()
        while self._writer._held_bytes:  # what the run before left would slow this one down, saved or not
            time.sleep(0.005)
        measured = _Measured()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        hidden = torch.ones(_WIDTH, _WIDTH, device=self._device, dtype=torch.bfloat16)
        begin.record()
        for _ in range(passes):
            for _ in range(_PRODUCTS):
                hidden = hidden @ self._weights
            states = self._made(self._number + 1)
            if save is not None:
                begun = time.perf_counter()
                save(states)
                measured.handed_ms.append((time.perf_counter() - begun) * 1e3)
        end.record()
        end.synchronize()
        measured.stream_ms = begin.elapsed_time(end)
        return measured

    def _made(self, number: int) -> torch.Tensor:
        """The states of sample `number`: no two within some hundred passes are equal."""
        return self._states[number % len(self._states)] * (1.0 + number % 61)

    def submit(self, states: torch.Tensor) -> None:
        self._number += 1
        ids = np.full(states.shape[0], self._number, dtype=np.int64)
        row = TokenRow(
            line=self._number,
            sample_id=SampleId(f"s/{self._number}"),
            input_ids=ids,
            loss_mask=None,
            input_digest=input_digest(ids, None),
        )
        extracted = Extracted(
            tensors={"hidden_states": states, "input_ids": torch.from_numpy(ids)}, held_bytes=states.nbytes
        )
        if not self._writer.submit(row, extracted, may_wait=lambda: True):
            raise SystemExit(f"the writer stopped: {self._writer.error}")

    def close(self) -> None:
        """Everything stored, or the measurement is void."""
        self._writer.finish()
        while not self._writer.wait():
            pass
        try:
            if self._writer.error is not None or self._tally.counts().ok != self._number:
                raise SystemExit(f"{self._number} samples handed over, {self._tally.counts()}: {self._writer.error}")
            self._compare()
        finally:
            self._store.close()

    def _compare(self) -> None:
        """The last samples are what the GPU computed: a copy that began too early, or was read too early, differs."""
        for number in range(max(1, self._number - 50), self._number + 1):
            stored = self._store.get(f"s/{number}").tensors["hidden_states"]
            if not torch.equal(stored, self._made(number).cpu()):
                raise SystemExit(f"sample {number} is not what was computed")
