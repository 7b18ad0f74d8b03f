"""A moment of a store in numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """A moment of a store, for progress and reports."""

    local_bytes: int
    """Of the pack files of this store's spools."""
    packs_by_state: dict[str, int]
    """State (`open`, `sealed`, ..., `lost`) -> packs on record here."""
    samples_known: int
    """Samples of the run that are durable here or in the manifest."""
    samples_put: int
    """Put through this store, with the bytes below: stored, not of the tensors."""
    bytes_put: int
    bytes_uploaded: int
    bytes_freed: int
    """Of pack files reclaimed by this store."""
    only_local_ids: tuple[str, ...]
    """Samples not yet in the bucket's manifest, sorted."""
    failures: tuple[str, ...]
    """What `flush` would raise."""
    quarantined_bytes: int
