"""Whether there is a store at a prefix at all: a mistyped prefix must not look like an empty dataset."""

from __future__ import annotations

from durastore.errors import StoreMissing
from durastore.formats.keys import held_listing_prefixes, segment_listing_prefix
from durastore.manifest.marker_store import fetch_marker
from durastore.manifest.snapshot import Snapshot, fetch_snapshot
from durastore.objectstore.port import ObjectStore

__all__ = ["NO_STORE_HINT", "check_present", "fetch_present_snapshot"]

NO_STORE_HINT = "check bucket and prefix; the first writer there makes it (durastore.open, `extract`, `adopt`)"


def fetch_present_snapshot(store: ObjectStore, prefix: str) -> Snapshot:
    """The manifest as it is listed now. Errors as `fetch_snapshot`, and `StoreMissing` where it lists nothing because
    there is no store. Safe to repeat.
    """
    snapshot = fetch_snapshot(store, prefix)
    if not snapshot.segments:
        check_present(store, prefix)
    return snapshot


def check_present(store: ObjectStore, prefix: str) -> None:
    """Pass if the prefix holds a marker or anything of ours; `StoreMissing` otherwise. Safe to repeat."""
    if fetch_marker(store, prefix) is not None:
        return
    folders = (segment_listing_prefix(prefix), *held_listing_prefixes(prefix))
    if not any(page for folder in folders for page in store.list(folder)):
        raise StoreMissing(f"there is no durastore at {store.url}/{prefix}", hint=NO_STORE_HINT)
