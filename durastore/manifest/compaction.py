"""One segment in the place of many: the same dataset, in fewer requests.

Duty: write a segment with every live row and every tombstone of the segments that were read, which names these as
covered; readers then skip them. Order: read and check all segments -> render -> parse what was rendered and compare the
view of it with the view before -> put and read back. Removes nothing, so a compaction that ends anywhere leaves either
one more whole segment or none. Must never cover a segment that it did not read and check itself.

What other writers add meanwhile is not covered and stays. Tombstones are all kept: the row that one names may still
come, out of a segment that was written late or is written again by a rebuild. A segment covered by a covered one is
named too, because readers that skip the latter would never learn of the former.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from durastore.errors import IntegrityError, InvalidInput, ManifestIncomplete, NotVerified
from durastore.formats.segment import (
    COLUMNS,
    arrow_schema,
    parse_segment_table,
    render_segment_table,
    segment_covers,
    segment_runs,
)
from durastore.manifest.fetching import FetchedSegments, SegmentPart, SegmentTable, fetch_segments
from durastore.manifest.segments import publish_segment
from durastore.manifest.snapshot import Snapshot, fetch_snapshot
from durastore.manifest.view import ResolvedView
from durastore.model import Digest, ObjectKey, Run, WriterId
from durastore.objectstore.port import ObjectStore

__all__ = ["CompactionPlan", "CompactionReport", "execute_compaction", "plan_compaction"]

_EVERYTHING = SegmentPart(columns=tuple(COLUMNS))  # by name, so that repeated texts stay dictionaries
_NAMED = ("sample_id", "key", "offset")
_MAX_BYTES = 5_000_000_000  # what one PUT may carry


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What a compaction would write. Nothing was written for it."""

    snapshot: Snapshot
    covers: tuple[ObjectKey, ...]
    """The segments it read, and those that these cover. Empty: there is nothing to gain."""
    read_count: int
    """Segments that a reader has to fetch now."""
    read_bytes: int
    samples: int
    rows: int
    """Live rows, those that lost to a smaller row of their id included."""
    tombstones: int
    rows_left_out: int
    """Rows that a tombstone took out, and copies of one row."""
    data: bytes

    @property
    def is_needed(self) -> bool:
        """False where a reader would fetch no fewer segments after it."""
        return bool(self.covers)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What a compaction wrote; `segment` None where there was nothing to gain."""

    plan: CompactionPlan
    segment: ObjectKey | None


def plan_compaction(store: ObjectStore, prefix: str) -> CompactionPlan:
    """Read the manifest as it is listed now and render its compacted form. Writes nothing; safe to repeat.

    Raises `ManifestIncomplete` where a segment is missing or damaged: what cannot be read must not be covered.
    """
    snapshot = fetch_snapshot(store, prefix)
    fetched = fetch_segments(store, prefix, refs=snapshot.segments, part=_EVERYTHING)
    if fetched.unreadable:
        first = fetched.unreadable[0]
        raise ManifestIncomplete(
            f"{len(fetched.unreadable)} manifest segments are unreadable, e.g. {first.key}: {first.reason}",
            hint="run `durastore manifest rebuild` first; nothing was written",
            keys=[u.key.text for u in fetched.unreadable],
        )
    before = ResolvedView(snapshot.id, fetched)
    covers = _covers(fetched) if len(fetched.read) > 1 else ()
    stones = _tombstones(fetched)
    live = pa.concat_tables([_empty(), *before.batches(list(COLUMNS), with_duplicates=True)]) if covers else _empty()
    data = b""
    if covers:
        table = pa.concat_tables([live, stones])
        data = render_segment_table(table, runs=_runs(fetched), covers=covers)
        _check_same(before, data, stones=stones)
    sizes = {ref.key: ref.size_bytes or 0 for ref in snapshot.segments}
    held = sum(s.table.num_rows for s in fetched.read)
    rows = len(before) + before.duplicate_count
    return CompactionPlan(
        snapshot=snapshot,
        covers=covers,
        read_count=len(fetched.read),
        read_bytes=sum(sizes[s.key] for s in fetched.read),
        samples=len(before),
        rows=rows,
        tombstones=stones.num_rows,
        rows_left_out=held - _stone_count(fetched) - rows,
        data=data,
    )


def execute_compaction(store: ObjectStore, plan: CompactionPlan) -> CompactionReport:
    """Put the planned segment under a freshly minted writer and read it back; only then it counts.

    Safe to repeat with a new plan: equal rows count once, so a segment that was written and not seen does no harm. One
    that the endpoint damaged on the way is put again, under its own key; errors are those of `publish_segment`.
    """
    if not plan.is_needed:
        return CompactionReport(plan=plan, segment=None)
    writer = WriterId.mint()
    try:
        key = publish_segment(store, plan.data, prefix=plan.snapshot.prefix, writer=writer, seq=1)
    except IntegrityError:
        # a damaged segment would stop every reader, so the same bytes are sent once more before this is given up
        key = publish_segment(store, plan.data, prefix=plan.snapshot.prefix, writer=writer, seq=1)
    return CompactionReport(plan=plan, segment=key)


def _covers(fetched: FetchedSegments) -> tuple[ObjectKey, ...]:
    named = {segment.key for segment in fetched.read}
    for segment in fetched.read:
        named.update(segment_covers(segment.table))
    return tuple(sorted(named))


def _empty() -> pa.Table:
    return arrow_schema().empty_table()


def _stone_count(fetched: FetchedSegments) -> int:
    return sum(s.table.num_rows - int(np.count_nonzero(_is_row(s.table))) for s in fetched.read)


def _is_row(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return pc.equal(table.column("kind"), pa.scalar("row")).to_numpy()


def _tombstones(fetched: FetchedSegments) -> pa.Table:
    """Every tombstone once, in order of what it names."""
    parts = [s.table.filter(pa.array(~_is_row(s.table))).cast(arrow_schema()) for s in fetched.read]
    table = pa.concat_tables([_empty(), *parts]).combine_chunks()
    table = table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in (*_NAMED, "reason")]))
    if table.num_rows < 2:
        return table
    same = [_same_as_previous(table, name) for name in _NAMED]
    is_first = np.concatenate([[True], ~reduce(np.logical_and, same)])
    return table.filter(pa.array(is_first))


def _same_as_previous(table: pa.Table, name: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    column = table.column(name)
    return pc.equal(column.slice(1), column.slice(0, table.num_rows - 1)).to_numpy()


def _runs(fetched: FetchedSegments) -> list[Run]:
    runs = {run.digest: run for segment in fetched.read for run in segment_runs(segment.table)}
    return [runs[digest] for digest in sorted(runs)]


def _check_same(before: ResolvedView, data: bytes, *, stones: pa.Table) -> None:
    """The rendered bytes, read as any reader will, say what all the segments said. Else nothing is published."""
    if len(data) > _MAX_BYTES:
        raise InvalidInput(f"the compacted segment would have {len(data)} bytes, more than one request can carry")
    key = ObjectKey("manifest/compacted")
    read = SegmentTable(key=key, table=parse_segment_table(data, columns=_EVERYTHING.columns))
    after = ResolvedView(Digest.of(data), FetchedSegments(read=(read,), covered=frozenset(), unreadable=()))
    columns = list(COLUMNS)
    pairs = zip(
        before.batches(columns, with_duplicates=True), after.batches(columns, with_duplicates=True), strict=True
    )
    is_same = len(before) == len(after) and all(one.equals(other) for one, other in pairs)
    kept = _tombstones(FetchedSegments(read=(read,), covered=frozenset(), unreadable=()))
    if not is_same or not kept.equals(stones) or before.runs != after.runs:
        raise NotVerified(
            "the compacted segment does not say what the segments say together; nothing was written",
            hint="report this; the manifest is as it was",
        )
