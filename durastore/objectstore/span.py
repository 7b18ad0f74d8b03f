"""Byte ranges of an object whose size is known.

Duty: one reading of `offset` and `length` for every adapter that holds the bytes itself.
"""

from __future__ import annotations

from durastore.errors import IntegrityError, RequestRefused
from durastore.model import ObjectKey

__all__ = ["checked_span"]


def checked_span(key: ObjectKey, size_bytes: int, *, offset: int, length: int | None) -> tuple[int, int]:
    """Start and stop of the range; `IntegrityError` where the object does not hold all of it."""
    if offset < 0 or (length is not None and length < 0):
        raise RequestRefused(f"get {key}: negative offset or length")
    stop = size_bytes if length is None else offset + length
    if length != 0 and (stop > size_bytes or offset > stop or (length is None and offset == size_bytes and offset > 0)):
        raise IntegrityError(f"get {key}: {size_bytes} bytes do not hold the range {offset} to {stop}")
    return offset, stop
