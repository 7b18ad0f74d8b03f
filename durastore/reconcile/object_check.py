"""One object read in full and held against what the manifest says of it: its digests, and each sample's.

Duty: say which bytes do not match, with a few MiB in memory whatever the object's size. "Does not match" is a finding;
"cannot be looked at" is an exception. Must never call a single bad transfer damage: the caller looks twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from durastore.codec.header import parse_header
from durastore.codec.selection import plan_rows
from durastore.errors import FormatUnsupported, IntegrityError, ObjectAbsent
from durastore.model import VERBATIM_SCHEMA, Digest
from durastore.objectstore.crc import Crc64Nvme
from durastore.objectstore.port import ObjectReader
from durastore.reconcile.findings import Finding, FindingKind
from durastore.reconcile.held import HeldObject, HeldRow

__all__ = ["check_object"]

_CHUNK_BYTES = 1 << 20
_SHOWN = 5


def check_object(
    reader: ObjectReader, held: HeldObject, *, rows: Sequence[HeldRow], throttle: Callable[[int], None]
) -> tuple[Finding | None, int]:
    """What is wrong with the object (None: nothing), and how many bytes were read. Safe to repeat.

    Every byte is fetched, as a reader of the dataset gets it; `throttle` is called with the size of each piece in bytes
    and may block. Errors of the network and of access pass through.
    """
    chunks = reader.fetch_chunks(held.key, chunk_bytes=_CHUNK_BYTES)
    stream = _Stream(chunks, throttle=throttle, limit_bytes=held.size_bytes)
    try:
        faults = _Faults(rows=len(rows))
        for row in rows:
            fault = _row_fault(stream, row)
            if fault is not None:
                faults.add(row, fault)
        stream.skip_to(None)
    except ObjectAbsent:
        return Finding(kind=FindingKind.DANGLING, key=held.key, detail="it is listed, and its bytes are gone"), 0
    except IntegrityError as exc:  # of the adapter: the body ended before its announced end
        detail = f"it cannot be read to its end: {exc.message}"
        return Finding(kind=FindingKind.TRUNCATED, key=held.key, detail=detail), stream.position
    return _whole_fault(stream, held, faults=faults), stream.position


def _whole_fault(stream: _Stream, held: HeldObject, *, faults: _Faults) -> Finding | None:
    size_bytes = stream.position
    if size_bytes < held.size_bytes:
        kind, what = FindingKind.TRUNCATED, f"it has {size_bytes} bytes instead of {held.size_bytes}"
    elif size_bytes > held.size_bytes:
        kind, what = FindingKind.DIVERGENT, f"it has more than its {held.size_bytes} bytes"
    elif stream.digest() != held.digest:
        kind, what = FindingKind.DIVERGENT, "its bytes do not match their digest"
    elif held.crc64nvme and stream.crc64nvme() != held.crc64nvme:
        kind, what = FindingKind.DIVERGENT, "the manifest has another CRC64NVME of it"
    elif faults.count:
        kind, what = FindingKind.DIVERGENT, "its bytes are as they were written, and its rows say otherwise"
    else:
        return None
    return Finding(kind=kind, key=held.key, detail=f"{what}; {faults.text()}", size_bytes=size_bytes)


class _Faults:
    """Which samples of an object do not verify."""

    def __init__(self, *, rows: int) -> None:
        self._rows = rows
        self._named: list[str] = []
        self.count = 0

    def add(self, row: HeldRow, fault: str) -> None:
        self.count += 1
        if len(self._named) < _SHOWN:
            self._named.append(f"{row.sample_id}: {fault}")

    def text(self) -> str:
        if not self.count:
            return f"its {self._rows} samples still verify"
        more = "; ..." if self.count > len(self._named) else ""
        return f"{self.count} of its {self._rows} samples do not verify ({'; '.join(self._named)}{more})"


@dataclass(frozen=True, slots=True)
class _Ended(Exception):
    """The object has no more bytes."""

    position: int


class _Stream:
    """The object's bytes in order, hashed as they pass."""

    def __init__(self, chunks: Iterator[bytes], *, throttle: Callable[[int], None], limit_bytes: int) -> None:
        self._chunks = chunks
        self._throttle = throttle
        self._limit_bytes = limit_bytes
        self._held = memoryview(b"")
        self._content, self._transport = xxhash.xxh3_128(), Crc64Nvme()
        self.position = 0
        """Bytes that came so far, those not yet taken included."""

    def digest(self) -> Digest:
        return Digest(self._content.hexdigest())

    def crc64nvme(self) -> str:
        return self._transport.text()

    @property
    def _at(self) -> int:
        return self.position - len(self._held)

    def _next(self) -> bool:
        chunk = None if self.position > self._limit_bytes else next(self._chunks, None)
        if chunk is None:  # an endless body must not keep us here
            return False
        self._throttle(len(chunk))
        self._content.update(chunk)
        self._transport.update(chunk)
        self.position += len(chunk)
        self._held = memoryview(chunk)
        return True

    def skip_to(self, offset: int | None) -> None:
        """Let the bytes before `offset` pass (None: all). `_Ended` where the object ends before."""
        while offset is None or self._at < offset:
            step = len(self._held) if offset is None else min(len(self._held), offset - self._at)
            self._held = self._held[step:]
            if not self._held and (offset is None or self._at < offset) and not self._next():
                if offset is None:
                    return
                raise _Ended(self.position)

    def take(self, length: int) -> bytes:
        """The next `length` bytes. `_Ended` where there are fewer."""
        pieces: list[memoryview] = []
        while length:
            if not self._held and not self._next():
                raise _Ended(self.position)
            piece = self._held[:length]
            pieces.append(piece)
            self._held = self._held[len(piece) :]
            length -= len(piece)
        return b"".join(pieces)


def _row_fault(stream: _Stream, row: HeldRow) -> str | None:
    """Why these bytes are not the sample of the row; None if every byte of them is."""
    if row.offset < stream._at:
        return "its row overlaps another one"
    try:
        stream.skip_to(row.offset)
        fault = _verbatim_fault(stream, row) if row.schema == VERBATIM_SCHEMA else _sample_fault(stream, row)
        stream.skip_to(row.end)
    except _Ended as exc:
        return f"the object ends at byte {exc.position}, inside or before it"
    return fault


def _verbatim_fault(stream: _Stream, row: HeldRow) -> str | None:
    hasher, left = xxhash.xxh3_128(), row.length
    while left:
        piece = stream.take(min(left, _CHUNK_BYTES))
        hasher.update(piece)
        left -= len(piece)
    return None if hasher.hexdigest() == row.header_digest else "the bytes do not match their digest"


def _sample_fault(stream: _Stream, row: HeldRow) -> str | None:
    raw = stream.take(row.header_length)
    if Digest.of(raw).hex != row.header_digest:
        return "the header does not match its digest"
    try:
        header = parse_header(raw, total_length=row.length)
    except (IntegrityError, FormatUnsupported) as exc:
        return exc.message
    if header.sample_id.text != row.sample_id:
        return f"the bytes are of sample {header.sample_id.text!r}"
    for read in plan_rows(header, None, rows=None):
        stream.skip_to(row.offset + read.offset)
        if xxhash.xxh3_128_hexdigest(stream.take(read.length)) != read.digest:
            return f"tensor {read.tensor!r}, chunk {read.chunk} does not match its digest"
    return None
