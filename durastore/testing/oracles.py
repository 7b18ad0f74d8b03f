"""The oracle that a test of storage ends with: every acknowledged sample is obtainable, as it was put.

Duty: judge what a reader gives, sample by sample. Must never repair, wait or retry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from durastore.errors import DurastoreError
from durastore.model import Sample

__all__ = ["lost_samples"]


def lost_samples(
    acknowledged: Mapping[str, Mapping[str, Any]],
    read: Callable[[str], Sample],
    *,
    is_equal: Callable[[Any, Any], bool],
) -> dict[str, str]:
    """O1: every acknowledged sample whose bytes cannot be obtained as they were put, with the reason."""
    lost: dict[str, str] = {}
    for sample_id, tensors in acknowledged.items():
        try:
            found = read(sample_id).tensors
        except DurastoreError as exc:
            lost[sample_id] = f"{type(exc).__name__}: {exc}"
            continue
        if found.keys() != tensors.keys() or not all(is_equal(found[name], tensors[name]) for name in tensors):
            lost[sample_id] = "other bytes than were put"
    return lost
