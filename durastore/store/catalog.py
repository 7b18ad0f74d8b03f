"""Where a sample's bytes are: spool file or object, found through journal and manifest.

Duty: the manifest's resolved view as of opening, looked at anew when an id is known but its row is not; reading from
both places. Must never hand out a byte that did not match its digest (the readers below see to that).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from durastore.clock import Clock
from durastore.errors import DiskFailed, DurastoreError, IntegrityError, ObjectAbsent
from durastore.manifest.snapshot import Snapshot, fetch_snapshot
from durastore.manifest.view import ResolvedView, fetch_view
from durastore.model import (
    Digest,
    Evidence,
    EvidenceLevel,
    ManifestRow,
    ObjectFacts,
    Sample,
    SampleEntry,
    SampleId,
)
from durastore.objectstore.port import ObjectStore
from durastore.observe.events import LOGGER
from durastore.read.local import read_local_sample
from durastore.read.remote import fetch_sample
from durastore.spool.journal import PackRecord
from durastore.spool.spool import Spool

__all__ = ["Catalog"]


class Catalog:
    """Thread-safe. The view is immutable and replaced as a whole."""

    def __init__(self, objects: ObjectStore, prefix: str, *, clock: Clock) -> None:
        self._objects = objects
        self._prefix = prefix
        self._clock = clock
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._view = self._fetch_view()

    def _fetch_view(self) -> ResolvedView:
        """Nothing is ever removed from a manifest, so a listing that lacks a known segment is refused as incomplete."""
        snapshot = fetch_snapshot(self._objects, self._prefix, known=self._snapshot)
        view = fetch_view(self._objects, snapshot)
        self._snapshot = snapshot
        return view

    @property
    def view(self) -> ResolvedView:
        return self._view

    def refresh(self) -> ResolvedView:
        """The manifest now. `ManifestIncomplete` or a network error if it cannot be told (the old view stays)."""
        with self._lock:
            self._view = self._fetch_view()
            return self._view

    def row(self, sample_id: SampleId, *, current: Digest | None = None) -> ManifestRow | None:
        """The live row that readers see; looks anew when the view in hand has none, or not the `current` content."""
        row = self._view.row(sample_id)
        if row is None or (current is not None and row.entry.header_digest != current):
            row = self.refresh().row(sample_id)
        return row

    def is_superseded(self, entry: SampleEntry, *, current: Digest | None) -> bool:
        """Whether a pack that is still on the disk holds an earlier content of the sample than the one that counts."""
        if current is None:
            row = self._view.row(entry.sample_id)
            current = row.entry.header_digest if row is not None else None
        return current is not None and entry.header_digest != current

    def rows_of(self, sample_id: SampleId) -> list[ManifestRow]:
        """All live rows of an id, from a fresh look: what a put must be compared with."""
        return list(self.refresh().rows_of(sample_id))

    def fetch(self, row: ManifestRow, *, tensors: Sequence[str] | None, rows: slice | None) -> Sample:
        return fetch_sample(self._objects, row, tensors=tensors, rows=rows)

    def fetch_current(self, row: ManifestRow, *, tensors: Sequence[str] | None, rows: slice | None) -> Sample:
        """The row's sample. Where its object is gone or damaged, from the row that took its place since the view was
        fetched: a pack whose object was forgotten is sent again under another key, if its file had to be replaced, and
        a sample whose object was damaged may have been put again.
        """
        try:
            return self.fetch(row, tensors=tensors, rows=rows)
        except (ObjectAbsent, IntegrityError):
            fresh = self.refresh().row(row.entry.sample_id)
            if fresh is None or fresh.object.key == row.object.key:
                raise
            return self.fetch(fresh, tensors=tensors, rows=rows)

    def read_pack(
        self, spool: Spool, record: PackRecord, *, entry: SampleEntry, tensors: Sequence[str] | None, rows: slice | None
    ) -> Sample | None:
        """The sample from its spool file, or from the object made of that file if it is gone or damaged; None if only
        the manifest may still know where it is.
        """
        try:
            return read_local_sample(spool.packs_folder, record.name, entry=entry, tensors=tensors, rows=rows)
        except FileNotFoundError:
            damage = None  # reclaimed a moment ago, or lost
        except (IntegrityError, DiskFailed) as exc:
            LOGGER.error("local pack %s is damaged, reading from the bucket: %s", record.name, exc)
            damage = exc
        try:
            sample = self._read_object(record, entry=entry, wanted=(tensors, rows))
        except ObjectAbsent:
            sample = None
        except DurastoreError:
            if damage is None or _has_upload_begun(record):
                raise
            sample = None  # nothing said that the bucket has it: the damage is the better answer
        if sample is None and damage is not None and record.manifested_in is None:
            raise damage
        return sample

    def _read_object(
        self, record: PackRecord, *, entry: SampleEntry, wanted: tuple[Sequence[str] | None, slice | None]
    ) -> Sample | None:
        """From the object at the key of a sealed pack, its rows being in no manifest yet; checked like any other.

        Asked for also where no upload is on record: a journal put back from an older copy forgot those that were.
        """
        if record.key is None or record.digest is None or record.crc64nvme is None:
            return None
        facts = ObjectFacts(
            key=record.key,
            size_bytes=record.size_bytes or 0,
            digest=record.digest,
            crc64nvme=record.crc64nvme,
            etag=record.etag or "",
            version_id=record.version_id,
            writer=record.writer,
        )
        tensors, rows = wanted
        return self.fetch(ManifestRow(entry=entry, object=facts), tensors=tensors, rows=rows)

    def is_held(self, row: ManifestRow) -> bool:
        """Whether the bucket gives the row's sample back, every byte checked, on a new connection.

        Asked only before a caller is told that it may let go of a copy. Network errors pass: not knowing is neither.
        """
        reader = self._objects.fresh_reader()
        try:
            fetch_sample(reader, row)
        except (ObjectAbsent, IntegrityError) as exc:
            LOGGER.error("the manifest's copy of %s is not there: %s", row.entry.sample_id, exc)
            return False
        finally:
            reader.close()
        return True

    def listed_evidence(self, row: ManifestRow) -> Evidence:
        """What a HEAD tells of a row's object now: LISTED, which frees nothing."""
        stat = self._objects.head(row.object.key)
        return Evidence(
            level=EvidenceLevel.LISTED,
            key=row.object.key,
            size_bytes=row.object.size_bytes if stat.size_bytes is None else stat.size_bytes,
            digest=None,
            etag=stat.etag,
            version_id=stat.version_id,
            taken=self._clock.stamp().render(),
            server_time_s=stat.server_time_s,
        )


def _has_upload_begun(record: PackRecord) -> bool:
    """A pack that went back to SEALED has no write id any more, and may have been found in the bucket after that."""
    return record.write_id is not None or record.evidence is not None
