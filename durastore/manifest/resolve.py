"""The rule that turns the rows of many segments into one row an id. Vectorised and pure.

Duty: union, tombstones, identical rows once, the winner of each id. Must never depend on the order of the segments,
except between copies of one and the same row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from durastore.manifest.index import DigestPairs

__all__ = ["IdColumn", "ResolvedRows", "RowNumbers", "digest_halves", "id_digests", "live_mask", "resolve_rows"]

RowNumbers: TypeAlias = NDArray[np.int64]
"""Rows of all segments, counted through in the order of the segments."""

IdColumn: TypeAlias = "pa.Array[Any]"

_RANK = ("sample_id", "run", "header_digest", "key", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRows:
    """Row numbers and ids, both in byte order of the ids."""

    winners: RowNumbers
    winner_ids: IdColumn
    losers: RowNumbers
    loser_ids: IdColumn


def resolve_rows(tables: Sequence[pa.Table]) -> ResolvedRows:
    """The live rows of `tables`: one winner an id, the rest as losers, identical rows (id, key, offset) once."""
    live = np.flatnonzero(live_mask(tables)).astype(np.int64)
    chunks = [chunk for table in tables for chunk in table.column("sample_id").chunks]
    ids = pa.chunked_array(chunks, type=pa.string()).cast(pa.large_string()).combine_chunks().take(live)
    order = pc.sort_indices(ids).to_numpy().astype(np.int64)
    numbers, ids = live[order], ids.take(order)
    is_first = np.ones(len(numbers), dtype=np.bool_)
    if len(numbers) > 1:
        is_first[1:] = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    is_kept = np.ones(len(numbers), dtype=np.bool_)
    if not is_first.all():
        numbers, is_kept = _rank_groups(tables, numbers, is_first=is_first)
    wins, loses = is_first & is_kept, ~is_first & is_kept
    return ResolvedRows(
        winners=numbers[wins],
        winner_ids=ids if wins.all() else ids.filter(pa.array(wins)),
        losers=numbers[loses],
        loser_ids=ids.filter(pa.array(loses)),
    )


def live_mask(tables: Sequence[pa.Table]) -> NDArray[np.bool_]:
    """Which rows are rows (not tombstones) and not tombstoned by any table. Needs kind, sample_id, key and offset."""
    dead: set[tuple[str, str, int]] = set()
    masks = []
    for table in tables:
        is_row = pc.equal(table.column("kind"), pa.scalar("row")).to_numpy()
        masks.append(is_row)
        if not is_row.all():
            dead.update(_names(table.filter(pa.array(~is_row))))
    if dead:
        dead_ids = pa.array(sorted({sample_id for sample_id, _, _ in dead}), type=pa.string())
        for table, mask in zip(tables, masks, strict=True):
            maybe = np.flatnonzero(pc.is_in(table.column("sample_id"), value_set=dead_ids).to_numpy() & mask)
            if len(maybe):
                names = _names(table.take(maybe))
                mask[maybe] = [name not in dead for name in names]
    return np.concatenate([np.empty(0, dtype=np.bool_), *masks])


def _names(table: pa.Table) -> list[tuple[str, str, int]]:
    """What a tombstone names, of each row."""
    columns = (table.column(name).to_pylist() for name in ("sample_id", "key", "offset"))
    return list(zip(*columns, strict=True))


def _rank_groups(
    tables: Sequence[pa.Table], numbers: RowNumbers, *, is_first: NDArray[np.bool_]
) -> tuple[RowNumbers, NDArray[np.bool_]]:
    """Put rows that share an id into their rank, and unmark copies of one row. Rows alone with their id stay."""
    in_group = ~is_first
    in_group[:-1] |= ~is_first[1:]
    positions = np.flatnonzero(in_group)
    # Ascending row numbers = order of the segments; the sort below is stable, so of copies the first segment's stays.
    grouped = np.sort(numbers[positions])
    ranked = _gather(tables, grouped)
    order = _sort(ranked)
    ranked = ranked.take(order)
    # Groups are contiguous and ranked by id first, so the ranked rows fall into the same positions.
    numbers = numbers.copy()
    numbers[positions] = grouped[order.to_numpy()]
    is_kept = np.ones(len(numbers), dtype=np.bool_)
    is_kept[positions[1:]] = ~_equals_previous(ranked)
    return numbers, is_kept


def _gather(tables: Sequence[pa.Table], numbers: RowNumbers) -> pa.Table:
    """The ranking columns of the (ascending) row numbers, as one plain table."""
    starts = np.cumsum([0, *(table.num_rows for table in tables)])
    edges = np.searchsorted(numbers, starts)
    types: dict[str, pa.DataType] = {
        "sample_id": pa.large_string(),
        "run": pa.binary(16),
        "header_digest": pa.binary(16),
        "key": pa.large_string(),
        "offset": pa.int64(),
    }
    schema = pa.schema([(name, types[name]) for name in _RANK])
    parts = [
        table.select(list(_RANK)).take(pa.array(numbers[low:high] - start)).cast(schema)
        for table, start, low, high in zip(tables, starts, edges, edges[1:], strict=False)
        if high > low
    ]
    return pa.concat_tables(parts).combine_chunks()


def _sort(table: pa.Table) -> pa.UInt64Array:

    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in _RANK])


def _equals_previous(table: pa.Table) -> NDArray[np.bool_]:
    """Of each row but the first: whether it is the row before it once more (same id, key, offset and header)."""
    same = np.ones(table.num_rows - 1, dtype=np.bool_)
    for name in _RANK:
        column = table.column(name)
        same &= pc.equal(column.slice(1), column.slice(0, table.num_rows - 1)).to_numpy()
    return same


def id_digests(ids: Any) -> DigestPairs:
    """XXH3-128 of each id of a string column, as `SampleId.digest` computes it."""
    raw = b"".join(xxhash.xxh3_128_digest(text) for text in ids.cast(pa.binary()).to_pylist())
    return _halves(raw)


def digest_halves(digests: Any) -> DigestPairs:
    """A 16-byte digest column as pairs of numbers; nulls become zeros."""
    filled = pc.fill_null(digests.cast(pa.binary()), bytes(16))
    return _halves(b"".join(filled.to_pylist()))


def _halves(raw: bytes) -> DigestPairs:
    return np.frombuffer(raw, dtype=">u8").reshape(-1, 2).astype(np.uint64)
