"""Joins of columns: which of these names are among those. Vectorised and pure.

Duty: positions and masks over Arrow and numpy columns of millions of rows. Names are compared as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import xxhash
from numpy.typing import NDArray

from durastore.reconcile.local import Texts

__all__ = [
    "NONE",
    "KeyTable",
    "Mask",
    "Rows",
    "TextBuilder",
    "array_of",
    "chosen",
    "hashes_of",
    "hex_of",
    "joined",
    "names_of",
    "pairs",
    "positions",
    "with_texts",
]

_compute: Any = pyarrow.compute  # its stubs know neither large strings nor what its functions return

_CHUNK = 50_000
_DIGEST_BYTES = 16
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_LARGE = 200_000

NONE = -1
"""Position of a name that is not there."""

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTable:
    """Keys and sizes, unordered; a size of -1 is unknown."""

    keys: Texts
    sizes: Rows

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Mask | Rows) -> KeyTable:
        return KeyTable(keys=chosen(self.keys, rows), sizes=self.sizes[rows])


class TextBuilder:
    """One column of texts, grown in place: a million keys are never held twice while they come."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ends: list[NDArray[np.int64]] = [np.zeros(1, dtype=np.int64)]
        self._count = 0

    def add(self, values: Sequence[bytes]) -> None:
        """Append texts, as UTF-8."""
        self._add(values, data=b"".join(values))

    def add_texts(self, values: Sequence[str]) -> None:
        """Append texts. Where they are ASCII, no object is made of each."""
        data = "".join(values).encode()
        if len(data) == sum(map(len, values)):
            self._add(values, data=data)
        else:
            self.add([value.encode() for value in values])

    def add_column(self, column: Any) -> None:
        """Append a column of texts without nulls. No object is made of any of them."""
        held: Any = column.cast(pa.large_binary())
        ends = np.frombuffer(held.buffers()[1] or bytes(8), dtype=np.int64)[held.offset : held.offset + len(held) + 1]
        if held.null_count or not len(held):
            self.add(held.to_pylist())  # TypeError for a null
            return
        self._ends.append(ends[1:] - ends[0] + len(self._data))
        self._data += memoryview(held.buffers()[2] or b"")[ends[0] : ends[-1]]
        self._count += len(held)

    def _add(self, values: Sequence[bytes] | Sequence[str], *, data: bytes) -> None:
        lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
        self._ends.append(np.cumsum(lengths) + len(self._data))
        self._data += data
        self._count += len(values)

    def finish(self) -> Texts:
        """The column. The builder is not to be used after it."""
        ends: Any = np.concatenate(self._ends)
        column: Texts = pa.Array.from_buffers(
            pa.large_string(), self._count, [None, pa.py_buffer(ends), pa.py_buffer(self._data)]
        )
        column.validate(full=True)
        return column


def positions(names: Texts, among: Texts) -> Rows:
    """For each of `names` its position in `among`, or `NONE`. Of equal ones in `among` the first."""
    if len(among) > _LARGE and len(names) > _LARGE:
        rows = _positions_by_hash(names, among)
        if rows is not None:
            return rows
    if len(among) > len(names):
        # the table is made of the fewer names: where each of them first is, and then where its first equal is
        rows = np.full(len(names) + 1, NONE, dtype=np.int64)
        owners = _index_in(among, names)
        hits = np.flatnonzero(owners != NONE)[::-1]  # so that the first of equal ones is written last
        rows[owners[hits]] = hits
        return rows[_index_in(names, names)]
    return _index_in(names, among)


def _index_in(names: Texts, among: Texts) -> Rows:
    found = _compute.fill_null(_compute.index_in(names, value_set=among), NONE)
    rows: Rows = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return rows


def _positions_by_hash(names: Texts, among: Texts) -> Rows | None:
    """As `positions`, in 8 bytes a name instead of a table of all names; None where two hashes of `among` are equal.

    Names whose hashes are equal are compared themselves: a hash decides nothing.
    """
    wanted, held = hashes_of(names), hashes_of(among)
    order = np.argsort(held)
    held = held[order]
    if len(held) > 1 and bool((held[1:] == held[:-1]).any()):
        return None
    at = np.minimum(np.searchsorted(held, wanted), len(held) - 1)
    rows: Rows = np.where(held[at] == wanted, order[at], NONE).astype(np.int64)
    for start in range(0, len(names), _CHUNK):
        part = rows[start : start + _CHUNK]
        hits = np.flatnonzero(part != NONE)
        same = _compute.equal(chosen(names, hits + start), chosen(among, part[hits]))
        if not same.to_numpy(zero_copy_only=False).all():
            return None
    return rows


def chosen(names: Texts, rows: Mask | Rows) -> Texts:
    """The names at these positions, or where the mask is true."""
    at: Any = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
    return names.take(array_of(at))


def array_of(values: Mask | Rows) -> Any:
    """Numbers or truths as an array of Arrow's. (`pa.array` would import numpy's masked arrays to ask for a mask: on
    the first call that takes as long as all joins of 100,000 names.)
    """
    if values.dtype == np.bool_:
        bits: Any = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])
    numbers: Any = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def hashes_of(names: Texts) -> NDArray[np.uint64]:
    """A 64-bit hash of each name. Equal ones may be equal names; different ones are different names."""
    found = np.empty(len(names), dtype=np.uint64)
    for start in range(0, len(names), _CHUNK):
        part: Any = names.slice(start, _CHUNK).cast(pa.large_binary()).to_pylist()
        found[start : start + len(part)] = [xxhash.xxh3_64_intdigest(name) for name in part]
    return found


def hex_of(digests: Texts) -> Texts:
    """16-byte digests as 32 hex digits each. ValueError where one lacks."""
    held: Any = digests
    if held.null_count or held.type != pa.binary(_DIGEST_BYTES):
        raise ValueError(f"{held.null_count} of {len(held)} rows have no digest, of {held.type}")
    start = held.offset * _DIGEST_BYTES
    values = np.frombuffer(held.buffers()[1] or b"", dtype=np.uint8)[start : start + len(held) * _DIGEST_BYTES]
    text = np.empty((len(values), 2), dtype=np.uint8)
    text[:, 0], text[:, 1] = _HEX_DIGITS[values >> 4], _HEX_DIGITS[values & 15]
    ends: Any = np.arange(len(held) + 1, dtype=np.int64) * 32
    found: Texts = pa.Array.from_buffers(
        pa.large_string(), len(held), [None, pa.py_buffer(ends), pa.py_buffer(text.tobytes())]
    )
    return found


def names_of(names: Texts) -> list[str]:
    """The texts as a list."""
    found: Any = names.to_pylist()
    return list(found)


def with_texts(names: Texts, more: Texts) -> Texts:
    """Both as one name, NUL between them."""
    joined: Texts = _compute.binary_join_element_wise(names, more, pa.scalar("\0", pa.large_string()))
    return joined


def joined(columns: Sequence[Texts | Rows]) -> Texts:
    """Several columns as one, NUL between them; numbers in decimal."""
    plain: list[Any] = [
        array_of(each).cast(pa.large_string()) if isinstance(each, np.ndarray) else each for each in columns
    ]
    found: Texts = _compute.binary_join_element_wise(*plain, pa.scalar("\0", pa.large_string()))
    return found


def pairs(names: Texts, sizes: Rows) -> Texts:
    """Name and size as one name, so that both are joined at once. (NUL is in no name.)"""
    numbers: Any = array_of(sizes).cast(pa.large_string())
    return with_texts(names, numbers)
