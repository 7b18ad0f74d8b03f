"""Several ranges of one object at once, for readers of many small samples.

Duty: one call for all of them where an adapter has a way that costs less than a call each, else a call each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from durastore.model import ObjectKey
from durastore.objectstore.port import ObjectReader

__all__ = ["RangesReader", "Span", "fetch_ranges"]

Span = tuple[int, int]
"""First byte of a range and the one behind its last."""


@runtime_checkable
class RangesReader(Protocol):
    """An adapter with a quicker way of its own."""

    def fetch_ranges(self, key: ObjectKey, spans: Sequence[Span]) -> Sequence[memoryview]:
        """As the function below. At most as many requests as spans, all at one time."""
        ...


def fetch_ranges(reader: ObjectReader, key: ObjectKey, *, spans: Sequence[Span]) -> Sequence[memoryview]:
    """Exactly the bytes of each span, in order. No span is empty. Raises as `ObjectReader.fetch`, for all of them.

    Nothing says that the ranges are of one version of the object: whoever asks checks digests.
    """
    if isinstance(reader, RangesReader):
        return reader.fetch_ranges(key, spans)
    return [memoryview(reader.fetch(key, offset=start, length=stop - start)) for start, stop in spans]
