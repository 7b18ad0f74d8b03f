"""What the bucket lists and what its manifest says, as columns.

Duty: of each listing and of the manifest only what an inventory compares, so that millions of rows fit into memory.
Must never hand out a part of a listing (INV-6).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from durastore.manifest.fetching import SegmentPart, fetch_segments
from durastore.manifest.resolve import live_mask
from durastore.manifest.snapshot import ManifestListing, SegmentGap, fetch_listing
from durastore.manifest.view import ResolvedView, fetch_partial_view
from durastore.model import ObjectKey
from durastore.objectstore.columns import list_columns
from durastore.objectstore.folders import list_folder
from durastore.objectstore.port import ObjectLister, ObjectReader, ObjectStore
from durastore.reconcile.columns import NONE, KeyTable, Mask, Rows, TextBuilder, array_of, chosen, hashes_of
from durastore.reconcile.local import Texts, texts

__all__ = ["FileRows", "ManifestFacts", "load_keys", "load_manifest"]

_compute: Any = pyarrow.compute
_COLUMNS = ("kind", "sample_id", "key", "offset", "object_size", "object_digest", "reason")
_MANY_KEYS = 4_000
_FEW_KEYS = 200_000
_FOLDER_KEYS = 500
"""A folder should have that many on average: each costs a request of its own."""
_LISTINGS = 4
_AT_ONCE = 1  # a segment of 50,000 rows takes some 30 MB while it is parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """The live rows of files: paths (as they are ids, not distinct), keys, sizes, digests, and which segment."""

    paths: Texts
    keys: Texts
    sizes: Rows
    digests: Texts
    segments: Rows
    """Position among the manifest's segments that were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFacts:
    """The manifest as it is, gaps and damage included."""

    listing: ManifestListing
    row_count: int
    """Live rows, duplicates included."""
    objects: KeyTable
    """Objects that live rows name, each once."""
    dead: Texts
    """Keys that a row taken out or a tombstone names; live rows may name them too."""
    buried: Texts
    """Keys that a tombstone for a loss names, where no live row has the sample."""
    files: FileRows
    read: tuple[ObjectKey, ...]
    """The segments that were read."""
    unreadable: tuple[ObjectKey, ...]
    """Segments that are damaged, or gone although a journal saw them published."""
    covers: frozenset[ObjectKey]
    """Segments that those read stand for, listed or not."""
    segments: KeyTable

    @property
    def gaps(self) -> tuple[SegmentGap, ...]:
        return self.listing.gaps

    @property
    def is_whole(self) -> bool:
        return not (self.gaps or self.unreadable)

    def fetch_view(self, reader: ObjectReader) -> ResolvedView:
        """The whole of the segments that were listed, for the few that need rows in full. Network errors pass."""
        return fetch_partial_view(reader, self.listing)[0]


def load_keys(store: ObjectLister, prefix: str, *, expected: int = 0) -> KeyTable:
    """Everything listed below `prefix`, or the error of the listing. Safe to repeat.

    `expected`: about how many keys that will be. Of many, the folders right below are listed beside each other, where
    they are few and the store names them: a listing is one request after the other, each waiting for the server.
    """
    below = list_folder(store, prefix) if expected >= _MANY_KEYS else None
    if below is None or not 1 < len(below.folders) <= expected // _FOLDER_KEYS:
        return _load_row(store, prefix)
    own = KeyTable(keys=texts(below.page.keys), sizes=np.array(below.page.sizes, dtype=np.int64))
    with ThreadPoolExecutor(_LISTINGS, "durastore-keys") as pool:
        futures = [pool.submit(_load_row, store, folder) for folder in below.folders]
        try:
            tables = [own, *(future.result() for future in futures)]
        finally:  # where one of them fails there is no listing: the others need not be finished
            for future in futures:
                future.cancel()
    keys = pa.concat_arrays([table.keys for table in tables])
    return KeyTable(keys=keys, sizes=np.concatenate([table.sizes for table in tables]))


def _load_row(store: ObjectLister, prefix: str) -> KeyTable:
    keys = TextBuilder()
    sizes = [np.empty(0, dtype=np.int64)]
    for page in list_columns(store, prefix):
        keys.add_texts(page.keys)
        sizes.append(np.array(page.sizes, dtype=np.int64))
    return KeyTable(keys=keys.finish(), sizes=np.concatenate(sizes))


def load_manifest(store: ObjectStore, prefix: str, *, files_below: str) -> ManifestFacts:
    """List and fetch the manifest; gaps and damaged segments are in the result. Network errors pass.

    `files_below`: the prefix of the keys of files.
    """
    listing = fetch_listing(store, prefix)
    part = SegmentPart(columns=_COLUMNS)
    fetched = fetch_segments(store, prefix, refs=listing.segments, max_requests=_AT_ONCE, part=part)
    tables = [segment.table for segment in fetched.read]
    masks = _split(live_mask(tables), tables)
    read = tuple(segment.key for segment in fetched.read)
    unreadable = tuple(segment.key for segment in fetched.unreadable)
    dead, buried, files = _dead(tables, masks), _buried(tables, masks), _files(tables, masks, below=files_below)
    covers = fetched.covers
    del fetched
    pa.default_memory_pool().release_unused()
    objects = _objects(tables, masks)
    pa.default_memory_pool().release_unused()  # of the tables, lest the pool keep it while keys are listed
    return ManifestFacts(
        listing=listing,
        row_count=sum(int(mask.sum()) for mask in masks),
        objects=objects,
        dead=dead,
        buried=buried,
        files=files,
        read=read,
        unreadable=unreadable,
        covers=covers,
        segments=KeyTable(
            keys=texts([ref.key.text for ref in listing.segments]),
            sizes=np.array([-1 if ref.size_bytes is None else ref.size_bytes for ref in listing.segments], np.int64),
        ),
    )


