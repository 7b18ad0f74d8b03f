"""A folder as an extraction script leaves it: real .pt, .safetensors and .npy files, some of them damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors.numpy
import torch

__all__ = ["cut", "fill_with_zeros", "make_file", "make_files"]


def make_file(path: Path, number: int) -> None:
    """One whole file of the format that its suffix names, with content of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(number).standard_normal((24, 16)).astype(np.float32)
    if path.suffix == ".pt":
        torch.save({"hidden_states": torch.from_numpy(values)}, path)
    elif path.suffix == ".safetensors":
        safetensors.numpy.save_file({"hidden_states": values}, path)
    else:
        np.save(path, values)


def make_files(folder: Path, count: int) -> list[Path]:
    """`rows_0-N/data_<n>`, every format in turn."""
    suffixes = (".pt", ".safetensors", ".npy")
    paths = [folder / f"rows_0-{count}" / f"data_{number}{suffixes[number % 3]}" for number in range(count)]
    for number, path in enumerate(paths):
        make_file(path, number)
    return paths


def cut(path: Path) -> None:
    """What a disk that became full leaves."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


def fill_with_zeros(path: Path) -> None:
    """What a crash leaves of pages that were never written: the right length, and zeros."""
    path.write_bytes(bytes(path.stat().st_size))
