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

__all__ = ["LANES", "MIXED_BLOCKS", "EpochOrder", "Positions"]

Positions = NDArray[np.int64]

LANES = 16
"""Blocks that are read side by side, where nothing else is said."""

MIXED_BLOCKS = 16
"""Blocks whose samples are mixed with each other in an order without lanes, that of the first versions."""

_NO_TWEAK = np.zeros(1, dtype=np.uint64)
_ROUNDS = 12
_MAX_SIZE = 1 << 56


@dataclass(frozen=True)
class EpochOrder:
    """Which position stands k-th in an epoch. `seed` None: every position at its own place.

    With a `block` of more than one, positions are cut into blocks of so many, and the blocks are shuffled. Each of the
    `lanes` then reads through one block, in an order of that block's own, and gives one sample in turn with the others;
    when all are through they take the next blocks (at the end of the epoch there may be fewer of them than lanes).
    Who reads every n-th batch reads whole blocks, then, where n batches divide `lanes`. What fills no block comes last.

    `lanes` 0 is the order that the first versions had for blocks: the samples of `MIXED_BLOCKS` blocks are mixed.
    """

    size: int
    seed: int | None
    epoch: int
    block: int = 1
    lanes: int = 0
    part: str = ""
    """Tells the orders that one epoch is made of apart."""

    def __post_init__(self) -> None:
        if not 0 <= self.size <= _MAX_SIZE or self.block < 1 or self.lanes < 0:
            raise InvalidInput(f"an order of {self.size} samples in {self.lanes} lanes of blocks of {self.block}")

    def positions(self, ordinals: Positions) -> Positions:
        """The positions that stand at `ordinals` (each 0 to size - 1), as an array of the same length."""
        if len(ordinals) and (int(ordinals.min()) < 0 or int(ordinals.max()) >= self.size):
            raise IndexError(f"ordinals {int(ordinals.min())} to {int(ordinals.max())} of {self.size} samples")
        if self.seed is None or self.size < 2:
            return ordinals.astype(np.int64)
        if self.block > 1:
            return (self._in_lanes if self.lanes else self._by_blocks)(ordinals.astype(np.int64))
        return self._walked(ordinals.astype(np.uint64), _NO_TWEAK)

    def windows(self, ordinals: Positions) -> Positions:
        """For each ordinal the number of the blocks that are read at the same time: equal ones lie in a few places."""
        return ordinals // ((self.lanes or MIXED_BLOCKS) * self.block)

    def _walked(self, values: NDArray[np.uint64], tweaks: NDArray[np.uint64]) -> Positions:
        """A permutation of 0 to size - 1 for each tweak. `tweaks`: one for each value, or one for all."""
        found = self._permuted(values, tweaks)
        # A Feistel network permutes a few more numbers than there are samples. Who lands outside goes on until inside:
        # the cycle it walks on holds the number it came from, so it ends.
        outside = np.flatnonzero(found >= self.size)
        while len(outside):
            found[outside] = self._permuted(found[outside], tweaks if len(tweaks) == 1 else tweaks[outside])
            outside = outside[found[outside] >= self.size]
        return found.astype(np.int64)

    def _in_lanes(self, ordinals: Positions) -> Positions:
        found = ordinals.copy()
        blocks = self.size // self.block
        inside = ordinals < blocks * self.block
        at = ordinals[inside]
        first = self.windows(at) * self.lanes  # of the blocks that are read at this time
        width = np.minimum(self.lanes, blocks - first)
        at -= first * self.block
        turn, lane = at // width, at % width
        of_blocks = replace(self, size=blocks, block=1, part=":blocks")
        chosen = of_blocks.positions(first + lane)
        of_turns = replace(self, size=self.block, block=1, part=":turns")
        tweaks = _mixed(chosen.astype(np.uint64), of_turns._keys[-1])
        found[inside] = chosen * self.block + of_turns._walked(turn.astype(np.uint64), tweaks)
        return found

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

    def _permuted(self, values: NDArray[np.uint64], tweaks: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """A bijection of 0 to rows * columns - 1: (row, column), each moved in turn by a hash of the other (and of the
        tweak).
        """
        rows, columns = self._sides
        row, column = values // columns, values % columns
        for number, key in enumerate(self._keys):
            if number % 2:
                column = (column + _mixed(row ^ tweaks, key) % columns) % columns
            else:
                row = (row + _mixed(column ^ tweaks, key) % rows) % rows
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
