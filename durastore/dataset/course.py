"""The course of a training run through its epochs: which samples a rank reads, and where it stands.

Duty: split an epoch over ranks so that what all ranks have read in step is always a beginning of the epoch's order.
That makes the whole state one number per epoch, whatever the ranks, workers and batch sizes are before and after.
Pure. Must never count a sample as read that the training loop was not given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeGuard

import numpy as np

from durastore.dataset.order import LANES, EpochOrder, Positions
from durastore.dataset.share import Share
from durastore.errors import ConfigError, InvalidInput
from durastore.model import Digest

__all__ = ["START", "STATE_FORMATS", "Blocks", "Course", "Place", "Standing", "Uneven"]

Uneven = Literal["pad", "drop"]
_PLAIN, _LANED = STATE_FORMATS = ("durastore-epoch/1", "durastore-epoch/2")
"""Of a state whose order has lanes the second: versions that know none would go on in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run stands: in `epoch`, after the first `taken` samples of its order, over all ranks."""

    epoch: int = 0
    taken: int = 0
    lanes: int | None = None
    """Those of the epoch's order, if it was begun with others than the run has now: it is ended as it was begun."""


START = Place()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """How an order is cut, as it is asked for: neighbours that are shuffled as one, and how many such at a time."""

    block: int = 1
    lanes: int | None = None

    @property
    def lanes_or_usual(self) -> int:
        """`LANES` where nothing is said and there are blocks."""
        return (LANES if self.block > 1 else 0) if self.lanes is None else self.lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What one rank of a run reads.

    Ranks take the samples in turn, so after `own` samples each, the first `own * world_size` of the order are read. A
    remainder smaller than the world: `uneven="pad"` gives the ranks without a sample one from the epoch's beginning
    once more, "drop" leaves the remainder out. Either way all ranks get equally many.
    """

    snapshot: Digest
    selection: Digest
    """Of the positions that are read; equal selections of one snapshot have equal digests."""
    size: int
    shuffle: int | None
    share: Share
    uneven: Uneven = "pad"
    block: int = 1
    """Neighbours in the bucket that are shuffled as one (`EpochOrder`); 1: every sample by itself."""
    lanes: int = 0
    """How many blocks are read side by side, where there are blocks."""
    layout: Positions | None = field(default=None, compare=False, repr=False)
    """The positions in the order in which they lie in the bucket, where they are shuffled in blocks."""

    def __post_init__(self) -> None:
        if self.uneven not in ("pad", "drop"):
            raise ConfigError(f"uneven={self.uneven!r}", hint="'pad' or 'drop'")
        if self.shuffle is not None and (isinstance(self.shuffle, bool) or not isinstance(self.shuffle, int)):
            raise ConfigError(f"shuffle={self.shuffle!r}", hint="the seed, a whole number; None reads in order of ids")
        if self.block < 1 or (self.block > 1 and (self.shuffle is None or self.layout is None)):
            raise ConfigError(f"block={self.block}", hint="at least 1; more than 1 only with a seed to shuffle by")
        if self.lanes < 0 or (self.lanes and self.block == 1):
            raise ConfigError(f"lanes={self.lanes} for block={self.block}", hint="at least 0, and 0 without blocks")
        if self.uneven == "drop" and 0 < self.size < self.share.world_size:
            raise ConfigError(f"{self.size} samples for {self.share.world_size} ranks", hint="use uneven='pad'")

    def count(self, place: Place) -> int:
        """How many samples each rank gets from `place` to the end of its epoch."""
        left, world = max(0, self.size - place.taken), self.share.world_size
        return left // world if self.uneven == "drop" else -(-left // world)

    def positions(self, place: Place, own: Positions) -> Positions:
        """The positions of this rank's samples number `own` (0 to count - 1) after `place`."""
        found = self._order(place).positions(self._ordinals(place, own))
        return found if self.layout is None else self.layout[found]

    def windows(self, place: Place, own: Positions) -> Positions:
        """For each of these samples the number of the blocks that it is mixed with: equal ones lie in a few places."""
        return self._order(place).windows(self._ordinals(place, own))

    def readers_of_a_block(self, place: Place, *, batch_size: int, workers: int) -> int:
        """How many of all ranks' workers read parts of one and the same block, at most, with batches of this size."""
        stride = batch_size * self.share.world_size * workers
        lanes = self._order(place).lanes or 1
        same = np.arange(0, stride, math.gcd(lanes, stride))  # places of one lane, modulo the stride
        ranks, batches = same % self.share.world_size, same // (batch_size * self.share.world_size)
        return len(np.unique(ranks * workers + batches))

    def _order(self, place: Place) -> EpochOrder:
        lanes = self.lanes if place.lanes is None else place.lanes
        return EpochOrder(self.size, self.shuffle, place.epoch, self.block, lanes)

    def _ordinals(self, place: Place, own: Positions) -> Positions:
        return np.remainder(place.taken + own * self.share.world_size + self.share.rank, max(self.size, 1))

    def after(self, place: Place, own: int) -> Place:
        """Where the run stands when each rank was given `own` samples after `place`."""
        if own >= self.count(place):
            return Place(epoch=place.epoch + 1)
        return replace(place, taken=place.taken + own * self.share.world_size)

    def render(self, place: Place) -> dict[str, Any]:
        """The state as plain JSON values; a few hundred bytes, whatever the size of the dataset."""
        lanes = self._order(place).lanes
        return {
            "format": _LANED if lanes else _PLAIN,
            "snapshot": self.snapshot.hex,
            "selection": self.selection.hex,
            "samples": self.size,
            "shuffle": self.shuffle,
            **({"block": self.block} if self.block > 1 else {}),  # absent in states of versions without blocks
            **({"lanes": lanes} if lanes else {}),
            "epoch": place.epoch,
            "taken": place.taken,
        }

    def parse(self, state: Mapping[str, Any]) -> Place:
        """The place of a state of the same samples in the same order, with the lanes that its epoch was begun with.
        `InvalidInput` naming what is different.
        """
        if not isinstance(state, Mapping) or state.get("format") not in STATE_FORMATS:
            raise InvalidInput(
                "not a training state of this version", hint=f"it should say {' or '.join(STATE_FORMATS)}"
            )
        here = self.render(START)
        names = ("snapshot", "selection", "samples", "shuffle", "block")
        others = [name for name in names if state.get(name) != here.get(name)]
        if others:
            said = ", ".join(f"{name} {state.get(name)!r} (here {here.get(name)!r})" for name in others)
            raise InvalidInput(
                f"the training state is of other samples or another order: {said}",
                hint="open the dataset with the same snapshot=, selection, shuffle= and block= as in that run",
            )
        epoch, taken = state.get("epoch"), state.get("taken")
        if not (_is_count(epoch) and _is_count(taken) and taken <= self.size):
            raise InvalidInput(f"the training state says epoch {epoch!r}, {taken!r} of {self.size} samples")
        lanes = state.get("lanes", 0)
        if not _is_count(lanes) or bool(lanes) != (state["format"] == _LANED) or (lanes and self.block == 1):
            raise InvalidInput(f"the training state says {state.get('lanes')!r} lanes")
        return Place(epoch=epoch, taken=taken, lanes=None if lanes == self.lanes else lanes)


class Standing:
    """Where one rank of a run stands in its course: what a sampler and a stream have in common."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._place = self._begun = START

    def __len__(self) -> int:
        """Samples that this rank gets from where the run stands to the end of the epoch."""
        return self._course.count(self._place)

    @property
    def course(self) -> Course:
        return self._course

    @property
    def place(self) -> Place:
        """Where the next pass begins."""
        return self._place

    @property
    def begun(self) -> Place:
        """Where the latest pass of this process began; the workers of a loader begin where the run stands."""
        return self._begun

    def stand_at(self, place: Place) -> None:
        """Stand at `place`; a pass that was begun before goes on as it was."""
        self._place = place

    def set_epoch(self, epoch: int) -> None:
        """Stand at the beginning of `epoch`, unless the run stands in it already. Safe to repeat."""
        if epoch < 0:
            raise InvalidInput(f"epoch {epoch}", hint="epochs count from 0")
        if epoch != self._place.epoch:
            self.stand_at(Place(epoch=epoch))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
