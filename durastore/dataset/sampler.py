"""The sampler for a map-style dataset, and the loop that counts what training was given.

Duty: hand a loader the positions of this rank, and tell where the run stands. A `DataLoader` with workers draws far
ahead of the training loop, so a sampler cannot know what the loop was given: it has no `state_dict`. Two things have
one, and both are right: the counted loader, which stands between loader and loop, and the sampler's iterator, whose
state torchdata's `StatefulDataLoader` keeps beside the batch that it was drawn for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from durastore.dataset.counted import CountedLoader
from durastore.dataset.course import STATE_FORMATS, Place, Standing
from durastore.errors import InvalidInput

__all__ = ["EpochSampler"]

_DRAW = 256
_STEPS_SINCE = "_steps_since_snapshot"


class EpochSampler(Standing):
    """Positions of one rank's samples, epoch after epoch, in an order that all ranks agree on.

    Give it to a loader as `sampler=`. Each `iter` goes from where the run stands to the end of that epoch; the next
    one then begins the next epoch. Not for several threads.
    """

    def __iter__(self) -> DrawnPositions:
        return DrawnPositions(self)

    def begin(self, place: Place) -> None:
        """A pass begins at `place`."""
        self._begun = self._place = place

    def counted(self, loader: Any) -> CountedLoader:
        """`loader`, which draws from this sampler, as a loop with `state_dict` and `load_state_dict`.

        Raises `InvalidInput` where the loader draws from something else, or gives batches out of order.
        """
        return CountedLoader(loader, self, batch_size=_batch_size(loader, self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where a run stood: the state of a counted loader, or of a `StatefulDataLoader` with such a sampler.

        The numbers of ranks and workers may be others than then. Raises `InvalidInput` where the state is of other
        samples, or of a `StatefulDataLoader` that keeps a state for every n-th batch only.
        """
        self._place = self._course.parse(_own_state(state))


class DrawnPositions:
    """One pass of a sampler. Its state is what was drawn: right only beside the batch that was made of it."""

    def __init__(self, sampler: EpochSampler) -> None:
        self._sampler = sampler
        self._begin(sampler.place)

    def _begin(self, place: Place) -> None:
        self._start, self._own = place, 0
        self._drawn: Iterator[int] = iter(())
        self._count = self._sampler.course.count(place)
        self._sampler.begin(place)

    def __iter__(self) -> DrawnPositions:
        return self

    def __next__(self) -> int:
        if self._own >= self._count:
            if self._sampler.place.epoch == self._start.epoch:
                self._sampler.stand_at(Place(epoch=self._start.epoch + 1))
            raise StopIteration
        position = next(self._drawn, None)
        if position is None:
            own = np.arange(self._own, min(self._own + _DRAW, self._count), dtype=np.int64)
            self._drawn = iter(self._sampler.course.positions(self._start, own).tolist())
            position = next(self._drawn)
        self._own += 1
        return position

    def state_dict(self) -> dict[str, Any]:
        return self._sampler.course.render(self._sampler.course.after(self._start, self._own))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begin(self._sampler.course.parse(state))


def _batch_size(loader: Any, sampler: EpochSampler) -> int:
    batches = getattr(loader, "batch_sampler", None)
    drawn_from = getattr(batches if batches is not None else loader, "sampler", None)
    if drawn_from is not sampler:
        raise InvalidInput(
            "the loader does not draw from this sampler", hint="DataLoader(dataset, sampler=sampler, ...)"
        )
    return 1 if batches is None else int(batches.batch_size)


def _own_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our own state inside a loader's, at whatever depth: the loader's layout is its own business."""
    if not isinstance(state, Mapping) or state.get("format") in STATE_FORMATS:
        return state
    found = []
    level: list[Mapping[str, Any]] = [state]
    while level:
        if any(inner.get(_STEPS_SINCE) for inner in level):
            raise InvalidInput(
                "the loader's state is of an earlier batch than the last one", hint="use snapshot_every_n_steps=1"
            )
        found += [inner for inner in level if inner.get("format") in STATE_FORMATS]
        level = [value for inner in level for value in inner.values() if isinstance(value, Mapping)]
    if len(found) != 1:
        raise InvalidInput(f"{len(found)} training states of durastore in this state", hint="one is needed")
    return found[0]
