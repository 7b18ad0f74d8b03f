"""A worker's place at the queue: what it asks for samples, and tells what became of them.

Duty: the protocol that the work is written against, and the place of a worker that has queue and records at hand. The
place of one on another machine is `lease_line.LeaseLine`, whose other end is a `LocalSeat` again. Must never record a
failure of a sample that is another worker's by now.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from durastore.clock import Clock
from durastore.extract.inputs import LinePlace, LineReader
from durastore.extract.leases import LeaseQueue, Task
from durastore.extract.records import Records
from durastore.extract.rows import RawRow, RowFailure

__all__ = ["LeasedRow", "LocalSeat", "Seat", "StoredSample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedRow:
    """A leased sample and its line of the input, whatever that says by now."""

    task: Task
    row: RawRow | RowFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSample:
    """A sample whose put has returned, or that was found to be done."""

    sample_id: str
    line: int
    input_digest: str
    tensor_bytes: int


class Seat(Protocol):
    """Used by the thread that works, the one that stores, and the heartbeat."""

    @property
    def number(self) -> int:
        """The worker's number; never used again."""
        ...

    def take(self, *, batch_tokens: int) -> tuple[Sequence[LeasedRow], Sequence[RowFailure]]:
        """As `LeaseQueue.take`. May wait."""
        ...

    def has_work_of_others(self) -> bool:
        """Whether samples that somebody else has may come back, as of the last `take`."""
        ...

    def stored(self, sample: StoredSample) -> None: ...

    def failed(self, failure: RowFailure) -> None: ...

    def renew(self) -> None:
        """The worker still works on what it leased."""
        ...

    def leaving(self) -> None: ...

    def hand_back(self) -> int: ...

    def flushed(self) -> None: ...


class LocalSeat:
    """Raises `DiskFailed` where queue or records cannot be written. Thread-safe, but for `take`: one thread takes."""

    def __init__(self, queue: LeaseQueue, records: Records, *, number: int, source: Path) -> None:
        """`queue` has joined as `number`. Close them after this."""
        self._queue = queue
        self.records = records
        self._reader = LineReader(source)
        self._number = number

    @classmethod
    def join(
        cls, request: SeatRequest, *, names: tuple[str, str], clock: Clock, pid: int | None = None, place: str = ""
    ) -> LocalSeat:
        """A new worker of the job. `names`: the job's, and the digest of the run. `place`: where the worker is, if not
        here; `pid` is its process there.
        """
        job, run = names
        queue = LeaseQueue(request.local, job=job, clock=clock, lease_s=request.lease_s)
        try:
            number = queue.join(os.getpid() if pid is None else pid)
            records = Records(request.local, run=run, clock=clock, worker=f"worker {number}{place}")
            try:
                return cls(queue, records, number=number, source=request.input)
            except BaseException:  # the caller gets no object to close
                records.close()
                raise
        except BaseException:
            queue.close()
            raise

    @property
    def number(self) -> int:
        return self._number

    def take(self, *, batch_tokens: int) -> tuple[Sequence[LeasedRow], Sequence[RowFailure]]:
        tasks, hopeless = self._queue.take(batch_tokens=batch_tokens)
        return [LeasedRow(task=task, row=self._reader.read(_place_of(task))) for task in tasks], hopeless

    def has_work_of_others(self) -> bool:
        return self._queue.has_work_of_others()

    def stored(self, sample: StoredSample) -> None:
        self._queue.stored(sample.sample_id, input_digest=sample.input_digest, tensor_bytes=sample.tensor_bytes)
        self.records.book.settle(sample.sample_id, sample.line)

    def failed(self, failure: RowFailure) -> None:
        """The queue is told first: it knows whose the sample is."""
        is_mine = failure.stage == "worker" or self._queue.failed(str(failure.sample_id))
        if is_mine:
            self.records.failure(failure)

    def renew(self) -> None:
        self._queue.renew()

    def leaving(self) -> None:
        self._queue.leaving()

    def hand_back(self) -> int:
        return self._queue.hand_back()

    def flushed(self) -> None:
        self._queue.flushed()

    def close(self) -> None:
        """Give the place up: what it still leases is open to the others. Safe to repeat."""
        try:
            self._reader.close()
            self.records.close()
        finally:
            self._queue.close()


class SeatRequest(Protocol):
    """What of a request a place needs."""

    @property
    def local(self) -> Path: ...

    @property
    def input(self) -> Path: ...

    @property
    def lease_s(self) -> float: ...


def _place_of(task: Task) -> LinePlace:
    return LinePlace(line=task.line, offset=task.offset, size_bytes=task.size_bytes)
