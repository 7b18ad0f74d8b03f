"""One sample out of any place that gives byte ranges: header first, then only the chunks that are needed.

Duty: check the header against the entry and each chunk against the header, and decode (INV-7). Must never hand out a
tensor of which one byte was not checked, and never decide where the bytes come from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from durastore.codec.decode import Room, decode_tensors
from durastore.codec.header import BytesLike, SampleHeader, parse_header
from durastore.codec.selection import ChunkRead, Selection, plan_rows
from durastore.errors import FormatUnsupported, IntegrityError
from durastore.model import VERBATIM_SCHEMA, Digest, Sample, SampleEntry

__all__ = ["ReadAt", "Wanted", "decoded_sample", "read_checked", "read_sample"]

ReadAt = Callable[[int, int], bytes | memoryview]
"""`read_at(offset, length)`: exactly these bytes of the sample (offset from its start), or `IntegrityError`."""

_SMALL_BYTES = 1 << 20  # one request for all of it costs less than a second round trip
_WHOLE_BYTES = 64 << 20
_RANGE_BYTES = 32 << 20
_GAP_BYTES = 64 << 10  # reading over a hole of this size costs less than another request


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of a sample is wanted: these tensors (None: all), these rows of them (None: all)."""

    tensors: Sequence[str] | None = None
    rows: slice | None = None
    into: Room | None = field(default=None, compare=False, repr=False)
    """Where the tensors of one sample are wanted; None: each in memory of its own."""

    @property
    def is_everything(self) -> bool:
        return self.tensors is None and self.rows is None

    def narrowed(self, *, tensors: Sequence[str] | None, rows: slice | None) -> Wanted:
        """This, with what is given in its place."""
        return Wanted(tensors=self.tensors if tensors is None else tensors, rows=self.rows if rows is None else rows)


def read_checked(read_at: ReadAt, entry: SampleEntry, *, wanted: Wanted, where: str) -> Sample:
    """`read_sample` with one re-read where something did not match (a transfer may be damaged, not the bytes).

    Raises `IntegrityError` naming the sample and `where` on the second mismatch, `InvalidInput` for an unknown tensor
    or a row range that is none. Safe to repeat.
    """
    if entry.schema == VERBATIM_SCHEMA:
        raise FormatUnsupported(
            f"{entry.sample_id.text!r} is a file that was kept as it is, not a sample of tensors",
            hint="fetch its object: `durastore manifest show --sample` names the key",
        )
    try:
        return read_sample(read_at, entry, wanted=wanted)
    except IntegrityError:
        pass
    try:
        return read_sample(read_at, entry, wanted=wanted)
    except IntegrityError as exc:
        raise IntegrityError(
            f"sample {entry.sample_id.text!r} in {where}: {exc.message}",
            hint="nothing of it was handed out; compare with the local copy, if one is left, and put the sample again",
            sample_id=entry.sample_id.text,
            where=where,
        ) from exc


def read_sample(read_at: ReadAt, entry: SampleEntry, *, wanted: Wanted) -> Sample:
    """The wanted part of a sample, or `IntegrityError`: every byte handed out matched its digest."""
    is_whole = entry.length <= _SMALL_BYTES or (wanted.is_everything and entry.length <= _WHOLE_BYTES)
    data = memoryview(read_at(0, entry.length if is_whole else entry.header_length))
    header = _checked_header(data[: entry.header_length], entry)
    selection = plan_rows(header, wanted.tensors, rows=wanted.rows)
    if is_whole:
        buffers = [data[read.offset : read.offset + read.length] for read in selection]
    else:
        buffers = [buffer for group in _ranges(selection.reads) for buffer in _read_range(read_at, group)]
    return decoded_sample(header, selection, buffers=buffers, into=wanted.into)


def decoded_sample(
    header: SampleHeader, selection: Selection, *, buffers: Sequence[BytesLike], into: Room | None = None
) -> Sample:
    """The selected part of the sample with this header. `IntegrityError` where a chunk does not match its digest."""
    return Sample(
        id=header.sample_id.text,
        tensors=decode_tensors(header, selection, buffers=buffers, into=into),
        meta=json.loads(header.meta),
        digest=header.digest,
        input_digest=header.input_digest,
        rows=selection.rows,
        provenance=header.provenance,
    )


def _checked_header(data: memoryview, entry: SampleEntry) -> SampleHeader:
    """The header, equal to what the entry says of it in everything."""
    if Digest.of(data) != entry.header_digest:
        raise IntegrityError("the header does not match its digest in the manifest")
    header = parse_header(data, total_length=entry.length)
    said = header.entry(offset=entry.offset, time_ns=entry.time_ns)
    if said != entry:
        names = [name for name in SampleEntry.__slots__ if getattr(said, name) != getattr(entry, name)]
        raise IntegrityError(f"the header and its manifest row disagree on {', '.join(names)}")
    return header


def _ranges(reads: Sequence[ChunkRead]) -> Iterator[list[ChunkRead]]:
    """Neighbouring chunks together, so that they take one request."""
    group: list[ChunkRead] = []
    for read in reads:
        if group:
            end = group[-1].offset + group[-1].length
            is_near = 0 <= read.offset - end <= _GAP_BYTES
            if not is_near or read.offset + read.length - group[0].offset > _RANGE_BYTES:
                yield group
                group = []
        group.append(read)
    if group:
        yield group


def _read_range(read_at: ReadAt, group: Sequence[ChunkRead]) -> Iterator[memoryview]:
    start, last = group[0].offset, group[-1]
    data = memoryview(read_at(start, last.offset + last.length - start))
    for read in group:
        yield data[read.offset - start : read.offset - start + read.length]
