"""The objects that a manifest names, each with the rows that lie in it, as columns.

Duty: live rows -> one entry an object, found by key while a listing passes by; what cannot be true of the rows alone
(they contradict each other, or lead out of the prefix or the object) is a finding. Looks at no object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from durastore.errors import InvalidInput
from durastore.formats.keys import held_listing_prefixes, parse_pack_key, segment_listing_prefix
from durastore.formats.segment import arrow_schema
from durastore.manifest.view import RANKED, ResolvedView
from durastore.model import Digest, ObjectKey
from durastore.reconcile.findings import Finding, FindingKind

__all__ = ["HELD_COLUMNS", "HeldObject", "HeldObjects", "HeldRow"]

_FACTS = ("length", "header_length", "object_size", "object_digest", "crc64nvme", "schema")
HELD_COLUMNS = (*RANKED, *_FACTS)
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow:
    """One sample in an object."""

    sample_id: str
    offset: int
    length: int
    header_length: int
    header_digest: str
    schema: str

    @property
    def end(self) -> int:
        """First byte of the object behind the sample."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldObject:
    """One object and what the manifest says of it."""

    key: ObjectKey
    size_bytes: int
    digest: Digest
    crc64nvme: str
    """Empty where none is recorded."""


class HeldObjects:
    """All objects of a view, by number from 0 on."""

    def __init__(self, view: ResolvedView, prefix: str) -> None:
        columns = arrow_schema().empty_table().select(list(HELD_COLUMNS))
        parts = [_encoded(t) for t in (columns, *view.batches(list(HELD_COLUMNS), with_duplicates=True))]
        table = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
        keys: Any = table.column("key").combine_chunks()
        self._keys: Any = keys.dictionary
        self._table = table
        codes = keys.indices.to_numpy().astype(np.int64)
        offsets: Numbers = table.column("offset").to_numpy().astype(np.int64)
        self._order: Numbers = np.lexsort((offsets, codes)).astype(np.int64)
        self._starts: Numbers = np.searchsorted(codes[self._order], np.arange(len(self._keys) + 1)).astype(np.int64)
        self._hashes, self._by_hash = _hashed(self._keys)
        self._prefix = prefix
        self._places = held_listing_prefixes(prefix)
        self.astray = frozenset(n for n, key in enumerate(self._keys.to_pylist()) if self._is_astray(key))
        """Objects that no row of this store may name: nothing is asked about them."""

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def sizes(self) -> Numbers:
        """The recorded size of each object."""
        first = self._order[self._starts[:-1]]
        return self._table.column("object_size").to_numpy()[first].astype(np.int64)

    def key_text(self, number: int) -> str:
        """The object's key; of one that is `astray` perhaps none that an `ObjectKey` could be."""
        text: str = self._keys[number].as_py()
        return text

    def find(self, keys: Sequence[str]) -> list[int]:
        """The number of each key; -1 for keys that the manifest does not name."""
        hashes = np.array([_hash(key) for key in keys], dtype=np.uint64)
        places = np.searchsorted(self._hashes, hashes)
        return [self._number(key, int(place)) for key, place in zip(keys, places, strict=True)]

    def _number(self, key: str, place: int) -> int:
        wanted = np.uint64(_hash(key))
        while place < len(self._hashes) and self._hashes[place] == wanted:
            number = int(self._by_hash[place])
            if self.key_text(number) == key:
                return number
            place += 1
        return -1

    def object_at(self, number: int) -> HeldObject:
        """The object as the first of its rows has it. `InvalidInput` for keys that are none (`astray`)."""
        row = self._record(int(self._order[self._starts[number]]))
        return HeldObject(
            key=ObjectKey(self.key_text(number)),
            size_bytes=row["object_size"],
            digest=Digest(row["object_digest"].hex()),
            crc64nvme=row["crc64nvme"],
        )

    def rows_at(self, number: int) -> list[HeldRow]:
        """The samples in an object, in the order of their offsets; a place that two segments name once."""
        rows: list[HeldRow] = []
        for at in self._order[self._starts[number] : self._starts[number + 1]]:
            record = self._record(int(at))
            row = HeldRow(
                sample_id=record["sample_id"],
                offset=record["offset"],
                length=record["length"],
                header_length=record["header_length"],
                header_digest=record["header_digest"].hex(),
                schema=record["schema"],
            )
            if not rows or row != rows[-1]:
                rows.append(row)
        return rows

    def _record(self, at: int) -> dict[str, Any]:
        record: dict[str, Any] = self._table.slice(at, 1).to_pylist()[0]
        return record

    def contradictions(self) -> Iterator[Finding]:
        """What the rows alone show to be wrong; a finding for each object at fault and each reason."""
        for number in sorted(self.astray):
            yield self._astray_finding(number)
        for number in self._sound(self._disagreeing()):
            yield self._finding(number, FindingKind.DIVERGENT, detail="manifest rows disagree on its size or digest")
        for number in self._sound(self._beyond()):
            yield self._finding(
                number, FindingKind.DIVERGENT, detail="a manifest row points to bytes that it does not have"
            )
        for number in range(len(self)):
            parts = None if number in self.astray else parse_pack_key(self._prefix, ObjectKey(self.key_text(number)))
            if parts is not None and parts.short_digest != self.object_at(number).digest.short:
                yield self._finding(
                    number, FindingKind.DIVERGENT, detail="its key carries another digest than its rows"
                )

    def _is_astray(self, key: str) -> bool:
        try:
            ObjectKey(key)
        except InvalidInput:
            return True
        return not key.startswith(self._places)

    def _astray_finding(self, number: int) -> Finding:
        key = self.key_text(number)
        detail = f"a manifest row points to {ascii(key)[:200]}, outside of what this store may hold"
        try:
            return Finding(kind=FindingKind.DANGLING, key=ObjectKey(key), detail=detail)
        except InvalidInput:  # no key at all: told under the folder of the manifest that names it
            folder = segment_listing_prefix(self._prefix).removesuffix("/")
            return Finding(kind=FindingKind.DANGLING, key=ObjectKey(folder), detail=detail)

    def _disagreeing(self) -> list[int]:
        firsts = np.repeat(self._order[self._starts[:-1]], np.diff(self._starts))
        differs = np.zeros(len(self._order), dtype=np.bool_)
        for name in ("object_size", "object_digest"):
            column = self._table.column(name).combine_chunks()
            differs |= ~pc.equal(column.take(self._order), column.take(firsts)).to_numpy(zero_copy_only=False)
        return self._numbers_of(differs)

    def _beyond(self) -> list[int]:
        names = ("offset", "length", "header_length", "object_size")
        offset, length, header, size = (self._table.column(name).to_numpy()[self._order] for name in names)
        is_sound = (offset >= 0) & (header > 0) & (header <= length) & (length <= size - offset)
        return self._numbers_of(~is_sound)

    def _numbers_of(self, mask: NDArray[np.bool_]) -> list[int]:
        places = np.flatnonzero(mask)
        numbers = np.searchsorted(self._starts, places, side="right") - 1
        return [int(number) for number in np.unique(numbers)]

    def _sound(self, numbers: list[int]) -> list[int]:
        return [number for number in numbers if number not in self.astray]

    def _finding(self, number: int, kind: FindingKind, *, detail: str) -> Finding:
        return Finding(kind=kind, key=ObjectKey(self.key_text(number)), detail=detail)


def _encoded(table: pa.Table) -> pa.Table:
    """With what repeats stored once."""
    for name in ("key", "crc64nvme", "schema"):
        at = table.column_names.index(name)
        table = table.set_column(at, name, table.column(name).dictionary_encode())
    return table


def _hash(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode())


def _hashed(keys: Any) -> tuple[NDArray[np.uint64], Numbers]:
    """64-bit hashes of the keys, sorted, and whose they are. Only a pre-selection: the keys themselves are compared."""
    hashes = np.fromiter(map(_hash, keys.to_pylist()), dtype=np.uint64, count=len(keys))
    order = np.argsort(hashes, kind="stable").astype(np.int64)
    return hashes[order], order
