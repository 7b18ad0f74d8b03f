"""Which samples of a view are read.

Duty: turn ids and a filter on the samples' meta into sorted positions, from the manifest alone. Must never fetch a
sample, and never leave out silently what was asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from durastore.dataset.order import Positions
from durastore.errors import InvalidInput, SampleAbsent
from durastore.manifest.view import ResolvedView
from durastore.model import Digest, SampleId, parse_json

__all__ = ["Where", "layout_of", "positions_of", "positions_where", "selection_digest"]

Where = Mapping[str, Any] | Callable[[dict[str, Any]], bool]
"""What the meta of a sample has to be: equal in these members, or something the callable says yes to."""


def positions_of(view: ResolvedView, ids: Sequence[str]) -> Positions:
    """The positions of these ids, sorted. Raises `SampleAbsent` naming the first that is not there."""
    if isinstance(ids, str):
        raise InvalidInput("ids are a list, not one text", hint=f"use [{ids!r}]")
    found = []
    for text in ids:
        position = view.position(SampleId(text))
        if position is None:
            absent = view.missing(list(ids))
            raise SampleAbsent(f"{len(absent)} of {len(ids)} ids are not in the dataset, e.g. {absent[0]!r}")
        found.append(position)
    positions = np.unique(np.array(found, dtype=np.int64))
    if len(positions) != len(found):
        raise InvalidInput(f"{len(found) - len(positions)} ids are there twice")
    return positions


def positions_where(view: ResolvedView, where: Where) -> Positions:
    """The positions of the samples whose meta fits, sorted. Equal texts of meta are looked at once."""
    found = [np.empty(0, dtype=np.int64)]
    start = 0
    for batch in view.batches(["meta"]):
        encoded = batch.column("meta").combine_chunks().dictionary_encode()
        texts: list[Any] = encoded.dictionary.to_pylist()
        fits = np.array([_fits(parse_json(text, what="meta of a sample"), where) for text in texts], dtype=np.bool_)
        found.append(np.flatnonzero(fits[encoded.indices.to_numpy()]) + start)
        start += len(encoded)
    return np.concatenate(found)


def layout_of(view: ResolvedView, positions: Positions | None) -> Positions:
    """The numbers 0 to n - 1 of these positions (None: all) in the order in which the samples lie in the bucket."""
    columns = [(batch.column("key"), batch.column("offset")) for batch in view.batches(["key", "offset"])]
    if not columns:
        return np.empty(0, dtype=np.int64)
    keys = pa.chunked_array([chunk for key, _ in columns for chunk in key.chunks]).combine_chunks().dictionary_encode()
    names: list[Any] = keys.dictionary.to_pylist()
    rank = np.empty(len(names), dtype=np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    offsets = np.concatenate([offset.to_numpy() for _, offset in columns])
    layout = np.lexsort((offsets, rank[keys.indices.to_numpy()])).astype(np.int64)
    if positions is None:
        return layout
    place = np.empty(len(layout), dtype=np.int64)
    place[layout] = np.arange(len(layout))
    return np.argsort(place[positions], kind="stable").astype(np.int64)


def selection_digest(positions: Positions | None) -> Digest:
    """One digest for one set of positions; that of all of them (None) says nothing of how many those are."""
    return Digest.of(b"all" if positions is None else positions.astype("<i8").tobytes())


def _fits(meta: dict[str, Any], where: Where) -> bool:
    if callable(where):
        return bool(where(meta))
    return all(name in meta and meta[name] == value for name, value in where.items())
