"""The dataset as a stream: one rank's samples of an epoch, in order, fetched ahead of whoever reads them.

Duty: give the same order for any number of loader workers, hold no more bytes ahead than it was allowed, and count only
what left it. Must never hand out a sample behind one that is damaged as if that one had been read.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from durastore.codec.decode import Room
from durastore.dataset.counted import CountedLoader
from durastore.dataset.course import Course, Place, Standing
from durastore.dataset.order import Positions
from durastore.errors import ConfigError, InvalidInput
from durastore.model import ManifestRow, Sample
from durastore.observe.events import LOGGER
from durastore.read.remote import ServedSample

__all__ = ["RowSource", "SampleStream", "StreamOptions"]

_CHUNK = 256
_GROUP_BYTES = 16 << 20
_GROUP_SAMPLES = 64


class RowSource(Protocol):
    """Where a stream gets its rows and samples."""

    def rows(self, indices: Sequence[int]) -> list[ManifestRow]: ...

    def rooms(self, rows: Sequence[ManifestRow]) -> Sequence[Room | None]:
        """Where the tensors of these samples go, which are one batch."""
        ...

    def serve(self, rows: Sequence[ManifestRow], rooms: Sequence[Room | None]) -> list[ServedSample]:
        """Begin to fetch these samples; each is had by its `result`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How a stream is cut and how far it reads ahead.

    `batch_size` is that of the loader around it, so that whole batches go to its workers in turn. `prefetch_bytes`
    bounds the stored bytes of samples that are fetched, or being fetched, and not yet handed out, in each process; one
    sample, or in a loader's worker one batch, may be larger than that by itself.
    """

    batch_size: int = 1
    prefetch_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.prefetch_bytes < 1:
            raise ConfigError("batch_size and prefetch_bytes have to be at least 1")


@dataclass(frozen=True, slots=True)
class _Next:
    """A sample that is read soon."""

    row: ManifestRow
    room: Room | None
    window: int
    """Samples of one window are neighbours, where there are blocks."""


_Unit = list[_Next]
"""Samples that are handed out when all of them are there: they share a piece of memory."""


@dataclass(frozen=True, slots=True)
class _Worker:
    """This process among the workers of a loader."""

    number: int
    total: int

    @classmethod
    def of_this_process(cls) -> _Worker:
        data = sys.modules.get("torch.utils.data")  # a loader's worker has imported it
        worker = data.get_worker_info() if data is not None else None
        return cls(0, 1) if worker is None else cls(worker.id, worker.num_workers)

    def own(self, numbers: Positions, batch_size: int) -> Positions:
        """The rank's samples that are this worker's samples `numbers`: batches go to the workers in turn."""
        batch = numbers // batch_size * self.total + self.number
        return batch * batch_size + numbers % batch_size


class SampleStream(Standing):
    """One rank's samples. Each `iter` goes from where the run stands to the end of the epoch; the next one begins the
    next epoch. A torch `IterableDataset` where torch is installed. Not for several threads.

    Read by itself it is its own account: `state_dict` counts the samples that left it. Inside a `DataLoader` with
    workers the copies in the workers run ahead of the loop: there the loop is counted, by `counted(loader)`.
    """

    def __init__(self, source: RowSource, course: Course, *, options: StreamOptions) -> None:
        super().__init__(course)
        self._source = source
        self._options = options
        self._worker = _Worker(0, 1)
        self._given = 0
        """Samples of `_worker` since `_place`, where there are several: none of them knows the place of the run."""
        self._resumed = 0
        """How many of those the next pass leaves out."""

    def stand_at(self, place: Place) -> None:
        """Stand at `place`; a pass that was begun before goes on as it was."""
        self._place, self._begun, self._given, self._resumed = place, place, 0, 0

    def counted(self, loader: Any) -> CountedLoader:
        """`loader`, a `DataLoader` of this stream, as a loop with `state_dict` and `load_state_dict`.

        Raises `InvalidInput` where the loader's batches are not those that this stream is cut into.
        """
        if getattr(loader, "dataset", None) is not self:
            raise InvalidInput("the loader does not read this stream", hint="DataLoader(stream, ...)")
        if getattr(loader, "persistent_workers", False):
            raise InvalidInput("persistent workers keep copies of the stream", hint="leave persistent_workers=False")
        batch_size = getattr(loader, "batch_size", None) or 1
        if batch_size != self._options.batch_size:
            raise InvalidInput(
                f"the loader makes batches of {batch_size}, the stream of {self._options.batch_size}",
                hint=f"dataset.iterable(batch_size={batch_size}, ...)",
            )
        return CountedLoader(loader, self, batch_size=batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands; in a loader's worker also how much of the epoch this worker gave."""
        state = self._course.render(self._place)
        if self._worker.total > 1:
            state |= {"worker": self._worker.number, "workers": self._worker.total, "given": self._given}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where a run stood. A worker's state is for the same worker of equally many."""
        place = self._course.parse(state)
        worker = _Worker.of_this_process()
        saved = _Worker(state.get("worker", 0), state.get("workers", 1))
        if saved.total > 1 and saved != worker:
            raise InvalidInput(
                f"the state is of worker {saved.number} of {saved.total}, this is {worker.number} of {worker.total}",
                hint="the state of stream.counted(loader) is for any number of workers",
            )
        self.stand_at(place)
        if saved.total > 1:
            self._worker, self._given = worker, int(state["given"])
            self._resumed = self._given

    def __iter__(self) -> Iterator[Sample]:
        worker = _Worker.of_this_process()
        start = self._begun = self._place
        done, self._resumed = self._resumed, 0
        self._worker, self._given = worker, done if worker.total > 1 else 0
        if worker.number == self._course.share.rank == 0:
            self._tell_of_waste(start, worker)
        for sample in self._ahead(worker, start, done=done):
            done += 1
            if worker.total == 1:
                self._place = self._course.after(start, done)
            else:
                self._given = done
            yield sample
        self.stand_at(Place(epoch=start.epoch + 1))

    def _tell_of_waste(self, start: Place, worker: _Worker) -> None:
        course, batch_size = self._course, self._options.batch_size
        readers = course.readers_of_a_block(start, batch_size=batch_size, workers=worker.total)
        if course.block > 1 and start.lanes is None and readers > 1:
            LOGGER.warning(
                "each block is read by %d processes: lanes should be %d, or a multiple of it",
                readers,
                batch_size * course.share.world_size * worker.total,
            )

    def _ahead(self, worker: _Worker, start: Place, *, done: int) -> Iterator[Sample]:
        """The worker's samples after the first `done`, fetched ahead in groups within the bytes allowed."""
        groups = self._groups(worker, start, done=done)
        under_way: deque[tuple[int, deque[list[ServedSample]]]] = deque()
        held, waiting = 0, next(groups, None)
        try:
            while under_way or waiting is not None:
                while waiting is not None and (not under_way or held + _size(waiting) <= self._options.prefetch_bytes):
                    size = _size(waiting)
                    under_way.append((size, deque(self._serve(waiting))))
                    held, waiting = held + size, next(groups, None)
                size, units = under_way[0]
                while units:
                    unit = units.popleft()
                    for one in unit:
                        one.wait()  # nobody may have a part of a piece of memory that is still written to
                    for one in unit:
                        yield one.result()
                under_way.popleft()
                held -= size
        finally:
            for _, units in under_way:
                for one in (one for unit in units for one in unit):
                    one.cancel()

    def _serve(self, group: Sequence[_Unit]) -> Iterator[list[ServedSample]]:
        asked = [one for unit in group for one in unit]
        served = iter(self._source.serve([one.row for one in asked], [one.room for one in asked]))
        return (list(islice(served, len(unit))) for unit in group)

    def _groups(self, worker: _Worker, start: Place, *, done: int) -> Iterator[list[_Unit]]:
        has_blocks = self._course.block > 1
        limit = max(1, self._options.prefetch_bytes // 2)
        limit, most = (limit, _CHUNK * 64) if has_blocks else (min(_GROUP_BYTES, limit), _GROUP_SAMPLES)
        group: list[_Unit] = []
        size, samples = 0, 0
        for unit in self._units(worker, start, done=done):
            # samples of one window are neighbours, so they are asked for together
            is_next = has_blocks and bool(group) and unit[0].window != group[-1][-1].window
            if group and (is_next or size + _size([unit]) > limit or samples + len(unit) > most):
                yield group
                group, size, samples = [], 0, 0
            group.append(unit)
            size, samples = size + _size([unit]), samples + len(unit)
        if group:
            yield group

    def _units(self, worker: _Worker, start: Place, *, done: int) -> Iterator[_Unit]:
        """The worker's samples: in a loader's worker those of each batch together, else one by one."""
        rows = self._rows(worker, start, done=done)
        size = self._options.batch_size
        left = size - done % size
        while batch := list(islice(rows, left)):
            rooms = self._source.rooms([row for row, _ in batch])
            unit = [_Next(row, room, window) for (row, window), room in zip(batch, rooms, strict=True)]
            yield from [unit] if unit[0].room is not None else ([one] for one in unit)
            left = size

    def _rows(self, worker: _Worker, start: Place, *, done: int) -> Iterator[tuple[ManifestRow, int]]:
        count = self._course.count(start)
        while True:
            own = worker.own(np.arange(done, done + _CHUNK, dtype=np.int64), self._options.batch_size)
            own = own[own < count]
            rows = self._source.rows(self._course.positions(start, own).tolist())
            yield from zip(rows, self._course.windows(start, own).tolist(), strict=True)
            if len(own) < _CHUNK:
                return
            done += _CHUNK


def _size(group: Sequence[_Unit]) -> int:
    return sum(one.row.entry.length for unit in group for one in unit)
