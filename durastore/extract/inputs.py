"""The input file, read twice: first to check every id, then row by row for the model.

Duty: a `Survey` (which rows there are, which repeat another) and the selected rows in file order, in memory that grows
only by 32 bytes a row. Must never read past what was surveyed, and must never hand out rows of a file that changed
in between without saying so.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import xxhash

from durastore.errors import InvalidInput
from durastore.extract.rows import RawRow, RowFailure, TokenContent, parse_row
from durastore.extract.shards import WHOLE, Shard
from durastore.model import Digest

__all__ = ["LinePlace", "LineReader", "Survey", "read_all", "read_placed", "read_selected", "survey_input"]

LINE_LIMIT_BYTES = 256 << 20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the first pass found. `inputs` counts distinct samples: readable ids once, and every unreadable row."""

    path: Path
    size_bytes: int
    """Bytes that were surveyed; the second pass reads exactly these."""
    digest: Digest
    rows: int
    unreadable: int
    duplicate_lines: frozenset[int]
    """Lines that repeat an earlier line's id and content."""
    to_tokenise: tuple[RawRow, ...]
    """The first row of each kind that has no token ids of its own."""
    shard: Shard = WHOLE
    others: int = 0
    """Distinct samples of other shards."""

    @property
    def needs_tokenizer(self) -> bool:
        return bool(self.to_tokenise)

    @property
    def inputs(self) -> int:
        return self.rows - len(self.duplicate_lines) - self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlace:
    """Where a line lies in its file."""

    line: int
    offset: int
    size_bytes: int


class LineReader:
    """Single lines of an input by their places. Used from one thread."""

    def __init__(self, path: Path) -> None:
        self._fd = _open(path)

    def read(self, place: LinePlace) -> RawRow | RowFailure:
        """The row at this place, whatever it is by now: the caller compares what it should be."""
        data = os.pread(self._fd, place.size_bytes, place.offset)
        if len(data) != place.size_bytes:
            reason = f"ends after {len(data)} of {place.size_bytes} bytes: the file was cut since it was read first"
            return RowFailure(line=place.line, sample_id=None, stage="read", reason=reason)
        return parse_row(data, line=place.line)

    def close(self) -> None:
        """Safe to repeat."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    number: int
    offset: int
    data: bytes
    size_bytes: int
    """Of the line as it lies in the file; more than `data` where the line was over the limit."""

    @property
    def is_whole(self) -> bool:
        return len(self.data) == self.size_bytes


class _Ids:
    """Digests of ids and contents, 32 bytes a row, to find repeats by one sort instead of a table of texts."""

    def __init__(self) -> None:
        self._columns = (array("Q"), array("Q"), array("Q"), array("Q"))

    def add(self, row: RawRow) -> None:
        hexes = row.sample_id.digest().hex
        facts = (int(hexes[:16], 16), int(hexes[16:], 16), int(row.content_digest.hex[:16], 16), row.line)
        for column, value in zip(self._columns, facts, strict=True):
            column.append(value)

    def count_others(self, shard: Shard) -> int:
        """Distinct ids that are not in this shard; as `Shard.has`, at once."""
        high, low = (np.frombuffer(column, dtype=np.uint64) for column in self._columns[:2])
        others = high % np.uint64(shard.count) != np.uint64(shard.index)
        return len(np.unique(np.stack((high[others], low[others])), axis=1).T) if others.any() else 0

    def duplicate_lines(self) -> frozenset[int]:
        """Lines that repeat an earlier one exactly; `InvalidInput` for one id with two contents."""
        if not self._columns[0]:
            return frozenset()
        high, low, content, line = (np.frombuffer(c, dtype=np.uint64) for c in self._columns)
        order = np.lexsort((line, low, high))
        high, low, content, line = high[order], low[order], content[order], line[order]
        is_repeat = np.zeros(len(line), dtype=bool)
        is_repeat[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        differs = is_repeat.copy()
        differs[1:] &= content[1:] != content[:-1]
        if differs.any():
            at = int(np.flatnonzero(differs)[0])
            first, second = int(line[at - 1]), int(line[at])
            raise InvalidInput(
                f"lines {first} and {second} have the same id but other content ({int(differs.sum())} such pairs)",
                hint="give each sample its own id",
                lines=[first, second],
            )
        return frozenset(int(n) for n in line[is_repeat])


def _open(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # NONBLOCK: a FIFO must not hang the start
    except OSError as exc:
        raise InvalidInput(f"input {path} cannot be opened: {exc.strerror}", hint="check the path of INPUT") from exc
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise InvalidInput(f"input {path} is a folder", hint="name one file of JSON lines in it")
        raise InvalidInput(f"input {path} is not a regular file", hint="it is read twice, so a pipe cannot be used")
    return fd


class _Lines:
    """The lines of a file with their numbers, hashing every byte that was passed; one pass per instance."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hasher = xxhash.xxh3_128()
        self.size_bytes = 0
        """Bytes passed so far, whole lines."""

    def digest(self) -> Digest:
        return Digest(self._hasher.hexdigest())

    def read(self, *, end: int | None) -> Iterator[_Line]:
        """The non-blank lines of the first `end` bytes, each cut at LINE_LIMIT_BYTES."""
        number = 0
        with os.fdopen(_open(self._path), "rb", buffering=1 << 20) as stream:
            while end is None or self.size_bytes < end:
                data = stream.readline(LINE_LIMIT_BYTES)
                if not data:
                    return
                number += 1
                offset = self.size_bytes
                size = self._pass(data) + self._skip_rest(stream, data)
                if number == 1 and data.startswith(_BOM):
                    data, size, offset = data[len(_BOM) :], size - len(_BOM), len(_BOM)
                if data.strip():
                    yield _Line(number=number, offset=offset, data=data, size_bytes=size)

    def _pass(self, data: bytes) -> int:
        self._hasher.update(data)
        self.size_bytes += len(data)
        return len(data)

    def _skip_rest(self, stream: IO[bytes], start: bytes) -> int:
        skipped, tail = 0, start
        while not tail.endswith(b"\n") and (tail := stream.readline(LINE_LIMIT_BYTES)):
            skipped += self._pass(tail)
        return skipped