def _starting_with(column: Any, lead: str) -> Mask:
    """Of a dictionary-encoded column: the few distinct values are looked at, not each row's."""
    encoded = column.combine_chunks()
    is_value = _compute.starts_with(encoded.dictionary, pattern=lead).to_numpy(zero_copy_only=False).astype(np.bool_)
    mask: Mask = is_value[encoded.indices.to_numpy(zero_copy_only=False)] if len(is_value) else np.zeros(0, np.bool_)
    return mask


def _split(mask: Mask, tables: Sequence[pa.Table]) -> list[Mask]:
    if not tables:
        return []
    ends: Rows = np.cumsum([table.num_rows for table in tables])[:-1]
    return list(np.split(mask, ends))


def _objects(tables: list[pa.Table], masks: Sequence[Mask]) -> KeyTable:
    """Each object that live rows name once; within a segment by its dictionary, then over all. Empties `tables`: of a
    million rows that are packs of one, each copy of the keys that is not made counts.
    """
    keys = TextBuilder()
    sizes = [np.empty(0, dtype=np.int64)]
    for mask in masks:
        table = tables.pop(0)
        rows = np.flatnonzero(mask)
        encoded: Any = table.column("key").combine_chunks()
        distinct = encoded.dictionary
        codes, first = _firsts(encoded.indices.to_numpy(zero_copy_only=False)[rows], below=len(distinct))
        if len(codes) < len(distinct):
            distinct = distinct.take(array_of(codes))
        keys.add_column(distinct)
        sizes.append(table.column("object_size").to_numpy()[rows[first]].astype(np.int64))
    joined, all_sizes = keys.finish(), np.concatenate(sizes)
    if _are_distinct(joined):
        return KeyTable(keys=joined, sizes=all_sizes)
    codes = joined.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    _, first = _firsts(codes, below=len(codes))
    return KeyTable(keys=chosen(joined, first), sizes=all_sizes[first])


def _are_distinct(keys: Texts) -> bool:
    """False also where two of many only have one hash: then they are compared themselves. A table of many would take
    more memory than there is to spare, and hashes of few more time.
    """
    if len(keys) <= _FEW_KEYS:
        return len(_compute.unique(keys)) == len(keys)
    hashes = hashes_of(keys)
    hashes.sort()
    return not (hashes[1:] == hashes[:-1]).any()


def _firsts(codes: Any, *, below: int) -> tuple[Rows, Rows]:
    """The codes there are, ascending, and the row of the first of each. (`np.unique` sorts them, and on its first call
    imports masked arrays.)
    """
    at = np.full(below, NONE, dtype=np.int64)
    at[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # of equal ones the last that is written stays: the first row
    found = np.flatnonzero(at != NONE)
    return found, at[found]


def _dead(tables: Sequence[pa.Table], masks: Sequence[Mask]) -> Texts:
    keys: list[Texts] = [texts([])]
    for table, mask in zip(tables, masks, strict=True):
        if not mask.all():
            column: Any = table.column("key").filter(array_of(~mask))
            keys.append(_compute.unique(column.combine_chunks().dictionary_decode().cast(pa.large_string())))
    found: Texts = _compute.unique(pa.concat_arrays(keys))
    return found


def _buried(tables: Sequence[pa.Table], masks: Sequence[Mask]) -> Texts:
    """A row that was taken out for a loss, and whose sample was made again since, is no loss any more."""
    lost: set[tuple[Any, Any]] = set()
    for table in tables:
        is_lost = _compute.fill_null(_compute.equal(table.column("reason").cast(pa.string()), "lost"), False)
        found = table.filter(_compute.and_(is_lost, _compute.equal(table.column("kind"), pa.scalar("tombstone"))))
        lost.update(zip(found.column("sample_id").to_pylist(), found.column("key").to_pylist(), strict=True))
    if not lost:
        return texts([])
    wanted = pa.array(sorted({sample_id for sample_id, _ in lost}), pa.string())
    live: set[Any] = set()
    for table, mask in zip(tables, masks, strict=True):
        ids = table.column("sample_id").filter(array_of(mask))
        live.update(ids.filter(_compute.is_in(ids, value_set=wanted)).to_pylist())
    return texts(sorted({key for sample_id, key in lost if sample_id not in live}))


def _files(tables: Sequence[pa.Table], masks: Sequence[Mask], *, below: str) -> FileRows:
    paths: list[Texts] = [texts([])]
    keys: list[Texts] = [texts([])]
    digests: list[Any] = [pa.array([], pa.binary(16))]
    sizes = [np.empty(0, dtype=np.int64)]
    segments = [np.empty(0, dtype=np.int64)]
    for number, (table, mask) in enumerate(zip(tables, masks, strict=True)):
        is_file = _starting_with(table.column("key"), below)
        live: Any = table.filter(array_of(mask & is_file)).combine_chunks()
        if not live.num_rows:
            continue
        paths.append(live.column("sample_id").combine_chunks().cast(pa.large_string()))
        keys.append(live.column("key").combine_chunks().dictionary_decode().cast(pa.large_string()))
        digests.append(live.column("object_digest").combine_chunks())
        sizes.append(live.column("object_size").to_numpy().astype(np.int64))
        segments.append(np.full(live.num_rows, number, dtype=np.int64))
    return FileRows(
        paths=pa.concat_arrays(paths),
        keys=pa.concat_arrays(keys),
        sizes=np.concatenate(sizes),
        digests=pa.concat_arrays(digests),
        segments=np.concatenate(segments),
    )
