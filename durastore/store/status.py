"""A moment of a store in numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """A moment of a store, for progress and reports."""

    local_bytes: int
    packs_by_state: dict[str, int]
    samples_known: int
    samples_put: int
    bytes_put: int
    bytes_uploaded: int
    bytes_freed: int
    only_local_ids: tuple[str, ...]
    """Samples not yet in the bucket's manifest, sorted."""
    failures: tuple[str, ...]
    quarantined_bytes: int
