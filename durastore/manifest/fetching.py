"""Fetch the segments of a snapshot, each checked against the digest in its name.

Duty: segment objects -> checked Arrow tables, in parallel, leaving out those a compaction covers. Must never hand out a
table whose bytes did not match (INV-7), and never drop an unreadable segment in silence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from durastore.errors import IntegrityError, ObjectAbsent
from durastore.formats.keys import parse_segment_key
from durastore.formats.segment import parse_segment_table, segment_covers
from durastore.manifest.snapshot import SegmentRef
from durastore.model import Digest, ObjectKey
from durastore.objectstore.port import ObjectReader

__all__ = ["FetchedSegments", "SegmentPart", "SegmentTable", "UnreadableSegment", "fetch_segments", "fetch_table"]

_PLAIN_COLUMNS = frozenset({"sample_id", "kind"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTable:
    """One checked segment. String columns other than the id are dictionary-encoded, for memory."""

    key: ObjectKey
    table: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPart:
    """What of a segment is wanted: these columns (None: all), and of its rows those that `rows` leaves (None: all)."""

    columns: tuple[str, ...] | None = None
    rows: Callable[[pa.Table], pa.Table] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableSegment:
    """A segment that is listed and cannot be used: absent, damaged, or no segment at all."""

    key: ObjectKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSegments:
    """What became of each segment of a list: each is read, covered by a read one, or unreadable."""

    read: tuple[SegmentTable, ...]
    """In byte order of their keys."""
    covered: frozenset[ObjectKey]
    unreadable: tuple[UnreadableSegment, ...]
    covers: frozenset[ObjectKey] = frozenset()
    """All that the segments read stand for: `covered`, and segments that are not in the list."""


def fetch_segments(
    reader: ObjectReader,
    prefix: str,
    *,
    refs: Sequence[SegmentRef],
    max_requests: int = 16,
    part: SegmentPart | None = None,
) -> FetchedSegments:
    """Fetch and check the segments, largest first, with at most `max_requests` requests at a time. Safe to repeat.

    `part`: what of each segment is read and kept, for callers that need little of many rows.

    A segment that another one covers is left out, even an unreadable one. Damage is returned, not raised; errors of
    the network and `FormatUnsupported` are raised.
    """
    listed = {ref.key for ref in refs}
    # A compacted segment is larger than those it covers: met first, it saves fetching them.
    queue = _SegmentQueue(sorted(refs, key=lambda ref: (-(ref.size_bytes or 0), ref.key)))
    read: list[SegmentTable] = []
    unreadable: list[UnreadableSegment] = []

    def work() -> None:
        try:
            for ref in queue:
                outcome = fetch_table(reader, prefix, key=ref.key, part=part)
                if isinstance(outcome, SegmentTable):
                    queue.cover(segment_covers(outcome.table))
                    read.append(outcome)
                else:
                    unreadable.append(outcome)
        finally:
            queue.stop()  # after an error the other workers end too, instead of fetching in vain

    workers = max(1, min(max_requests, len(listed)))
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="durastore-manifest") as pool:
        jobs = [pool.submit(work) for _ in range(workers)]
        for job in jobs:
            job.result()
    return FetchedSegments(
        read=tuple(sorted((s for s in read if s.key not in queue.covered), key=lambda s: s.key.text.encode())),
        covered=frozenset(queue.covered & listed),
        unreadable=tuple(sorted((u for u in unreadable if u.key not in queue.covered), key=lambda u: u.key)),
        covers=frozenset(queue.covered),
    )


class _SegmentQueue:
    """Segments still to fetch, shared by the workers; covered ones are skipped when their turn comes."""

    def __init__(self, refs: list[SegmentRef]) -> None:
        self._lock = threading.Lock()
        self._left = iter(refs)
        self.covered: set[ObjectKey] = set()

    def cover(self, keys: Iterable[ObjectKey]) -> None:
        with self._lock:
            self.covered.update(keys)

    def stop(self) -> None:
        with self._lock:
            self._left = iter(())

    def __iter__(self) -> Iterator[SegmentRef]:
        return self

    def __next__(self) -> SegmentRef:
        with self._lock:
            return next(ref for ref in self._left if ref.key not in self.covered)


def fetch_table(
    reader: ObjectReader, prefix: str, *, key: ObjectKey, part: SegmentPart | None = None
) -> SegmentTable | UnreadableSegment:
    """One segment, checked against the digest in its key; one re-read where it does not match. Safe to repeat."""
    parts = parse_segment_key(prefix, key)
    if parts is None:
        return UnreadableSegment(key=key, reason="is no manifest segment by its name")
    reason = ""
    for _ in range(2):
        try:
            data = reader.fetch(key)
            if Digest.of(data).short != parts.short_digest:
                raise IntegrityError("its bytes do not match the digest in its name")
            table = parse_segment_table(data, columns=part.columns if part is not None else None)
            segment_covers(table)  # checked here, so that later calls cannot fail
            kept = part.rows(table) if part is not None and part.rows is not None else table
            return SegmentTable(key=key, table=_compact(kept))
        except ObjectAbsent:
            return UnreadableSegment(key=key, reason="is listed but absent")
        except IntegrityError as exc:
            reason = exc.message
    return UnreadableSegment(key=key, reason=reason)


def _compact(table: pa.Table) -> pa.Table:
    """The same table with repeated strings stored once (a million rows name a thousand keys)."""
    for at, field in enumerate(table.schema):
        if field.name not in _PLAIN_COLUMNS and pa.types.is_string(field.type):
            column = table.column(at).combine_chunks().dictionary_encode()
            table = table.set_column(at, field.name, column)
    return table