def _parse(line: _Line) -> RawRow | RowFailure:
    if not line.is_whole:
        reason = f"is longer than {LINE_LIMIT_BYTES >> 20} MiB"
        return RowFailure(line=line.number, sample_id=None, stage="read", reason=reason)
    return parse_row(line.data, line=line.number)


def survey_input(path: Path, *, limit: int | None = None, shard: Shard = WHOLE) -> Survey:
    """Read the first `limit` rows (all by default) and check their ids, before anything else is started. All rows are
    checked, whatever the shard.

    Raises `InvalidInput` if the file cannot be read or holds no row at all, or if one id stands for two contents,
    naming both lines. Writes nothing; safe to repeat.
    """
    lines, ids = _Lines(path), _Ids()
    rows = unreadable = 0
    to_tokenise: dict[type, RawRow] = {}
    for line in lines.read(end=None):
        row = _parse(line)
        rows += 1
        if isinstance(row, RowFailure):
            unreadable += 1
        else:
            ids.add(row)
            if not isinstance(row.content, TokenContent):
                to_tokenise.setdefault(type(row.content), row)
        if rows == limit:
            break
    if not rows and limit != 0:  # nothing in, nothing out is no success: the step before may have failed (INV-10)
        hint = "did the step that writes it end well? Nothing was started"
        raise InvalidInput(f"input {path} holds no rows ({lines.size_bytes} bytes)", hint=hint)
    return Survey(
        path=path,
        size_bytes=lines.size_bytes,
        digest=lines.digest(),
        rows=rows,
        unreadable=unreadable,
        duplicate_lines=ids.duplicate_lines(),
        to_tokenise=tuple(to_tokenise.values()),
        shard=shard,
        others=ids.count_others(shard) + (unreadable if shard.index else 0),
    )


def read_selected(survey: Survey) -> Iterator[RawRow | RowFailure]:
    """The rows of `read_placed` without their places."""
    for _, row in read_placed(survey):
        yield row


def read_placed(survey: Survey) -> Iterator[tuple[LinePlace, RawRow | RowFailure]]:
    """The surveyed rows in file order, repeats left out: exactly `survey.inputs` items, with where they lie.

    Raises `InvalidInput` at the end if these bytes are not the bytes that were surveyed (their ids were then never
    checked as a whole); bytes appended since are not read, the next run takes them.
    """
    for place, row in _read_all(survey):
        if place.line in survey.duplicate_lines:
            continue
        # A row without a usable rest still has the id that the survey did not count: it goes with the unreadable ones.
        if survey.shard.has(row.sample_id if isinstance(row, RawRow) else None):
            yield place, row


def read_all(survey: Survey) -> Iterator[RawRow | RowFailure]:
    """The surveyed rows of all shards in file order, repeats included: exactly `survey.rows` items. Raises as
    `read_placed`.
    """
    for _, row in _read_all(survey):
        yield row


def _read_all(survey: Survey) -> Iterator[tuple[LinePlace, RawRow | RowFailure]]:
    lines = _Lines(survey.path)
    for line in lines.read(end=survey.size_bytes):
        yield LinePlace(line=line.number, offset=line.offset, size_bytes=len(line.data)), _parse(line)
    if lines.size_bytes != survey.size_bytes or lines.digest() != survey.digest:
        raise InvalidInput(
            f"input {survey.path} changed while it was being read",
            hint="what was stored is whole; run the same command again on the finished file",
        )
