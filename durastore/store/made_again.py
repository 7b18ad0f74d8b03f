"""Samples of a pack that got another file, and that were put again meanwhile: the later put counts.

Duty: keep what was LOST and came back, or was saved under another key, from hiding newer content. Whoever put the
sample again found its old row superseded or taken out, and has no tombstone for the row that the new file would get.
"""

from __future__ import annotations

from collections.abc import Sequence

from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import ResolvedView, fetch_view
from durastore.model import ObjectKey, PackState, SampleEntry, SampleId, Tombstone
from durastore.observe.events import LOGGER
from durastore.spool.journal import PackRecord
from durastore.spool.spool import Spool
from durastore.store.services import Services

__all__ = ["drop_made_again"]

_GONE = (PackState.LOST, PackState.QUARANTINED, PackState.RECLAIMED)
_Row = tuple[SampleId, ObjectKey, int]


def drop_made_again(
    spool: Spool, services: Services, *, records: Sequence[PackRecord]
) -> list[tuple[PackRecord, SampleId]]:
    """Let go of such samples of `records` and return them; their bytes stay where they are. Network errors pass; safe
    to repeat.
    """
    moved = {record.pack_id: _old_rows(spool, record) for record in records if record.state not in _GONE}
    if not any(moved.values()):
        return []  # as nearly always: the manifest is not even looked at
    view = fetch_view(services.objects, fetch_snapshot(services.objects, services.prefix))
    dead = {_row(stone) for stone in view.tombstones()}
    dropped: list[tuple[PackRecord, SampleId]] = []
    for record in records:
        rows = moved.get(record.pack_id) or set()
        taken_out = {sample_id for sample_id, _, _ in rows & dead}
        again = [
            entry.sample_id
            for entry in spool.journal.entries(record.pack_id)
            if (entry.sample_id in taken_out and _has_other(view, record, entry=entry, own=rows))
            or (rows and _is_newer_here(spool, record, entry=entry))
        ]
        if again:
            LOGGER.warning("pack %s: %d samples were put again since; the later ones count", record.name, len(again))
            spool.journal.drop_samples(record.pack_id, again)
            dropped.extend((record, sample_id) for sample_id in again)
    return dropped


def _old_rows(spool: Spool, record: PackRecord) -> set[_Row]:
    stones = spool.journal.tombstones([record.pack_id])
    return {_row(stone) for stone in stones if stone.reason != "superseded" and stone.key != record.key}


def _row(stone: Tombstone) -> _Row:
    return stone.sample_id, stone.key, stone.offset


def _has_other(view: ResolvedView, record: PackRecord, *, entry: SampleEntry, own: set[_Row]) -> bool:
    """Whether another content of the sample is live; a row of the same content is no reason to let a copy go."""
    others = [
        row.entry
        for row in view.rows_of(entry.sample_id)
        if row.entry.run == entry.run
        and row.object.key != record.key
        and (entry.sample_id, row.object.key, row.entry.offset) not in own
    ]
    return bool(others) and all(other.header_digest != entry.header_digest for other in others)


def _is_newer_here(spool: Spool, record: PackRecord, *, entry: SampleEntry) -> bool:
    """Whether a younger pack of this journal has another content of the sample."""
    return any(
        other.pack_id > record.pack_id and other.state not in _GONE and found.header_digest != entry.header_digest
        for other, found in spool.journal.find_sample(entry.sample_id)
        if found.run == entry.run
    )
