"""Samples out of the bucket: one, or a batch that shares requests.

Duty: turn manifest rows into ranged GETs and hand the bytes to the checker. Must never write, and never use an etag or
a status as proof of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from durastore.errors import IntegrityError, ObjectAbsent
from durastore.model import ManifestRow, ObjectKey, Sample
from durastore.objectstore.port import ObjectReader
from durastore.read.sample import ReadAt, Wanted, read_checked, read_sample

Served = Iterator[tuple[int, Sample]]

__all__ = ["BatchRange", "fetch_sample", "fetch_samples", "plan_batch"]

_BATCH_BYTES = 16 << 20
_GAP_BYTES = 64 << 10


def fetch_sample(
    reader: ObjectReader, row: ManifestRow, *, tensors: Sequence[str] | None = None, rows: slice | None = None
) -> Sample:
    """The sample of `row`, or its named tensors and rows, with only the bytes needed fetched. Safe to repeat.

    Every byte handed out matched: the header against the row, each chunk against the header. Raises `IntegrityError`
    naming sample and object after one re-read, `ObjectAbsent` where the object is gone.
    """
    return _fetch(reader, row, wanted=Wanted(tensors=tensors, rows=rows))


def _fetch(reader: ObjectReader, row: ManifestRow, *, wanted: Wanted) -> Sample:
    key, start = row.object.key, row.entry.offset

    def read_at(offset: int, length: int) -> bytes:
        return reader.fetch(key, offset=start + offset, length=length)

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


def fetch_samples(
    reader: ObjectReader, batch: Sequence[ManifestRow], *, wanted: Wanted, pool: Executor
) -> list[Sample]:
    """The samples of `batch`, in its order, fetched in parallel on `pool`. Checks and raises like `fetch_sample`."""
    if not wanted.is_everything:
        return list(pool.map(lambda row: _fetch(reader, row, wanted=wanted), batch))
    found: dict[int, Sample] = {}
    for part in pool.map(lambda shared: dict(_fetch_range(reader, batch, shared=shared)), plan_batch(batch)):
        found.update(part)
    return [found[at] for at in range(len(batch))]


def _fetch_range(reader: ObjectReader, batch: Sequence[ManifestRow], *, shared: BatchRange) -> Served:
    everything = Wanted()
    if len(shared.members) == 1:
        yield shared.members[0], _fetch(reader, batch[shared.members[0]], wanted=everything)
        return
    try:
        data = memoryview(reader.fetch(shared.key, offset=shared.offset, length=shared.length))
    except (IntegrityError, ObjectAbsent):
        data = memoryview(b"")  # the members are then read one by one, which names the sample at fault
    for at in shared.members:
        row = batch[at]
        try:
            sample = read_sample(_within(data, row.entry.offset - shared.offset), row.entry, wanted=everything)
        except IntegrityError:
            sample = _fetch(reader, row, wanted=everything)
        yield at, sample


def _within(data: memoryview, start: int) -> ReadAt:
    """A sample's bytes inside bytes at hand."""
    return lambda offset, length: data[start + offset : start + offset + length]
