"""Samples out of the bucket: one, or a batch that shares requests.

Duty: turn manifest rows into ranged GETs and hand the bytes to the checker. Must never write, and never use an etag or
a status as proof of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Protocol

from durastore.codec.decode import Room
from durastore.errors import IntegrityError, ObjectAbsent
from durastore.model import VERBATIM_SCHEMA, ManifestRow, ObjectKey, Sample
from durastore.objectstore.port import ObjectReader
from durastore.objectstore.ranges import fetch_ranges
from durastore.read.requests import RequestPool
from durastore.read.sample import ReadAt, Wanted, read_checked, read_sample

__all__ = [
    "BatchRange",
    "SampleSource",
    "ServedSample",
    "Shelf",
    "fetch_one",
    "fetch_sample",
    "fetch_samples",
    "plan_batch",
    "serve_samples",
]

_Outcome = Sample | Exception

_BATCH_BYTES = 16 << 20
_GAP_BYTES = 64 << 10
_CALL_BYTES = 4 << 20
_CALL_RANGES = 8  # fewer than obstore asks for at one time


class Shelf(Protocol):
    """Stored samples nearer than the bucket. Nothing it gives is trusted: each byte is checked like one that came by
    the network. None of these calls raises for what a shelf cannot do; `ConfigError` where it cannot work at all.
    """

    def has(self, row: ManifestRow) -> bool:
        """Whether it may have the sample. Only a hint: the answer may be old at once."""
        ...

    def take(self, row: ManifestRow) -> bytes | None:
        """The stored bytes that it has for this sample, or None."""
        ...

    def offer(self, row: ManifestRow, data: memoryview) -> None:
        """Bytes of the sample that were all checked; it may keep a copy."""
        ...

    def reject(self, row: ManifestRow, fault: IntegrityError) -> None:
        """What it gave for this sample was damaged: `fault` says how."""
        ...


def fetch_sample(
    reader: ObjectReader, row: ManifestRow, *, tensors: Sequence[str] | None = None, rows: slice | None = None
) -> Sample:
    """The sample of `row`, or its named tensors and rows, with only the bytes needed fetched. Safe to repeat.

    Every byte handed out matched: the header against the row, each chunk against the header. Raises `IntegrityError`
    naming sample and object after one re-read, `ObjectAbsent` where the object is gone.
    """
    return _fetch(reader, row, wanted=Wanted(tensors=tensors, rows=rows))


def fetch_one(reader: ObjectReader, row: ManifestRow, *, wanted: Wanted, shelf: Shelf | None = None) -> Sample:
    """What is wanted of the sample of `row`: from the shelf where it is there and whole, else from the bucket.

    Checks and raises like `fetch_sample`.
    """
    if shelf is None or row.entry.schema == VERBATIM_SCHEMA:
        return _fetch(reader, row, wanted=wanted)
    found = shelf.take(row)
    if found is not None:
        try:
            return read_sample(_within(memoryview(found)), row.entry, wanted=wanted)
        except IntegrityError as exc:
            shelf.reject(row, exc)
    if not wanted.is_everything:
        return _fetch(reader, row, wanted=wanted)
    whole = _Recorded(reader, row)
    sample = _checked(whole.read_at, row, wanted=wanted)
    if whole.data is not None:
        shelf.offer(row, whole.data)
    return sample


class _Recorded:
    """Keeps the bytes of a sample that came in one piece."""

    def __init__(self, reader: ObjectReader, row: ManifestRow) -> None:
        self._reader, self._row = reader, row
        self.data: memoryview | None = None

    def read_at(self, offset: int, length: int) -> bytes:
        entry = self._row.entry
        data = self._reader.fetch(self._row.object.key, offset=entry.offset + offset, length=length)
        if (offset, length) == (0, entry.length):
            self.data = memoryview(data)
        return data


def _fetch(reader: ObjectReader, row: ManifestRow, *, wanted: Wanted) -> Sample:
    key, start = row.object.key, row.entry.offset

    def read_at(offset: int, length: int) -> bytes:
        return reader.fetch(key, offset=start + offset, length=length)

    return _checked(read_at, row, wanted=wanted)


def _checked(read_at: ReadAt, row: ManifestRow, *, wanted: Wanted) -> Sample:
    key = row.object.key
    try:
        return read_checked(read_at, row.entry, wanted=wanted, where=f"object {key}")
    except ObjectAbsent as exc:
        raise ObjectAbsent(
            f"sample {row.entry.sample_id.text!r}: its object {key} is not in the bucket",
            sample_id=row.entry.sample_id.text,
        ) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """One GET that serves several samples of one object; `members` are positions in the batch."""

    key: ObjectKey
    offset: int
    length: int
    members: tuple[int, ...]


def plan_batch(batch: Sequence[ManifestRow]) -> tuple[BatchRange, ...]:
    """Which ranges serve the batch: neighbours in one object share a request of at most 16 MiB."""
    order = sorted(range(len(batch)), key=lambda at: (batch[at].object.key, batch[at].entry.offset))
    ranges: list[BatchRange] = []
    for at in order:
        key, entry = batch[at].object.key, batch[at].entry
        end = entry.offset + entry.length
        last = ranges[-1] if ranges else None
        if last is not None and last.key == key and entry.offset <= last.offset + last.length + _GAP_BYTES:
            joined = max(end, last.offset + last.length) - last.offset
            if joined <= _BATCH_BYTES:
                ranges[-1] = BatchRange(key=key, offset=last.offset, length=joined, members=(*last.members, at))
                continue
        ranges.append(BatchRange(key=key, offset=entry.offset, length=entry.length, members=(at,)))
    return tuple(ranges)


class ServedSample:
    """A sample on its way. `result` waits for it, and raises what kept it from coming."""

    __slots__ = ("_at", "_part")

    def __init__(self, part: Future[dict[int, _Outcome]], at: int) -> None:
        self._part = part
        self._at = at

    def wait(self) -> None:
        """Until it is there, or failed, or was cancelled."""
        wait([self._part])

    def result(self) -> Sample:
        outcome = self._part.result()[self._at]
        if isinstance(outcome, Sample):
            return outcome
        raise outcome

    def cancel(self) -> None:
        """Do not begin to fetch it, if nobody else's request serves it as well. Safe to repeat."""
        self._part.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """Where a process reads samples: the bucket, by requests of `pool`, and the shelf before it."""

    reader: ObjectReader
    pool: RequestPool
    shelf: Shelf | None = None


