"""What is uploaded in a comparison: hidden states cut to size, as tensors for durastore, as files for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

__all__ = ["LOADS", "Load", "tensors_of", "write_files"]

_COLUMNS = 1024  # bf16: 2 KiB a row
_STEP = 7919  # rows between two samples' beginnings: no two of a run are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`count` samples of `size_bytes` each, put in groups of `group`."""

    name: str
    count: int
    size_bytes: int
    group: int

    @property
    def total_bytes(self) -> int:
        return self.count * self.size_bytes

    def shortened(self, count: int) -> Load:
        return replace(self, count=count)


LOADS = {
    load.name: load
    for load in (
        Load(name="16KB", count=50_000, size_bytes=16 << 10, group=64),
        Load(name="1.2MB", count=600, size_bytes=1_179_648, group=1),
        Load(name="64MB", count=16, size_bytes=64 << 20, group=1),
    )
}


def tensors_of(load: Load, states: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """(sample id, bf16 tensor of `size_bytes`), each from another place of `states`, which is read as a ring."""
    ring = states.reshape(-1)
    ring = ring[: ring.numel() // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS)
    rows = load.size_bytes // (2 * _COLUMNS)
    repeated = torch.cat([ring] * (1 + -(-rows // ring.shape[0])))
    for number in range(load.count):
        begin = number * _STEP % ring.shape[0]
        yield f"rows/{number:06d}", repeated[begin : begin + rows]


def write_files(load: Load, states: torch.Tensor, folder: Path) -> None:
    """The same bytes, one file a sample."""
    folder.mkdir(parents=True)
    for name, tensor in tensors_of(load, states):
        (folder / f"{Path(name).name}.bin").write_bytes(tensor.view(torch.uint8).numpy().tobytes())
