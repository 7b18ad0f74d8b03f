"""The ways in which a store hands out other bytes than it took.

Pure: bytes read at an offset in, the wrong ones out.
"""

from __future__ import annotations

__all__ = ["BLOCK_BYTES", "misread", "overlay", "with_wrong_byte", "with_zero_block"]

BLOCK_BYTES = 4096


def with_zero_block(offset: int, data: bytes) -> bytes:
    """Bytes read at `offset`, the object's second block (or its only one) zeroed."""
    return overlay(offset, data, start=BLOCK_BYTES, block=bytes(BLOCK_BYTES))


def with_wrong_byte(offset: int, data: bytes) -> bytes:
    """Bytes read at `offset`, one bit of the object's first byte flipped."""
    if offset or not data:
        return data
    return bytes([data[0] ^ 0x01]) + data[1:]


def misread(data: bytes) -> bytes:
    """One wrong bit, but not the one that damage flips: two faults must not add up to the right bytes."""
    return bytes([data[0] ^ 0x80]) + data[1:] if data else data


def overlay(offset: int, data: bytes, *, start: int, block: bytes) -> bytes:
    """Bytes read at `offset`, with `block` in the place of what the object has from byte `start` on."""
    low, high = max(start, offset), min(start + len(block), offset + len(data))
    if low >= high:
        return data
    return data[: low - offset] + block[low - start : high - start] + data[high - offset :]
