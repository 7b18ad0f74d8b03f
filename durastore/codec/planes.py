"""Codec `planes-zstd`: the bytes of a chunk's elements sorted into planes, and each plane compressed where that pays.

Duty: one chunk into its stored form and back, without losing a bit. The highest plane of a bf16 is its whole exponent,
which is what compresses in hidden states, the better if the middle exponent of each channel is taken off first. Stored
bytes are not to be trusted: every length is checked before anything is allocated for it. Source:
`docs/format/sample.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from durastore.codec.columns import majority, middle, near_middle
from durastore.codec.frames import FrameFault, compress, decompress
from durastore.codec.words import has_sign, join_words, plane_count, split_words

if TYPE_CHECKING:
    import numpy as np

    Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

__all__ = ["CODEC", "LEAST_SAVING", "Piece", "PlanesFault", "decode_chunk", "encode_chunk", "stored_bounds"]

CODEC = "planes-zstd"
Piece: TypeAlias = bytes | memoryview
LEAST_SAVING = 0.03
_LEAST_SAVING_APART = 0.002
_PROBE_BYTES = 1 << 12
_ROW, _APART, _FLIPPED = 1, 2, 4
_MOST_RATIO = 1 << 15  # of zstd: a block of 128 KiB takes at least 4 bytes
_MOST_DIGITS = 9  # of a number: 63 bits


class PlanesFault(ValueError):
    """These stored bytes are not what a writer of this codec makes."""


def stored_bounds(dtype: str, *, raw_bytes: int) -> tuple[int, int]:
    """Least and greatest stored size that a chunk of `raw_bytes` can have: a few bytes are no claim to gigabytes."""
    head = 1 + plane_count(dtype)
    return head + raw_bytes // _MOST_RATIO, head + raw_bytes


def encode_chunk(data: memoryview, dtype: str, *, columns: int, is_dense: bool) -> list[Piece]:
    """The stored form of whole elements `data`, as pieces in order; what pays is tried on a small part of each plane.

    `columns` are the words of a row (`columns_of`), of which each column may have a middle value of its own; 0: none.
    `is_dense` takes twice the time for about a percent of size: exact middle values, and the signs apart.
    """
    planes = split_words(data, dtype, may_borrow=True)
    form, pieces = 0, list[Piece]()
    if columns and _add_without_row(pieces, planes[0], columns=columns, is_dense=is_dense):
        form = _ROW
    else:
        columns = 0
        # the exponents of floats hardly ever do not shrink
        _add(pieces, planes[0], pack=has_sign(dtype) or _shrinks(planes[0]), is_borrowed=True)
    for plane in planes[1:-1]:
        _add(pieces, plane, pack=_shrinks(plane))
    if len(planes) > 1:
        last = planes[-1]
        is_packed = _shrinks(last)
        apart = _apart(last, columns=columns) if is_dense and has_sign(dtype) and not is_packed else None
        if apart is not None:
            form |= apart[0]
            pieces += apart[1]
        else:
            _add(pieces, last, pack=is_packed)
    head = bytes((form,)) + (_number(columns) if columns else b"")
    if columns and len(head) + _size(pieces) > stored_bounds(dtype, raw_bytes=len(data))[1]:
        return encode_chunk(data, dtype, columns=0, is_dense=is_dense)  # the part that was tried was not like the rest
    return [head, *pieces]


def _shrinks(plane: Bytes) -> bool:
    """Whether some of it from the middle does, by 3 %: less is not worth the time of those who read it."""
    size = min(plane.size, _PROBE_BYTES)
    start = (plane.size - size) // 2
    return len(compress(plane[start : start + size].data)) <= (1 - LEAST_SAVING) * size


def _add_without_row(pieces: list[Piece], high: Bytes, *, columns: int, is_dense: bool) -> bool:
    """The row of middle values, and the highest plane without it. Whether they were added: only if that is smaller.

    Some rows from the middle are tried. ReLU-like data show why: their zeros would become another value in each column.
    """
    import numpy as np

    rows = high.reshape(-1, columns)
    row = middle(rows) if is_dense else near_middle(rows)
    tried = min(len(rows), max(1, _PROBE_BYTES // columns))
    start, step = (len(rows) - tried) // 2, max(1, columns // _PROBE_BYTES)
    plain = np.ascontiguousarray(rows[start : start + tried, ::step])
    saved = len(compress(plain.data)) - len(compress(np.subtract(plain, row[::step]).data))
    found: list[Piece] = []
    _add(found, row, pack=True)
    if saved * high.size <= _size(found) * plain.size:
        return False
    is_borrowed = rows.flags.writeable
    without = np.subtract(rows, row, out=rows if is_borrowed else None).reshape(-1)
    _add(found, without, pack=True, is_borrowed=is_borrowed)
    pieces += found
    return True


def _add(pieces: list[Piece], plane: Bytes, *, pack: bool, is_borrowed: bool = False) -> bool:
    """One piece: 0 and the bytes, or the length of a frame and the frame. Whether it was compressed."""
    if pack:
        frame = compress(plane.data)
        if len(frame) + _MOST_DIGITS < plane.size:
            pieces += (_number(len(frame)), frame)
            return True
    pieces += (b"\0", plane.tobytes() if is_borrowed else plane.data)
    return False


def _apart(last: Bytes, *, columns: int) -> tuple[int, list[Piece]] | None:
    """The form's flags and the pieces of a lowest plane without its signs, and of the signs; None if not smaller.

    Where the columns lean to one side, the signs are what differs from the more frequent sign of each.
    """
    import numpy as np

    found: list[Piece] = []
    if not _add(found, np.bitwise_and(last, 0x7F), pack=True):  # seven bits would be stored as eight
        return None
    signs = np.greater_equal(last, 0x80).view(np.uint8)
    plain = np.packbits(signs)
    leaning: list[Piece] = []
    form = _APART
    if columns:
        rows = signs.reshape(-1, columns)
        most = majority(rows)
        _add(leaning, np.packbits(most), pack=True)
        if _add(leaning, np.packbits(np.bitwise_xor(rows, most)), pack=True) and _size(leaning) < plain.size:
            form |= _FLIPPED
            found += leaning
    if not form & _FLIPPED:
        _add(found, plain, pack=False)
    return (form, found) if _size(found) <= (1 - _LEAST_SAVING_APART) * last.size else None


def _size(pieces: list[Piece]) -> int:
    return sum(map(len, pieces))


def _number(value: int) -> bytes:
    """Seven bits a byte, lowest first, the top bit set in all but the last."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def decode_chunk(stored: memoryview, dtype: str, *, out: Bytes) -> None:
    """The elements of one chunk into `out`, contiguous and of exactly their size. `PlanesFault` on anything odd."""
    width = plane_count(dtype)
    count = out.size // width
    source = _Source(stored)
    form = source.take(1)[0]
    if form & ~7 or (form & _APART and not has_sign(dtype)) or (form & _FLIPPED and form & 3 != 3):
        raise PlanesFault(f"form {form} is none of {dtype}")
    columns = source.number() if form & _ROW else 0
    if form & _ROW and not (columns and count % columns == 0 and count >= 2 * columns):
        raise PlanesFault(f"{columns} columns do not divide {count} words")
    row = source.piece(columns) if columns else None
    planes = [source.piece(count) for _ in range(width)]
    if form & _APART:
        planes[-1] = _with_signs(planes[-1], source, columns=columns if form & _FLIPPED else 0)
    if source.left:
        raise PlanesFault(f"{source.left} bytes follow the last piece")
    join_words(planes, dtype, row=row, out=out)


