"""Codec `planes-zstd`: the bytes of a chunk's elements sorted into planes, and each plane compressed where that pays.

Duty: one chunk into its stored form and back, without losing a bit. Floats are rotated left by one bit first, so that
the highest plane of a bf16 is its whole exponent, which is what compresses in hidden states. Stored bytes are not to be
trusted: every length is checked before anything is allocated for it. Source: `docs/format/sample.md`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import zstandard

from durastore.codec.dtypes import DTYPES

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "CODEC",
    "LEAST_SAVING",
    "Piece",
    "PlanesFault",
    "choose_planes",
    "decode_chunk",
    "encode_chunk",
    "plane_count",
    "stored_bounds",
]

CODEC = "planes-zstd"
Piece: TypeAlias = bytes | memoryview
_FLOATS = frozenset(("F64", "F32", "F16", "BF16", "C64"))
_ENTRY_BYTES = 8
_BLOCK = 1 << 16  # elements at a time: what they are cut into stays in the cache
_PROBE_BYTES = 1 << 16
LEAST_SAVING = 0.03
_LEVEL = 1
_MOST_RATIO = 1 << 15  # of zstd: a block of 128 KiB takes at least 4 bytes
_local = threading.local()


class PlanesFault(ValueError):
    """These stored bytes are not what a writer of this codec makes."""


def plane_count(dtype: str) -> int:
    """Planes of one element: its bytes; a complex number is two floats side by side."""
    return 4 if dtype == "C64" else DTYPES[dtype].item_bytes


def stored_bounds(dtype: str, *, raw_bytes: int) -> tuple[int, int]:
    """Least and greatest stored size that a chunk of `raw_bytes` can have: a few bytes are no claim to gigabytes."""
    entries = _ENTRY_BYTES * plane_count(dtype)
    return entries + raw_bytes // _MOST_RATIO, entries + raw_bytes


def choose_planes(data: memoryview, dtype: str) -> tuple[bool, ...]:
    """Which planes of these elements (highest first) to compress: those where a sample from the middle saves 3 %."""
    size = DTYPES[dtype].item_bytes
    count = min(len(data), _PROBE_BYTES * plane_count(dtype)) // size * size
    start = (len(data) - count) // 2 // size * size
    planes = _split(data[start : start + count], dtype)
    compressor = _compressor()
    return tuple(
        bool(plane.size) and len(compressor.compress(plane.data)) <= (1 - LEAST_SAVING) * plane.size for plane in planes
    )


def encode_chunk(data: memoryview, dtype: str, *, packed: tuple[bool, ...]) -> list[Piece]:
    """The stored form of whole elements `data`, as pieces in order; `packed` from `choose_planes`."""
    entries, pieces = bytearray(), list[Piece]()
    compressor = _compressor()
    for plane, is_packed in zip(_split(data, dtype), packed, strict=True):
        piece: Piece = compressor.compress(plane.data) if is_packed else plane.data
        is_smaller = is_packed and len(piece) < plane.size
        if is_packed and not is_smaller:
            piece = plane.data
        entries += (len(piece) << 1 | is_smaller).to_bytes(_ENTRY_BYTES, "little")
        pieces.append(piece)
    return [bytes(entries), *pieces]


def decode_chunk(stored: memoryview, dtype: str, *, out: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
    """The elements of one chunk into `out`, contiguous and of exactly their size. `PlanesFault` on anything odd."""
    import numpy as np

    width = plane_count(dtype)
    count, at = out.size // width, _ENTRY_BYTES * width
    if len(stored) < at:
        raise PlanesFault(f"{len(stored)} bytes hold no list of {width} planes")
    planes = []
    for number in range(width):
        entry = int.from_bytes(stored[number * _ENTRY_BYTES : (number + 1) * _ENTRY_BYTES], "little")
        length, is_packed = entry >> 1, bool(entry & 1)
        piece = stored[at : at + length]
        at += length
        if len(piece) != length or at > len(stored):
            raise PlanesFault(f"plane {number} claims {length} bytes, {len(piece)} are there")
        raw = _unpack(piece, size=count, number=number) if is_packed else piece
        if len(raw) != count:
            raise PlanesFault(f"plane {number} has {len(raw)} bytes for {count} elements")
        planes.append(np.frombuffer(raw, np.uint8))
    if at != len(stored):
        raise PlanesFault(f"{len(stored) - at} bytes follow the last plane")
    _join(planes, dtype, out=out)


def _unpack(piece: memoryview, *, size: int, number: int) -> bytes:
    """One zstd frame that says, before anything is allocated, that it holds `size` bytes."""
    try:
        if zstandard.get_frame_parameters(piece).content_size != size:
            raise PlanesFault(f"plane {number} is a frame of another size than {size}")
        return _decompressor().decompress(piece, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise PlanesFault(f"plane {number} cannot be decompressed: {exc}") from exc


def _split(data: memoryview, dtype: str) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """The planes, highest byte first, each contiguous."""
    import numpy as np

    width = plane_count(dtype)
    if width == 1:
        return [np.frombuffer(data, np.uint8)]
    words = np.frombuffer(data, f"<u{width}")
    planes = [np.empty(words.size, np.uint8) for _ in range(width)]
    rotated, low = np.empty(min(_BLOCK, words.size), words.dtype), np.empty(min(_BLOCK, words.size), words.dtype)
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK]
        turned, scratch = rotated[: block.size], low[: block.size]
        if dtype in _FLOATS:
            np.left_shift(block, 1, out=turned)
            np.right_shift(block, 8 * width - 1, out=scratch)
            np.bitwise_or(turned, scratch, out=turned)
            block = turned
        for number, plane in enumerate(planes):
            target = plane[start : start + block.size]
            if number == width - 1:
                np.copyto(target, block, casting="unsafe")  # the lowest byte
            else:
                np.right_shift(block, 8 * (width - 1 - number), out=scratch)
                np.copyto(target, scratch, casting="unsafe")
    return planes


def _join(
    planes: list[np.ndarray[Any, np.dtype[np.uint8]]], dtype: str, *, out: np.ndarray[Any, np.dtype[np.uint8]]
) -> None:
    import numpy as np

    width = len(planes)
    if width == 1:
        out[:] = planes[0]
        return
    words = out.view(f"<u{width}")
    low = np.empty(min(_BLOCK, words.size), words.dtype)
    for start in range(0, words.size, _BLOCK):
        word = words[start : start + _BLOCK]
        scratch = low[: word.size]
        np.copyto(word, planes[0][start : start + _BLOCK])
        for plane in planes[1:]:
            np.left_shift(word, 8, out=word)
            np.bitwise_or(word, plane[start : start + _BLOCK], out=word)
        if dtype in _FLOATS:
            np.left_shift(word, 8 * width - 1, out=scratch)
            np.right_shift(word, 1, out=word)
            np.bitwise_or(word, scratch, out=word)


def _compressor() -> zstandard.ZstdCompressor:
    """One for each thread, as the library asks. Hidden states repeat no byte strings: it hardly looks for them."""
    found: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if found is None:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL, strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=7, write_content_size=True
        )
        found = _local.compressor = zstandard.ZstdCompressor(compression_params=parameters)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor()
    return found
