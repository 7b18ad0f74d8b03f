"""What a dataset holds, as a stream in byte order of the ids: for people, for scripts, for 10^7 samples.

Duty: manifest segments -> batches of listed samples, with only the columns in memory that a listing shows. Looks at no
pack: it tells what the manifest says. Must never hold a Python object for every sample at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from durastore.errors import IntegrityError
from durastore.manifest.fetching import SegmentPart
from durastore.manifest.presence import fetch_present_snapshot
from durastore.manifest.view import RANKED, ResolvedView, fetch_view
from durastore.model import VERBATIM_SCHEMA, Digest, parse_json
from durastore.objectstore.port import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ListedSample", "ListedTensor", "Listing", "fetch_listing_of"]

_SHOWN = ("length", "schema", "time_ns", "provenance")
_BATCH_ROWS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTensor:
    """One tensor of a listed sample."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    codec: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSample:
    """What the manifest says of one sample."""

    id: str
    size_bytes: int
    """Of the sample as it is stored."""
    digest: str
    """XXH3-128 of its header, which covers all of it."""
    key: str
    time_ns: int
    provenance: str
    tensors: tuple[ListedTensor, ...]
    """Empty for a file that is kept as it was."""
    meta: dict[str, object] | None
    """None where it was not asked for."""


class Listing:
    """The samples of one snapshot. Iterating gives batches; `ids` gives the ids alone, many times quicker."""

    def __init__(self, view: ResolvedView, *, has_meta: bool) -> None:
        self._view = view
        self._has_meta = has_meta
        self.snapshot_id = view.snapshot_id

    def __len__(self) -> int:
        return len(self._view)

    def ids(self) -> Iterator[list[str]]:
        """The ids in batches, in byte order."""
        for table in self._view.batches(["sample_id"], rows=_BATCH_ROWS):
            yield _values(table, "sample_id")

    def __iter__(self) -> Iterator[list[ListedSample]]:
        """Batches in byte order of the ids. `IntegrityError` where a row's schema or meta is not what it has to be."""
        columns = [*RANKED, *_SHOWN, *(["meta"] if self._has_meta else [])]
        for table in self._view.batches(columns, rows=_BATCH_ROWS):
            yield _samples(table)


def fetch_listing_of(store: ObjectStore, prefix: str, *, id_prefix: str = "", with_meta: bool = False) -> Listing:
    """The samples whose id begins with `id_prefix`, as the manifest is listed now. Safe to repeat.

    Raises `StoreMissing` where there is no store, `ManifestIncomplete` where a segment is missing or damaged.
    """
    import pyarrow.compute as pc

    snapshot = fetch_present_snapshot(store, prefix)
    columns = (*RANKED, *_SHOWN, *(["meta"] if with_meta else []))

    def begin_so(table: pa.Table) -> pa.Table:
        return table.filter(pc.starts_with(table.column("sample_id"), pattern=id_prefix))

    part = SegmentPart(columns=columns, rows=begin_so if id_prefix else None)
    return Listing(fetch_view(store, snapshot, part=part), has_meta=with_meta)


def _values(table: pa.Table, name: str) -> list[str]:
    values: list[Any] = table.column(name).to_pylist()
    return values


def _samples(table: pa.Table) -> list[ListedSample]:
    columns: dict[str, list[Any]] = {name: table.column(name).to_pylist() for name in table.column_names}
    metas = [_parse_meta(text) for text in columns["meta"]] if "meta" in columns else [None] * table.num_rows
    return [
        ListedSample(
            id=columns["sample_id"][at],
            size_bytes=columns["length"][at],
            digest=Digest(columns["header_digest"][at].hex()).hex,
            key=columns["key"][at],
            time_ns=columns["time_ns"][at],
            provenance=columns["provenance"][at],
            tensors=_tensors(columns["schema"][at]),
            meta=metas[at],
        )
        for at in range(table.num_rows)
    ]


def _parse_meta(text: str) -> dict[str, object]:
    value = parse_json(text, what="meta of a manifest row")
    if not isinstance(value, dict):
        raise IntegrityError("the meta of a manifest row is not a JSON object")
    return value


@lru_cache(maxsize=4096)  # samples of one run have few different schemas
def _tensors(schema: str) -> tuple[ListedTensor, ...]:
    if schema == VERBATIM_SCHEMA:
        return ()
    try:
        return tuple(
            ListedTensor(name=name, dtype=dtype, shape=tuple(int(extent) for extent in shape), codec=codec)
            for name, dtype, shape, codec in json.loads(schema)
        )
    except (ValueError, TypeError) as exc:
        raise IntegrityError(f"the schema of a manifest row cannot be read: {schema[:100]}") from exc
