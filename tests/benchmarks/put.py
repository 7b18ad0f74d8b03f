"""A durable put of one 1.18 MB sample beside `torch.save`, fsync and folder fsync on the same disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import durastore
from tests.benchmarks.pairs import Line, in_turns, wall_s

__all__ = ["put_lines"]


def put_lines(samples: Sequence[torch.Tensor], *, turns: int, work: Path) -> Iterator[Line]:
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        place = Path(folder)
        for compress, goal in (("none", "<= 1.3"), ("auto", "<= 2.0")):
            yield _put_line(samples, place, compress=compress, goal=goal, turns=turns)


def _put_line(samples: Sequence[torch.Tensor], place: Path, *, compress: str, goal: str, turns: int) -> Line:
    """The bucket is in memory and takes nothing while the put is timed: the disk's part alone is compared."""
    saved = place / f"saved-{compress}"
    saved.mkdir()
    folder = os.open(saved, os.O_RDONLY)
    numbers = iter(range(1_000_000))
    store = durastore.open(
        "memory://bench", local=place / f"spool-{compress}", reclaim="never", compress=compress, seal_age_s=3600.0
    )

    def ours() -> None:
        number = next(numbers)
        store.put(f"{compress}/{number}", {"h": samples[number % len(samples)]})

    def theirs() -> None:
        number = next(numbers)
        with (saved / f"{number}.pt").open("wb") as file:
            torch.save({"h": samples[number % len(samples)].clone()}, file)
            file.flush()
            os.fsync(file.fileno())
        os.fsync(folder)

    try:
        put_s, save_s = in_turns(ours, theirs, measure=wall_s, n=turns)
    finally:
        store.close()
        os.close(folder)
    return Line(
        name=f"durable put of 1.18 MB, compress={compress}, p50",
        durastore=put_s * 1e3,
        peer=save_s * 1e3,
        peer_name=f"torch.save + fsync ({torch.__version__})",
        unit="ms",
        goal=goal,
    )
