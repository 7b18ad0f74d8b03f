"""Where the tensors of a batch go: into one piece of memory, cut before a byte of it is fetched.

Duty: from the rows of a batch alone, give every tensor of every sample its own place, tensors of one name side by side,
so that a batch of equal ones can be had without a copy. Must never give one place to two tensors.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from durastore.codec.decode import Room
from durastore.codec.dtypes import DTYPES
from durastore.codec.header import row_bytes, row_count
from durastore.model import VERBATIM_SCHEMA, SampleEntry
from durastore.read.sample import Wanted

__all__ = ["Slabs", "rooms_of"]

_ALIGN = 64

_Part = tuple[tuple[str, ...] | None, tuple[Any, Any, Any] | None]
"""What `Wanted` says, as something that can be looked up: names of tensors; start, stop and step of rows."""


class Slabs(Protocol):
    """Where memory for a batch comes from."""

    def slab(self, size_bytes: int) -> Any | None:
        """A torch vector of so many bytes that nobody else looks at, or None."""
        ...


def rooms_of(slabs: Slabs, entries: Sequence[SampleEntry], *, wanted: Wanted) -> list[Room | None]:
    """A room for each of these samples, which are one batch. The memory is asked for when the first one needs it."""
    batch = _Batch(slabs, entries, wanted=wanted)
    return [_SampleRoom(batch, at) for at in range(len(entries))]


@dataclass(frozen=True, slots=True)
class _Place:
    start: int
    end: int


class _Batch:
    """Thread-safe. Holds its memory while it has a room that may still be used; the tensors hold it by themselves."""

    def __init__(self, slabs: Slabs, entries: Sequence[SampleEntry], *, wanted: Wanted) -> None:
        self._slabs = slabs
        self._places, self._size = _layout(entries, wanted)
        self._lock = threading.Lock()
        self._slab: Any | None = None
        self._is_asked = False

    def take(self, key: tuple[str, int], size_bytes: int) -> Any | None:
        place = self._places.get(key)
        if place is None or place.end - place.start != size_bytes:
            return None  # the row is wrong about the sample: reading tells
        with self._lock:
            if not self._is_asked:
                self._slab, self._is_asked = self._slabs.slab(self._size), True
        return None if self._slab is None else self._slab[place.start : place.end]


class _SampleRoom:
    """One sample's part of a batch. May be used again only while nothing of it was handed out."""

    __slots__ = ("_at", "_batch")

    def __init__(self, batch: _Batch, at: int) -> None:
        self._batch = batch
        self._at = at

    def take(self, tensor: str, size_bytes: int) -> Any | None:
        return self._batch.take((tensor, self._at), size_bytes)


def _layout(entries: Sequence[SampleEntry], wanted: Wanted) -> tuple[dict[tuple[str, int], _Place], int]:
    names = None if wanted.tensors is None else tuple(wanted.tensors)
    rows = None if wanted.rows is None else (wanted.rows.start, wanted.rows.stop, wanted.rows.step)
    part = (names, rows)
    by_name: dict[str, list[tuple[int, int, int]]] = {}
    for at, entry in enumerate(entries):
        for name, size, item in _sizes(entry.schema, part):
            by_name.setdefault(name, []).append((at, size, item))
    places: dict[tuple[str, int], _Place] = {}
    end = 0
    for name, own in by_name.items():
        end = _aligned(end, _ALIGN)
        for at, size, item in own:
            start = _aligned(end, item)
            end = start + size
            places[name, at] = _Place(start, end)
    return places, end


def _aligned(offset: int, to: int) -> int:
    return -(-offset // to) * to


@lru_cache(maxsize=4096)  # samples of one run have few different schemas
def _sizes(schema: str, part: _Part) -> tuple[tuple[str, int, int], ...]:
    """Name, bytes and bytes of an element of each wanted tensor. Empty where this cannot be told: reading says why."""
    if schema == VERBATIM_SCHEMA:
        return ()
    names, rows = part
    found = []
    try:
        for name, dtype, shape, _ in json.loads(schema):
            if names is not None and name not in names:
                continue
            count = row_count(shape) if rows is None else len(range(*slice(*rows).indices(row_count(shape))))
            found.append((str(name), count * row_bytes(dtype, shape), DTYPES[dtype].item_bytes))
    except (ValueError, TypeError, KeyError):
        return ()
    return tuple(found)
