"""The resolved view: what a snapshot's segments say together.

Duty: the union of all rows, less tombstoned ones, with one winner an id; lookups by id and by position. A value once
made: a later snapshot gives another view. Must never hold a row whose segment was not checked, and never decide
anything about objects (it has not looked at them).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from durastore.errors import InvalidInput, ManifestIncomplete
from durastore.formats.segment import arrow_schema, row_at, rows_at, segment_runs, tombstone_at
from durastore.manifest.fetching import (
    FetchedSegments,
    SegmentPart,
    SegmentTable,
    UnreadableSegment,
    fetch_segments,
)
from durastore.manifest.index import IdIndex
from durastore.manifest.resolve import IdColumn, RowNumbers, digest_halves, id_digests, resolve_rows
from durastore.manifest.snapshot import ManifestListing, Snapshot, segments_id
from durastore.model import Digest, ManifestRow, ObjectKey, Run, SampleId, Tombstone
from durastore.objectstore.port import ObjectReader

__all__ = ["RANKED", "ResolvedView", "fetch_partial_view", "fetch_view"]

RANKED = ("kind", "sample_id", "run", "header_digest", "key", "offset")
"""The columns that decide which rows are live and which of them wins."""


def fetch_view(
    reader: ObjectReader,
    snapshot: Snapshot,
    *,
    max_requests: int = 16,
    part: SegmentPart | None = None,
) -> ResolvedView:
    """Fetch, check and resolve the segments of `snapshot`. Safe to repeat: the same snapshot gives the same view.

    `part`: as for `fetch_segments`; a view of part of the columns answers `batches` and `ids` only, and needs `RANKED`.
    Raises `ManifestIncomplete` where a segment is absent or damaged and no other segment covers it.
    """
    fetched = fetch_segments(reader, snapshot.prefix, refs=snapshot.segments, max_requests=max_requests, part=part)
    if fetched.unreadable:
        first, count = fetched.unreadable[0], len(fetched.unreadable)
        raise ManifestIncomplete(
            f"{count} of {len(snapshot.segments)} manifest segments are unreadable, e.g. {first.key}: {first.reason}",
            hint="run `durastore manifest rebuild`",
            keys=[u.key.text for u in fetched.unreadable],
        )
    return ResolvedView(snapshot.id, fetched)


def fetch_partial_view(
    reader: ObjectReader,
    listing: ManifestListing,
    *,
    part: SegmentPart | None = None,
) -> tuple[ResolvedView, tuple[UnreadableSegment, ...]]:
    """What a manifest with gaps or damage still says, and the segments that say nothing.

    For rebuilding and scrubs only: its rows are sound but not all there are, so it must never be served as a dataset.
    """
    fetched = fetch_segments(reader, listing.prefix, refs=listing.segments, part=part)
    return ResolvedView(segments_id(listing.segments), fetched), fetched.unreadable


class ResolvedView:
    """The samples of a snapshot, in byte order of their ids. Immutable, thread-safe, picklable.

    Of several live rows of one id the smallest (run, header digest, key, offset) is the sample; the others are
    `duplicates`. The same row in two segments counts once. Raises `IntegrityError` where a row's values are unsound.
    """

    def __init__(self, snapshot_id: Digest, fetched: FetchedSegments) -> None:
        self.snapshot_id = snapshot_id
        self.covered = fetched.covered
        """Segments that were left out because a compacted one holds their rows."""
        self._segments: tuple[SegmentTable, ...] = fetched.read
        self._starts: NDArray[np.int64] = np.cumsum([0, *(s.table.num_rows for s in self._segments)], dtype=np.int64)
        resolved = resolve_rows([segment.table for segment in self._segments])
        self._winners: RowNumbers = resolved.winners
        self._losers: RowNumbers = resolved.losers
        self._ids: IdColumn = resolved.winner_ids
        self._loser_ids: IdColumn = resolved.loser_ids

    def __len__(self) -> int:
        """Samples, each id once."""
        return len(self._winners)

    def __contains__(self, sample_id: object) -> bool:
        return isinstance(sample_id, SampleId) and self.position(sample_id) is not None

    @property
    def duplicate_count(self) -> int:
        return len(self._losers)

    @property
    def duplicates(self) -> tuple[ManifestRow, ...]:
        """The live rows that lost to a smaller row of their id, in order of the ids."""
        return tuple(self._row(int(number)) for number in self._losers)

    @property
    def runs(self) -> dict[Digest, Run]:
        """The runs whose text the segments carry, by digest."""
        return {run.digest: run for segment in self._segments for run in segment_runs(segment.table)}

    @property
    def run_counts(self) -> dict[Digest, int]:
        """Samples of each run."""
        counts: dict[Digest, int] = {}
        for table, mask in self._masked(self._winners):
            encoded = table.column("run").filter(mask).combine_chunks().dictionary_encode()
            found = np.bincount(encoded.indices.to_numpy(), minlength=len(encoded.dictionary))
            for name, count in zip(_values(encoded.dictionary), found.tolist(), strict=True):
                digest = Digest(name.hex())
                counts[digest] = counts.get(digest, 0) + count
        return counts

    def ids(self) -> list[str]:
        """All sample ids, sorted."""
        return _values(self._ids)

    def batches(
        self, columns: Sequence[str], *, rows: int = 65_536, with_duplicates: bool = False
    ) -> Iterator[pa.Table]:
        """The samples' rows in byte order of their ids, `rows` at a time, with these columns only.

        `with_duplicates`: after them, likewise, the live rows that lost to a smaller row of their id.
        """
        schema = arrow_schema()
        wanted = pa.schema([schema.field(name) for name in columns])
        for numbers in (self._winners, self._losers) if with_duplicates else (self._winners,):
            for low in range(0, len(numbers), rows):
                yield self._taken(numbers[low : low + rows], wanted)

    def _taken(self, numbers: RowNumbers, wanted: pa.Schema) -> pa.Table:
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        edges = np.searchsorted(ascending, self._starts)
        parts = [
            segment.table.select(wanted.names).take(ascending[low:high] - start).cast(wanted)
            for segment, start, low, high in zip(self._segments, self._starts, edges, edges[1:], strict=False)
            if high > low
        ]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_tables(parts).combine_chunks().take(back)

    def position(self, sample_id: SampleId) -> int | None:
        """Where the sample stands in the order of ids; None where there is none."""
        at = _bisect(self._ids, sample_id.text)
        return at if at < len(self._ids) and self._ids[at].as_py() == sample_id.text else None

    def row_at(self, position: int) -> ManifestRow:
        """The sample at `position` (0 to len - 1) in the order of ids; `IndexError` outside."""
        if not 0 <= position < len(self._winners):
            raise IndexError(f"position {position} of {len(self._winners)} samples")
        return self._row(int(self._winners[position]))

    def rows_at(self, positions: Sequence[int]) -> list[ManifestRow]:
        """The samples at `positions`, as `row_at` gives them, for less."""
        at = np.asarray(positions, dtype=np.int64)
        if len(at) and not 0 <= int(at.min()) <= int(at.max()) < len(self._winners):
            raise IndexError(f"positions {int(at.min())} to {int(at.max())} of {len(self._winners)} samples")
        numbers = self._winners[at]
        found: dict[int, ManifestRow] = {}
        segments = np.searchsorted(self._starts, numbers, side="right") - 1
        for segment in np.unique(segments).tolist():
            own = np.flatnonzero(segments == segment)
            rows = rows_at(self._segments[segment].table, (numbers[own] - self._starts[segment]).tolist())
            found.update(zip(own.tolist(), rows, strict=True))
        return [found[number] for number in range(len(at))]

    def id_at(self, position: int) -> str:
        """The id at `position`, without reading its row."""
        if not 0 <= position < len(self._ids):
            raise IndexError(f"position {position} of {len(self._ids)} samples")
        text: str = self._ids[position].as_py()
        return text

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Those of `ids` that have no live row, in the order given. `InvalidInput` where one is no text."""
        try:
            wanted = pa.array(ids, type=pa.large_string())
        except (pa.ArrowException, UnicodeEncodeError, TypeError) as exc:
            raise InvalidInput(f"not a list of sample ids: {exc}") from exc
        is_there = pc.is_in(wanted, value_set=self._ids).to_numpy(zero_copy_only=False)
        return [ids[int(at)] for at in np.flatnonzero(~is_there)]

    def row(self, sample_id: SampleId) -> ManifestRow | None:
        """The sample's row, or None."""
        at = self.position(sample_id)
        return None if at is None else self.row_at(at)

    def rows_of(self, sample_id: SampleId) -> list[ManifestRow]:
        """All live rows of the id, the winner first."""
        winner = self.row(sample_id)
        if winner is None:
            return []
        found = [winner]
        at = _bisect(self._loser_ids, sample_id.text)
        while at < len(self._loser_ids) and self._loser_ids[at].as_py() == sample_id.text:
            found.append(self._row(int(self._losers[at])))
            at += 1
        return found

    def object_keys(self) -> frozenset[ObjectKey]:
        """The objects that live rows name, those of duplicates included."""
        keys: set[str] = set()
        for table, mask in self._masked(self._live()):
            keys.update(_values(table.column("key").filter(mask).unique()))
        return frozenset(ObjectKey(key) for key in keys)

    def live_columns(self, names: Sequence[str]) -> pa.Table:
        """These columns of all live rows, duplicates included, as plain types. For work on millions of rows."""
        empty = arrow_schema().empty_table().select(list(names))
        parts = [empty, *(table.select(list(names)).filter(mask) for table, mask in self._masked(self._live()))]
        return pa.concat_tables(
            pa.table([_plain(part.column(name)) for name in names], names=list(names)) for part in parts
        )

    def tombstones(self) -> tuple[Tombstone, ...]:
        """Every tombstone of the segments read, also those whose row no segment has (yet)."""
        found: set[Tombstone] = set()
        for segment in self._segments:
            kinds = segment.table.column("kind").to_numpy()
            found.update(tombstone_at(segment.table, int(at)) for at in np.flatnonzero(kinds == "tombstone"))
        return tuple(sorted(found))

    def index(self, run: Digest | None = None) -> IdIndex:
        """A membership index of all live rows, duplicates included; with `run`, of this run's rows only (INV-8)."""
        ids, inputs, has_input = [], [], []
        for table, mask in self._masked(self._live()):
            rows = table.select(["sample_id", "input_digest", "run"]).filter(mask)
            if run is not None:
                rows = rows.filter(pc.equal(rows.column("run"), pa.scalar(bytes.fromhex(run.hex), type=pa.binary(16))))
            ids.append(id_digests(rows.column("sample_id")))
            inputs.append(digest_halves(rows.column("input_digest")))
            has_input.append(rows.column("input_digest").is_valid().to_numpy())
        none = np.empty((0, 2), dtype=np.uint64)
        return IdIndex.of_columns(
            np.concatenate([none, *ids]),
            np.concatenate([none, *inputs]),
            has_input=np.concatenate([np.empty(0, dtype=np.bool_), *has_input]),
        )

    def _live(self) -> RowNumbers:
        return np.concatenate([self._winners, self._losers])

    def _row(self, number: int) -> ManifestRow:
        segment = int(np.searchsorted(self._starts, number, side="right")) - 1
        return row_at(self._segments[segment].table, number - int(self._starts[segment]))

    def _masked(self, numbers: RowNumbers) -> Iterator[tuple[pa.Table, pa.BooleanArray]]:
        """Each segment's table with the mask of those of its rows that `numbers` name."""
        chosen = np.zeros(int(self._starts[-1]), dtype=np.bool_)
        chosen[numbers] = True
        for at, segment in enumerate(self._segments):
            yield segment.table, pa.array(chosen[int(self._starts[at]) : int(self._starts[at + 1])])


def _plain(column: Any) -> Any:
    """A column without dictionary, with texts as `large_string`."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return column.cast(pa.large_string() if pa.types.is_string(kind) else kind)


def _values(column: Any) -> list[Any]:
    """A column as a list. Typed loosely: the segment's parser has seen to it that required columns hold no nulls."""
    values: list[Any] = column.to_pylist()
    return values


def _bisect(ids: IdColumn, text: str) -> int:
    """First position whose id is not below `text`. Code point order is the byte order of UTF-8, by which `ids` sort."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if ids[middle].as_py() < text:
            low = middle + 1
        else:
            high = middle
    return low