def serve_samples(
    source: SampleSource, batch: Sequence[ManifestRow], *, wanted: Wanted, rooms: Sequence[Room | None] = ()
) -> list[ServedSample]:
    """Begin to fetch the samples of `batch`, neighbours sharing requests; each in its place of the list.

    Each is checked, and raises, like `fetch_sample`. One that fails takes no other with it. What the shelf has is not
    fetched, and what is fetched whole is offered to it. `rooms`, where given, are those of the samples.
    """
    reader, pool, shelf = source.reader, source.pool, source.shelf
    work = _Work(reader=reader, batch=batch, wanted=wanted, shelf=shelf, rooms=list(rooms) or [None] * len(batch))
    served: list[ServedSample | None] = [None] * len(batch)
    alone, shared = _plan(batch, wanted=wanted, shelf=shelf)
    for at in alone:
        served[at] = ServedSample(pool.begin(1, work.fetch_alone, at), at)
    for call in _calls(shared, most=min(_CALL_RANGES, pool.max_requests)):
        part = pool.begin(len(call), work.fetch, call)
        for at in (at for span in call for at in span.members):
            served[at] = ServedSample(part, at)
    return [one for one in served if one is not None]


def fetch_samples(
    source: SampleSource, batch: Sequence[ManifestRow], *, wanted: Wanted, rooms: Sequence[Room | None] = ()
) -> list[Sample]:
    """The samples of `batch`, in its order, fetched in parallel. Checks and raises like `fetch_sample`."""
    served = serve_samples(source, batch, wanted=wanted, rooms=rooms)
    try:
        return [one.result() for one in served]
    finally:
        for one in served:
            one.cancel()


def _plan(
    batch: Sequence[ManifestRow], *, wanted: Wanted, shelf: Shelf | None
) -> tuple[list[int], tuple[BatchRange, ...]]:
    """The positions of what is read by itself: parts, what may be on the shelf, what is large; ranges for the rest."""
    alone: list[int] = []
    rest: list[int] = []
    for at, row in enumerate(batch):
        is_large = row.entry.length > _BATCH_BYTES
        is_alone = is_large or not wanted.is_everything or (shelf is not None and shelf.has(row))
        (alone if is_alone else rest).append(at)
    shared = plan_batch([batch[at] for at in rest])
    return alone, tuple(replace(part, members=tuple(rest[at] for at in part.members)) for part in shared)


def _calls(shared: Sequence[BatchRange], *, most: int) -> Iterator[tuple[BatchRange, ...]]:
    """Ranges of one object together, as many as one call asks for at one time."""
    call: list[BatchRange] = []
    for part in shared:
        size = sum(one.length for one in call) + part.length
        if call and (part.key != call[0].key or len(call) == most or size > _CALL_BYTES):
            yield tuple(call)
            call = []
        call.append(part)
    if call:
        yield tuple(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What the requests of one batch have in common."""

    reader: ObjectReader
    batch: Sequence[ManifestRow]
    wanted: Wanted
    shelf: Shelf | None
    rooms: list[Room | None]
    """Of each sample, until it is read: who has only this work any more does not hold the memory of a batch."""

    def fetch(self, call: tuple[BatchRange, ...]) -> dict[int, _Outcome]:
        pieces = self._bytes_of(call)
        return {
            at: self._outcome(at, data, start=part.offset)
            for part, data in zip(call, pieces, strict=True)
            for at in part.members
        }

    def fetch_alone(self, at: int) -> dict[int, _Outcome]:
        return {at: self._outcome(at, None, start=0)}

    def _bytes_of(self, call: tuple[BatchRange, ...]) -> Sequence[memoryview | None]:
        try:
            return fetch_ranges(
                self.reader, call[0].key, spans=[(part.offset, part.offset + part.length) for part in call]
            )
        except (IntegrityError, ObjectAbsent):
            return [None] * len(call)  # the members are then read one by one, which names the sample at fault

    def _outcome(self, at: int, data: memoryview | None, *, start: int) -> _Outcome:
        row, wanted = self.batch[at], self.wanted
        room, self.rooms[at] = self.rooms[at], None
        try:
            if room is not None:
                wanted = replace(wanted, into=room)
            if data is not None:
                own = data[row.entry.offset - start :][: row.entry.length]
                try:
                    sample = read_sample(_within(own), row.entry, wanted=wanted)
                except IntegrityError:
                    pass  # a transfer may be damaged: once more, by itself
                else:
                    if self.shelf is not None:
                        self.shelf.offer(row, own)
                    return sample
            return fetch_one(self.reader, row, wanted=wanted, shelf=self.shelf)
        except Exception as exc:  # noqa: BLE001  # raised where the sample is asked for
            return exc


def _within(data: memoryview) -> ReadAt:
    """A sample's bytes at hand."""
    return lambda offset, length: data[offset : offset + length]
