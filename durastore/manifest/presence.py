"""Whether there is a store at a prefix at all: a mistyped prefix must not look like an empty dataset."""

from __future__ import annotations

from durastore.errors import StoreMissing
from durastore.manifest.marker_store import fetch_marker
from durastore.objectstore.port import ObjectStore

__all__ = ["check_present"]


def check_present(store: ObjectStore, prefix: str) -> None:
    """Pass if the prefix holds a marker or anything of ours; `StoreMissing` otherwise. Safe to repeat."""
    if fetch_marker(store, prefix) is not None:
        return
    lead = f"{prefix}/" if prefix else ""
    if not any(page for kind in ("manifest", "packs", "files") for page in store.list(f"{lead}{kind}/")):
        raise StoreMissing(f"there is no durastore at {store.url}/{prefix}", hint="check bucket and prefix")
