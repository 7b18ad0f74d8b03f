"""The elements of a chunk as byte planes, and back.

Duty: move bits, lose none. An element of w bytes is a little-endian word. A float's sign is moved below all but the
lowest seven bits of its word, so that the highest plane of a bf16 is its whole exponent. Must never compress and never
look at a length that came from outside.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from durastore.codec.dtypes import DTYPES

if TYPE_CHECKING:
    import numpy as np

    Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
    Words: TypeAlias = np.ndarray[Any, np.dtype[Any]]

__all__ = ["has_sign", "join_words", "plane_count", "split_words"]

_FLOATS = frozenset(("F64", "F32", "F16", "BF16", "C64"))
_BLOCK_BYTES = 1 << 18  # of words at a time: what they are cut into stays in the cache
_MOST_KEPT_BYTES = 1 << 20
_local = threading.local()


def plane_count(dtype: str) -> int:
    """Planes of one element: its bytes; a complex number is two floats side by side."""
    return 4 if dtype == "C64" else DTYPES[dtype].item_bytes


def has_sign(dtype: str) -> bool:
    """Whether words of this dtype are floats of more than one byte; the top bit of their lowest plane is the sign."""
    return dtype in _FLOATS


def split_words(data: memoryview, dtype: str, *, may_borrow: bool = False) -> list[Bytes]:
    """The planes of whole elements, highest first, each contiguous.

    With `may_borrow` the highest plane is good only until this thread splits words again.
    """
    import numpy as np

    width = plane_count(dtype)
    if width == 1:
        return [np.frombuffer(data.toreadonly(), np.uint8)]  # nobody may write into what it is made of
    words = np.frombuffer(data, f"<u{width}")
    high = _borrowed(words.size) if may_borrow else np.empty(words.size, np.uint8)
    planes = [high, *(np.empty(words.size, np.uint8) for _ in range(width - 1))]
    is_float = dtype in _FLOATS
    step = _BLOCK_BYTES // width
    moved, spare = _scratch(width)
    for start in range(0, words.size, step):
        block = words[start : start + step]
        stop = start + block.size
        for number, plane in enumerate(planes[:-1]):  # without its sign, a float's planes lie one bit lower
            np.right_shift(block, 8 * (width - 1 - number) - is_float, out=moved[: block.size])
            np.copyto(plane[start:stop], moved[: block.size], casting="unsafe")
        last = planes[-1][start:stop]
        np.copyto(last, block, casting="unsafe")
        if is_float:
            sign = spare[: block.size]
            np.less(block.view(f"<i{width}"), 0, out=sign.view(np.bool_))
            np.multiply(sign, 0x80, out=sign)
            np.bitwise_and(last, 0x7F, out=last)
            np.bitwise_or(last, sign, out=last)
    return planes


def join_words(planes: Sequence[Bytes], dtype: str, *, row: Bytes | None, out: Bytes) -> None:
    """The elements whose planes these are into `out`, contiguous and of exactly their size.

    `row`, if given, is added to each row of its length of the highest plane, modulo 256.
    """
    import numpy as np

    width = len(planes)
    high, last = planes[0], planes[-1]
    if width == 1:
        _add_row(high, row, out=out)
        return
    words = out.view(f"<u{width}")
    step = _BLOCK_BYTES // width
    if row is not None:
        step = max(1, step // row.size) * row.size
    moved, spare = _scratch(width, least=min(step, words.size))
    is_float = dtype in _FLOATS
    signed = np.dtype(f"<i{width}")
    kept = 1 << 8 * width - 1 | 0x7F  # the sign, and the bits that stay where they are
    for start in range(0, words.size, step):
        word = words[start : start + step]
        stop = start + word.size
        top = high[start:stop]
        if row is not None:
            top = spare[: word.size]
            _add_row(high[start:stop], row, out=top)
        np.copyto(word, top)
        for plane in planes[1:-1]:
            _shift_left(word, 8)
            np.bitwise_or(word, plane[start:stop], out=word)
        _shift_left(word, 7 if is_float else 8)
        low = moved[: word.size]
        if is_float:  # widened as a signed byte, the sign is in all the bits above
            np.copyto(low.view(signed), last[start:stop].view(np.int8))
            np.bitwise_and(low, kept, out=low)
        else:
            np.copyto(low, last[start:stop])
        np.bitwise_or(word, low, out=word)


def _add_row(plane: Bytes, row: Bytes | None, *, out: Bytes) -> None:
    import numpy as np

    if row is None:
        out[:] = plane
    else:
        np.add(plane.reshape(-1, row.size), row, out=out.reshape(-1, row.size))


def _shift_left(words: Words, bits: int) -> None:
    """In place. A product of 16 or 32 bits is vectorised where a shift is not (twice as fast, measured)."""
    import numpy as np

    if words.itemsize == 8:
        np.left_shift(words, bits, out=words)
    else:
        np.multiply(words, words.dtype.type(1 << bits), out=words)


def _borrowed(size: int) -> Bytes:
    """Memory that this thread keeps and hands out again and again: fresh memory costs more than what is done in it."""
    import numpy as np

    if size > _MOST_KEPT_BYTES:
        return np.empty(size, np.uint8)
    room: Bytes | None = getattr(_local, "plane", None)
    if room is None or room.size < size:
        room = _local.plane = np.empty(size, np.uint8)
    return room[:size]


def _scratch(width: int, *, least: int = 0) -> tuple[Words, Bytes]:
    """Room for one block, kept by each thread: fresh memory costs more in page faults than the work done in it."""
    import numpy as np

    size = max(_BLOCK_BYTES // width, least)
    if size * width > _BLOCK_BYTES:
        return np.empty(size, f"<u{width}"), np.empty(size, np.uint8)
    room: tuple[Bytes, Bytes] | None = getattr(_local, "room", None)
    if room is None:
        room = _local.room = np.empty(_BLOCK_BYTES, np.uint8), np.empty(_BLOCK_BYTES, np.uint8)
    return room[0].view(f"<u{width}"), room[1]
