"""The order of an epoch: a permutation of positions that is computed, never stored.

Duty: the same (samples, seed, epoch) gives the same order on every machine, in every version, for any number of ranks
and workers, in constant memory. Must never change what it gives: training states of earlier runs count on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import xxhash
from numpy.typing import NDArray

from durastore.errors import InvalidInput

__all__ = ["MIXED_BLOCKS", "EpochOrder", "Positions"]

Positions = NDArray[np.int64]

MIXED_BLOCKS = 16
"""Blocks whose samples are mixed with each other."""

_ROUNDS = 12
_MAX_SIZE = 1 << 56


@dataclass(frozen=True)
class EpochOrder:
    """Which position stands k-th in an epoch. `seed` None: every position at its own place.

    With a `block` of more than one, positions are cut into blocks of so many: the blocks are shuffled, and then the
    samples of each `MIXED_BLOCKS` of them, so that what is read at about the same time lies in a few places. What does
    not fill a block comes last.
    """

    size: int
    seed: int | None
    epoch: int
    block: int = 1
    part: str = ""
    """Tells the orders that one epoch is made of apart."""

    def __post_init__(self) -> None:
        if not 0 <= self.size <= _MAX_SIZE or self.block < 1:
            raise InvalidInput(f"an order of {self.size} samples in blocks of {self.block}")

    def positions(self, ordinals: Positions) -> Positions:
        """The positions that stand at `ordinals` (each 0 to size - 1), as an array of the same length."""
        if len(ordinals) and (int(ordinals.min()) < 0 or int(ordinals.max()) >= self.size):
            raise IndexError(f"ordinals {int(ordinals.min())} to {int(ordinals.max())} of {self.size} samples")
        if self.seed is None or self.size < 2:
            return ordinals.astype(np.int64)
        if self.block > 1:
            return self._by_blocks(ordinals.astype(np.int64))
        found = self._permuted(ordinals.astype(np.uint64))
        # A Feistel network permutes a few more numbers than there are samples. Who lands outside goes on until inside:
        # the cycle it walks on holds the number it came from, so it ends.
        outside = np.flatnonzero(found >= self.size)
        while len(outside):
            found[outside] = self._permuted(found[outside])
            outside = outside[found[outside] >= self.size]
        return found.astype(np.int64)

    def _by_blocks(self, ordinals: Positions) -> Positions:
        found = ordinals.copy()
        blocks = self.size // self.block
        whole, window = blocks * self.block, MIXED_BLOCKS * self.block
        inside = np.flatnonzero(ordinals < whole)
        numbers = ordinals[inside] // window
        for number in np.unique(numbers).tolist():
            own = inside[numbers == number]
            start = number * window
            mix = replace(self, size=min(window, whole - start), block=1, part=f":mix:{number}")
            found[own] = start + mix.positions(ordinals[own] - start)
        of_blocks = replace(self, size=blocks, block=1, part=":blocks")
        found[inside] = of_blocks.positions(found[inside] // self.block) * self.block + found[inside] % self.block
        return found

    def _permuted(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """A bijection of 0 to rows * columns - 1: (row, column), each moved in turn by a hash of the other."""
        rows, columns = self._sides
        row, column = values // columns, values % columns
        for number, key in enumerate(self._keys):
            if number % 2:
                column = (column + _mixed(row, key) % columns) % columns
            else:
                row = (row + _mixed(column, key) % rows) % rows
        return row * columns + column

    @cached_property
    def _sides(self) -> tuple[np.uint64, np.uint64]:
        rows = int(np.sqrt(self.size))
        return np.uint64(rows), np.uint64(-(-self.size // rows))

    @cached_property
    def _keys(self) -> list[np.uint64]:
        label = f"durastore-epoch/1:{self.size}:{self.seed}:{self.epoch}{self.part}"
        return [np.uint64(xxhash.xxh3_64_intdigest(f"{label}:{number}".encode())) for number in range(_ROUNDS)]


def _mixed(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """64 well mixed bits of each value and the key (the finaliser of SplitMix64, which is public domain)."""
    mixed = values * np.uint64(0x9E3779B97F4A7C15) + key  # wraps, as it should
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
