"""Samples of a pack that got another file, and that were put again meanwhile: the later put counts.

Duty: keep what was LOST and came back, or was saved under another key, from hiding newer content. Whoever put the
sample again found its old row superseded or taken out, and has no tombstone for the row that the new file would get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from durastore.manifest.fetching import SegmentPart
from durastore.manifest.snapshot import fetch_listing, fetch_snapshot
from durastore.manifest.view import ResolvedView, fetch_partial_view, fetch_view
from durastore.model import ObjectKey, PackState, SampleEntry, SampleId, Tombstone
from durastore.observe.events import LOGGER
from durastore.spool.journal import PackRecord
from durastore.spool.records import FACT_DOUBTFUL
from durastore.spool.spool import Spool
from durastore.store.services import Services

__all__ = ["drop_made_again", "fetch_tombstones", "move_buried", "settle_doubtful"]

_GONE = (PackState.LOST, PackState.QUARANTINED, PackState.RECLAIMED)
_Row = tuple[SampleId, ObjectKey, int]


def settle_doubtful(spool: Spool, services: Services) -> None:
    """At an open: what was read back from files without a row counts only where no other content of the sample does.
    Its put may not have returned, and which of two contents is the later one cannot be told any more.
    """
    doubtful = spool.journal.doubtful_packs()
    for record, sample_id in drop_made_again(spool, services, records=doubtful, is_doubtful=True):
        LOGGER.error("the content of %s in pack %s, which no journal knew, is not used", sample_id, record.name)
    for record in doubtful:
        if not spool.journal.pack(record.pack_id).sample_count:
            # which forgets it, and sets its file aside
            spool.salvage(record.pack_id, reason="nothing in it counts").raise_unless_full()
        spool.journal.set_fact(f"{FACT_DOUBTFUL}{record.pack_id}", None)


def fetch_tombstones(services: Services) -> list[Tombstone]:
    """Of every segment that can be read. Damage and gaps are refused by the catalog, a moment later; here they must not
    keep the other checks from running. Network errors pass.
    """
    part = SegmentPart(rows=_tombstones_only)
    view, _ = fetch_partial_view(services.objects, fetch_listing(services.objects, services.prefix), part=part)
    return list(view.tombstones())


def move_buried(spool: Spool, tombstones: Callable[[], list[Tombstone]]) -> None:
    """Give each pack whose file is here, and of whose rows the manifest says that they are taken out, a new file and
    key: under the old one no row of it would ever be live again, whoever took them out, and its file would be freed.

    What was superseded stays so. `tombstones` is asked only where such packs may be. Network and disk errors pass; safe
    to repeat.
    """
    held = [
        record
        for record in spool.journal.packs()
        if record.key is not None
        and record.state not in (*_GONE, PackState.OPEN)
        and record.sample_count
        and spool.packs_folder.has(record.name)
    ]
    if not held:
        return
    keys = {record.key for record in held}
    stones = [stone for stone in tombstones() if stone.key in keys]
    later = {_row(stone) for stone in stones if stone.reason == "superseded"}
    dead = {_row(stone) for stone in stones} - later
    for record in held:
        assert record.key is not None
        rows = {(e.sample_id, record.key, e.offset) for e in spool.journal.entries(record.pack_id)} if stones else set()
        if not rows & dead:
            continue
        if rows & later:  # under a new key nobody would have a tombstone for them
            spool.journal.drop_samples(record.pack_id, sorted(sample_id for sample_id, _, _ in rows & later))
        report = spool.salvage(record.pack_id, reason="its rows were taken out of the manifest")
        LOGGER.warning("pack %s: its rows were taken out; %d samples get another key", record.name, report.saved)


def _tombstones_only(table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(table.column("kind"), pa.scalar("tombstone")))


def drop_made_again(
    spool: Spool, services: Services, *, records: Sequence[PackRecord], is_doubtful: bool = False
) -> list[tuple[PackRecord, SampleId]]:
    """Let go of such samples of `records` and return them; their bytes stay where they are. Network errors pass; safe
    to repeat. `is_doubtful`: whatever other content there is was put again.
    """
    moved = {record.pack_id: _old_rows(spool, record) for record in records if record.state not in _GONE}
    if not any(moved.values()) and not (moved and is_doubtful):
        return []  # as nearly always: the manifest is not even looked at
    view = fetch_view(services.objects, fetch_snapshot(services.objects, services.prefix))
    dead = {_row(stone) for stone in view.tombstones()}
    dropped: list[tuple[PackRecord, SampleId]] = []
    for record in records:
        rows = moved.get(record.pack_id, set())
        taken_out = {sample_id for sample_id, _, _ in rows & dead}
        again = [
            entry.sample_id
            for entry in spool.journal.entries(record.pack_id)
            if (rows or is_doubtful)
            and not _is_listed(view, record, entry=entry)
            and (
                ((is_doubtful or entry.sample_id in taken_out) and _has_other(view, entry, own=rows))
                or _is_other_here(spool, record, entry=entry, is_newer=not is_doubtful)
            )
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


def _is_listed(view: ResolvedView, record: PackRecord, *, entry: SampleEntry) -> bool:
    """Whether its row under the pack's present key is live: whoever put the sample since has a tombstone for that."""
    return any(row.object.key == record.key for row in view.rows_of(entry.sample_id))


def _has_other(view: ResolvedView, entry: SampleEntry, *, own: set[_Row]) -> bool:
    """Whether another content of the sample is live; a row of the same content is no reason to let a copy go."""
    others = [
        row.entry
        for row in view.rows_of(entry.sample_id)
        if row.entry.run == entry.run and (entry.sample_id, row.object.key, row.entry.offset) not in own
    ]
    return bool(others) and all(other.header_digest != entry.header_digest for other in others)


def _is_other_here(spool: Spool, record: PackRecord, *, entry: SampleEntry, is_newer: bool) -> bool:
    """Whether another pack of this journal (`is_newer`: a younger one) has another content of the sample."""
    return any(
        other.pack_id != record.pack_id and other.state not in _GONE and found.header_digest != entry.header_digest
        for other, found in spool.journal.find_sample(entry.sample_id)
        if found.run == entry.run and (other.pack_id > record.pack_id or not is_newer)
    )
