"""A small object in one request: its bytes and what the same answer says of them.

Duty: one GET in place of a HEAD, a GET and another HEAD, where an adapter has a way that tells etag and version with
the bytes. Must never be needed: whoever gets None reads and looks apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from durastore.model import ObjectKey
from durastore.objectstore.port import ObjectReader

__all__ = ["WHOLE_BYTES", "WholeObject", "WholeReader", "fetch_whole"]

WHOLE_BYTES = 8 << 20
"""Larger objects are read in pieces: this much of each is in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeObject:
    """All bytes of one answer, and of which object that answer said they are."""

    data: memoryview
    etag: str
    """Opaque, exactly as sent; never empty."""
    version_id: str | None


@runtime_checkable
class WholeReader(Protocol):
    """An adapter that can ask for it."""

    def fetch_whole(self, key: ObjectKey, *, size_bytes: int) -> WholeObject | None:
        """As the function below."""
        ...


def fetch_whole(reader: ObjectReader, key: ObjectKey, *, size_bytes: int) -> WholeObject | None:
    """The object, which has `size_bytes`. None where the adapter cannot ask, where it is too large for that, or where
    the answer names no etag. Raises as `ObjectReader.fetch`, `IntegrityError` too where it has another size: no more
    than an answer's announced length is ever read. Safe to repeat.
    """
    if size_bytes > WHOLE_BYTES or not isinstance(reader, WholeReader):
        return None
    return reader.fetch_whole(key, size_bytes=size_bytes)
