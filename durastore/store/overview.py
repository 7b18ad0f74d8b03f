"""What there is of a store, here and in the bucket, without opening it: `durastore status`.

Duty: a glance at the spool root, and the manifest's totals where a bucket is named. Takes no lock and writes nothing.
Must never let an endpoint that does not answer hide what can be told of this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from durastore.errors import DurastoreError
from durastore.manifest.fetching import SegmentPart
from durastore.manifest.presence import fetch_present_snapshot
from durastore.manifest.view import RANKED, fetch_view
from durastore.objectstore.port import ObjectStore
from durastore.spool.glance import RootGlance, look_at_root

__all__ = ["ManifestTotals", "StatusReport", "look_at_store"]

OpenBucket = Callable[[], AbstractContextManager[tuple[ObjectStore, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestTotals:
    """What the manifest says that the bucket holds. Looks at no object."""

    snapshot_id: str
    segments: int
    samples: int
    sample_bytes: int
    """As stored."""
    objects: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """Both sides; the bucket's only where one was named and answered."""

    root: RootGlance
    manifest: ManifestTotals | None
    error: DurastoreError | None
    """Why the manifest could not be read."""

    @property
    def exit_code(self) -> int:
        """0, or that of the error of the bucket's side."""
        return self.error.exit_code if self.error is not None else 0


def look_at_store(local: Path, *, bucket: OpenBucket | None) -> StatusReport:
    """Look at both sides. Safe at any time. Raises `StoreMissing` and `SpoolUnreadable` for the root."""
    root = look_at_root(local)
    if bucket is None:
        return StatusReport(root=root, manifest=None, error=None)
    try:
        with bucket() as (store, prefix):
            return StatusReport(root=root, manifest=_fetch_totals(store, prefix), error=None)
    except DurastoreError as exc:
        return StatusReport(root=root, manifest=None, error=exc)


def _fetch_totals(store: ObjectStore, prefix: str) -> ManifestTotals:
    snapshot = fetch_present_snapshot(store, prefix)
    view = fetch_view(store, snapshot, part=SegmentPart(columns=(*RANKED, "length")))
    sample_bytes = sum(pc.sum(batch.column("length")).as_py() or 0 for batch in view.batches(["length"]))
    return ManifestTotals(
        snapshot_id=snapshot.id.hex,
        segments=len(snapshot.segments),
        samples=len(view),
        sample_bytes=sample_bytes,
        objects=len(view.object_keys()),
        duplicates=view.duplicate_count,
    )
