"""A loader whose batches are counted on their way into the training loop.

Duty: know exactly which samples the loop was given, and be able to go on there with other workers and ranks. Must never
count what a loader has fetched ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from durastore.dataset.course import Course, Place
from durastore.errors import InvalidInput

__all__ = ["CountedLoader", "Counting"]

_END = object()


class Counting(Protocol):
    """What gives a rank its samples, and can be put anywhere in its course."""

    @property
    def course(self) -> Course: ...

    @property
    def place(self) -> Place: ...

    @property
    def begun(self) -> Place:
        """Where the latest pass began."""
        ...

    def stand_at(self, place: Place) -> None: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class CountedLoader:
    """`for batch in counted:` goes to the end of the epoch; the next `for` begins the next epoch.

    A batch counts from the moment the loop has it: take the state after the step that used it. A loop that was left in
    the middle goes on behind its last batch. In step on all ranks, or the ranks' states differ: then none is right.
    """

    def __init__(self, loader: Any, source: Counting, *, batch_size: int) -> None:
        if getattr(loader, "in_order", True) is False:
            raise InvalidInput("the loader gives batches out of order", hint="leave in_order=True")
        self._loader = loader
        self._source = source
        self._batch_size = batch_size

    def __len__(self) -> int:
        """Batches from where the run stands to the end of the epoch."""
        left = self._source.course.count(self._source.place)
        return left // self._batch_size if self._drops_last else -(-left // self._batch_size)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        batch = next(batches, _END)
        # Only now: some loaders ask their sampler for nothing before, and some begin where a state of theirs says.
        course, start = self._source.course, self._source.begun
        count = course.count(start)
        own = 0
        while batch is not _END:
            own = min(own + self._batch_size, count)
            self._source.stand_at(course.after(start, own))
            yield batch
            batch = next(batches, _END)
        if not self._drops_last and own < count:
            raise InvalidInput(
                f"the loader ended after {own} of {count} samples of this rank",
                hint="does something else change its sampler, or skip samples?",
            )
        self._source.stand_at(Place(epoch=start.epoch + 1))

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands, as plain JSON values."""
        return self._source.course.render(self._source.place)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a run stood. Raises `InvalidInput` where the state is of other samples or another order."""
        self._source.load_state_dict(state)

    @property
    def _drops_last(self) -> bool:
        batches = getattr(self._loader, "batch_sampler", None)
        return bool(getattr(self._loader if batches is None else batches, "drop_last", False))
