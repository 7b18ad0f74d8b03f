"""One look at the remote side, in the order in which nothing can look lost that only came late.

Duty: marker, then manifest, then the listings of packs and files beside each other, then every key that a row names and
the listing lacks, one by one. What cannot be had whole is said, and is None (INV-6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from durastore.clock import Clock
from durastore.errors import InventoryIncomplete, StoreMissing
from durastore.formats.keys import file_listing_prefix, pack_listing_prefix
from durastore.manifest.marker_store import fetch_marker
from durastore.model import ObjectKey
from durastore.objectstore.port import ObjectStore
from durastore.reconcile.bucket import ManifestFacts, load_keys, load_manifest
from durastore.reconcile.columns import NONE, KeyTable, chosen, names_of, positions
from durastore.reconcile.compare import BucketComparison, compare_bucket
from durastore.reconcile.local import Texts, texts
from durastore.reconcile.missing import MissingKeys, look_for

__all__ = [
    "FOLDER_HINT",
    "KnownKeys",
    "ManifestLook",
    "RemoteLook",
    "check_known_id",
    "check_store_id",
    "look_at_bucket",
    "look_at_manifest",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLook:
    """What was seen of manifest and bucket."""

    store_id: str | None
    """None: the prefix has no marker."""
    manifest: ManifestFacts
    bucket: BucketComparison | None
    fault: str | None
    """Why there is no comparison."""
    missing: MissingKeys

    @property
    def is_new(self) -> bool:
        """No store was made here yet: no marker, and nothing of ours."""
        has_objects = self.bucket is None or len(self.bucket.listed)
        return self.store_id is None and not has_objects and not len(self.manifest.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKeys:
    """What the journals of a root know of the bucket."""

    packs: Texts
    """All packs on record but those of `past`."""
    sent: Texts
    """Those of them that were uploaded."""
    segments: frozenset[str] = frozenset()
    """Segments that were seen published with rows of packs whose files are here."""
    past: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Segments that were seen published with rows of packs whose files went since, and the keys of those packs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLook:
    """The first part of a look: marker and manifest."""

    store_id: str | None
    manifest: ManifestFacts
    fault: str | None
    """Why the bucket need not be listed: its listing cannot be whole."""


def look_at_manifest(store: ObjectStore, prefix: str, *, known: KnownKeys, clock: Clock) -> ManifestLook:
    """Marker, then manifest. Network errors pass. Safe to repeat."""
    marker = fetch_marker(store, prefix)
    manifest = load_manifest(store, prefix, files_below=file_listing_prefix(prefix))
    manifest, fault = _with_known(store, manifest, known=known, clock=clock)
    return ManifestLook(store_id=marker.store_id if marker is not None else None, manifest=manifest, fault=fault)


def look_at_bucket(
    store: ObjectStore, prefix: str, *, known: KnownKeys, clock: Clock, first: ManifestLook | None = None
) -> RemoteLook:
    """Look at everything below `prefix`. What journals here know of (`known`) is looked for as well as what rows
    name. `first`: where marker and manifest were looked at already. Network errors pass. Safe to repeat.
    """
    first = first if first is not None else look_at_manifest(store, prefix, known=known, clock=clock)
    manifest, fault = first.manifest, first.fault
    listed, fault = _list_objects(store, prefix, manifest=manifest) if fault is None else (None, fault)
    if listed is None:
        return RemoteLook(store_id=first.store_id, manifest=manifest, bucket=None, fault=fault, missing=MissingKeys())
    bucket = compare_bucket(listed, manifest, prefix=prefix, held=_held(known, manifest))
    unlisted = chosen(known.sent, positions(known.sent, listed.keys) == NONE)
    asked = [ObjectKey(key) for key in sorted({*names_of(bucket.unlisted.keys), *names_of(unlisted)})]
    return RemoteLook(
        store_id=first.store_id,
        manifest=manifest,
        bucket=bucket,
        fault=None,
        missing=look_for(store, asked, clock=clock),
    )


def _with_known(
    store: ObjectStore, manifest: ManifestFacts, *, known: KnownKeys, clock: Clock
) -> tuple[ManifestFacts, str | None]:
    """The manifest, held against the segments that were seen published: a listing that lacks one of them cannot be
    whole, unless the segment itself is gone, which leaves a manifest that is not.

    Once another segment stands for one of `past`, its packs were looked at: nobody misses it any more. Those of
    `segments` are missed until the journal lists their packs in another one.
    """
    past = known.past.keys() - {key.text for key in manifest.covers}
    lacking = sorted((known.segments | past) - set(names_of(manifest.segments.keys)))
    if not lacking:
        return manifest, None
    told = look_for(store, [ObjectKey(key) for key in lacking], clock=clock)
    if told.present or told.unknown:
        return manifest, f"the listing of the manifest lacks {len(lacking)} segments that are there, e.g. {lacking[0]}"
    return replace(manifest, unreadable=(*manifest.unreadable, *told.absent)), None


def _held(known: KnownKeys, manifest: ManifestFacts) -> Texts:
    """Packs that journals here answer for. One whose file went, and whose rows were in a segment that is lost, is
    nobody's: only its object can give the rows back.
    """
    lost = {key.text for key in manifest.unreadable}
    past = [key for segment, keys in known.past.items() if segment not in lost for key in keys]
    return pa.concat_arrays([known.packs, texts(past)])


def _list_objects(store: ObjectStore, prefix: str, *, manifest: ManifestFacts) -> tuple[KeyTable | None, str | None]:
    """Packs and files, listed beside each other; None and why where one of them cannot be had whole."""
    files = len(manifest.files.keys)
    folders = {pack_listing_prefix(prefix): len(manifest.objects) - files, file_listing_prefix(prefix): files}
    with ThreadPoolExecutor(len(folders), "durastore-list") as pool:
        futures = [pool.submit(load_keys, store, of, expected=count) for of, count in folders.items()]
        try:
            tables = [future.result() for future in futures]
        except InventoryIncomplete as exc:
            return None, exc.message
    filled = [table for table in tables if len(table)]
    if len(filled) < 2:  # a copy of a million keys that need not be made
        return (filled or tables)[0], None
    keys = pa.concat_arrays([table.keys for table in filled])
    return KeyTable(keys=keys, sizes=np.concatenate([table.sizes for table in filled])), None


_SPOOL_HINT = "check --local and --bucket; where the bucket was made anew, opening the spool sends everything again"
FOLDER_HINT = (
    "a folder keeps to the durastore that it was first sent to: give that --bucket, with its prefix; "
    "for another one take a copy of the folder's files in a new folder"
)


def check_store_id(look: RemoteLook, known: str | None, *, what: str, hint: str = _SPOOL_HINT) -> None:
    """`InventoryIncomplete` where the bucket is not the one that `what` was filled for: its proofs are void, and no
    plan may rest on them (case B164). `StoreMissing` where nothing is there and something is expected.
    """
    if look.store_id is None and not look.is_new:
        raise InventoryIncomplete(
            "the prefix holds objects of durastore and no marker: it was re-created, or only partly copied",
            hint="check bucket and prefix; nothing was changed",
        )
    if look.store_id is not None:
        check_known_id(look.store_id, known, what=what, hint=hint)
    elif known is not None:
        raise StoreMissing(f"there is no durastore, and {what} was filled for one", hint="check bucket and prefix")


def check_known_id(store_id: str, known: str | None, *, what: str, hint: str = _SPOOL_HINT) -> None:
    """`InventoryIncomplete` where `what` was filled for another durastore than `store_id`."""
    if known is not None and known != store_id:
        raise InventoryIncomplete(f"{what} belongs to another durastore than the one at this prefix", hint=hint)