def _with_signs(low: Bytes, source: _Source, *, columns: int) -> Bytes:
    """The lowest plane with the signs in its top bits; with `columns`, the more frequent ones come first."""
    import numpy as np

    most = np.unpackbits(source.piece(-(-columns // 8)), count=columns) if columns else None
    signs = np.unpackbits(source.piece(-(-low.size // 8)), count=low.size)
    if most is not None:
        rows = signs.reshape(-1, columns)
        np.bitwise_xor(rows, most, out=rows)
    np.multiply(signs, 0x80, out=signs)
    return np.bitwise_or(signs, low, out=signs)


class _Source:
    """Stored bytes, taken from the front."""

    def __init__(self, stored: memoryview) -> None:
        self._stored = stored
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._stored) - self._at

    def take(self, size: int) -> memoryview:
        if size > self.left:
            raise PlanesFault(f"{size} bytes are told of, {self.left} are there")
        found = self._stored[self._at : self._at + size]
        self._at += size
        return found

    def number(self) -> int:
        value = 0
        for place in range(_MOST_DIGITS):
            digit = self.take(1)[0]
            value |= (digit & 0x7F) << 7 * place
            if digit < 0x80:
                if place and not digit:
                    break
                return value
        raise PlanesFault("a number is longer than it has to be")

    def piece(self, size: int) -> Bytes:
        """`size` bytes, stored as they are or in a frame shorter than that."""
        import numpy as np

        length = self.number()
        if not length:
            return np.frombuffer(self.take(size), np.uint8)
        if length >= size:
            raise PlanesFault(f"a frame of {length} bytes is told to be shorter than its {size}")
        try:
            return np.frombuffer(decompress(self.take(length), size=size), np.uint8)
        except FrameFault as exc:
            raise PlanesFault(str(exc)) from exc
