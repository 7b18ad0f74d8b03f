"""What is read in a comparison of loaders: hidden states of SmolLM2 cut into samples, and a sum to know them by.

Imported in the loaders' own environments too, so it needs nothing but torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

__all__ = ["READ_LOADS", "ReadLoad", "samples_of", "touched"]

_STEP = 977  # tokens between two samples' beginnings
_TOUCHED = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLoad:
    """`count` samples of `tokens` tokens of four layers, bf16: 4,608 bytes a token."""

    name: str
    count: int
    tokens: int

    @property
    def size_bytes(self) -> int:
        return self.tokens * 4608

    @property
    def total_bytes(self) -> int:
        return self.count * self.size_bytes

    def shortened(self, count: int) -> ReadLoad:
        return replace(self, count=count)


READ_LOADS = {
    load.name: load
    for load in (
        ReadLoad(name="1.2MB", count=1600, tokens=256),
        ReadLoad(name="64KB", count=16_000, tokens=14),
    )
}


def samples_of(load: ReadLoad, states: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """(id, bf16 [tokens, 4, 576]), each from another place of the states, which are read as a ring."""
    ring = torch.load(states, weights_only=True)
    ring = torch.cat([ring, ring[: load.tokens]])
    begins = len(ring) - load.tokens
    for number in range(load.count):
        begin = number * _STEP % begins
        yield f"rows/{number:06d}", ring[begin : begin + load.tokens].contiguous()


def touched(batch: torch.Tensor) -> int:
    """A sum over one element of each page of [n, tokens, 4, 576]: who maps or decodes late does it now, and wrong bytes
    show.
    """
    return int(batch.view(torch.int16).reshape(len(batch), -1)[:, ::_TOUCHED].sum(dtype=torch.int64))
