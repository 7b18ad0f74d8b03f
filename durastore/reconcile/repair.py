"""Mending the manifest: rows for orphans, tombstones for what is gone.

Duty: read an orphan in full before its rows are published; look twice more before a row is taken out. Writes segments
only, through the publisher it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute
import xxhash

from durastore.adopt.sending import RowPublisher
from durastore.adopt.verbatim import file_row
from durastore.clock import Clock
from durastore.errors import IntegrityError, ObjectAbsent
from durastore.formats.file_keys import FileKeyParts, parse_file_key
from durastore.formats.keys import parse_pack_key
from durastore.formats.segment import SegmentContent
from durastore.model import Digest, ManifestRow, ObjectFacts, ObjectKey, SampleId, Tombstone
from durastore.objectstore.crc import Crc64Nvme
from durastore.objectstore.port import ObjectReader, ObjectStore
from durastore.reconcile.bucket import ManifestFacts
from durastore.reconcile.columns import KeyTable, names_of
from durastore.reconcile.missing import look_for
from durastore.reconcile.rebuild import RebuildPlan, RebuildReport, UnlistedPack, execute_rebuild

__all__ = ["FileRepair", "bury_gone", "list_orphan_files", "rebuild_packs"]

_compute: Any = pyarrow.compute
_ROWS = 2_000
_BURY_LOOKS_APART_S = 60.0


@dataclass(slots=True)
class FileRepair:
    """What became of orphan objects of files."""

    listed: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    """Key -> why no row was made for it."""


def rebuild_packs(
    store: ObjectStore, prefix: str, *, manifest: ManifestFacts, orphans: KeyTable, clock: Clock
) -> RebuildReport:
    """Read the orphan packs, publish rows of what is sound, and close the manifest's gaps. Safe to repeat."""
    packs = []
    for key, size in zip(names_of(orphans.keys), orphans.sizes.tolist(), strict=True):
        parts = parse_pack_key(prefix, ObjectKey(key))
        if parts is not None:
            packs.append(UnlistedPack(key=ObjectKey(key), parts=parts, size_bytes=size if size >= 0 else None))
    plan = RebuildPlan(
        prefix=prefix,
        packs=tuple(packs),
        gaps=manifest.gaps,
        unreadable=tuple(key for key in manifest.unreadable if key not in manifest.covers),
        tombstoned=frozenset((t.sample_id, t.key, t.offset) for t in manifest.fetch_view(store).tombstones()),
        findings=(),
    )
    return execute_rebuild(store, plan, clock=clock)


def list_orphan_files(
    store: ObjectStore, prefix: str, *, orphans: KeyTable, publisher: RowPublisher, clock: Clock
) -> FileRepair:
    """Read each orphan object of a file in full; one whose bytes match its key gets a row. Safe to repeat."""
    repair = FileRepair()
    rows: list[ManifestRow] = []
    with closing(store.fresh_reader()) as reader:
        for key in map(ObjectKey, names_of(orphans.keys)):
            parts = parse_file_key(prefix, key)
            try:
                if parts is None:
                    raise IntegrityError("its path cannot be that of a file")
                rows.append(_read_row(reader, key, parts=parts, publisher=publisher, time_ns=clock.now_ns()))
            except (IntegrityError, ObjectAbsent) as exc:
                repair.kept[key.text] = exc.message
            if len(rows) >= _ROWS:
                publisher.publish_rows(rows)
                repair.listed += len(rows)
                rows = []
    if rows:
        publisher.publish_rows(rows)
        repair.listed += len(rows)
    return repair


def _read_row(
    reader: ObjectReader, key: ObjectKey, *, parts: FileKeyParts, publisher: RowPublisher, time_ns: int
) -> ManifestRow:
    before = reader.head(key)
    content, transport = xxhash.xxh3_128(), Crc64Nvme()
    for chunk in reader.fetch_chunks(key, version_id=before.version_id):
        content.update(chunk)
        transport.update(chunk)
    digest = Digest(content.hexdigest())
    if digest.short != parts.short_digest or transport.size_bytes == 0:
        raise IntegrityError(f"its {transport.size_bytes} bytes do not match the digest in its key")
    facts = ObjectFacts(
        key=key,
        size_bytes=transport.size_bytes,
        digest=digest,
        crc64nvme=transport.text(),
        etag=before.etag,
        version_id=before.version_id,
        writer=publisher.writer,
    )
    return file_row(parts.path, facts, time_ns=time_ns)


def bury_gone(
    store: ObjectStore,
    keys: Sequence[ObjectKey],
    *,
    manifest: ManifestFacts,
    publish: Callable[[SegmentContent], ObjectKey],
    clock: Clock,
) -> list[Tombstone]:
    """Take out all live rows of those keys that are named as absent twice more, a minute apart. Returns the tombstones.

    Looked for anew because the plan is old: a file may have been sent again meanwhile; and a minute apart because a
    tombstone is for ever, and an index that is being rebuilt says "absent" for seconds. Safe to repeat.
    """
    absent = look_for(store, keys, clock=clock, apart_s=_BURY_LOOKS_APART_S).absent if keys else ()
    if not absent:
        return []
    rows = manifest.fetch_view(store).live_columns(["sample_id", "key", "offset"])
    gone = pa.array([key.text for key in absent], pa.large_string())
    chosen = rows.filter(_compute.is_in(rows.column("key"), value_set=gone)).to_pylist()
    stones = [
        Tombstone(sample_id=SampleId(row["sample_id"]), key=ObjectKey(row["key"]), offset=row["offset"], reason="lost")
        for row in chosen
    ]
    if stones:
        publish(SegmentContent(rows=(), tombstones=tuple(stones)))
    return stones
