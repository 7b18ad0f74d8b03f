"""Turns verified packs into a manifest segment that was read back.

Order (INV-2): evidence recorded -> segment bytes put and read back -> MANIFESTED recorded. A segment number is used
again with the same bytes until it is through, so that a writer's sequence has no gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from durastore.clock import Stamp, age_s
from durastore.errors import NotVerified
from durastore.formats.entry_columns import EntryColumns, PackRows, render_segment_of
from durastore.formats.segment import SegmentContent, render_segment
from durastore.manifest.segments import publish_segment
from durastore.model import Digest, EvidenceLevel, ObjectFacts, Run, Tombstone
from durastore.spool.journal import PackRecord
from durastore.spool.spool import Spool
from durastore.store.made_again import drop_made_again
from durastore.store.membership import Membership
from durastore.store.services import Services

__all__ = ["Segmenter", "bury"]

_BATCH_PACKS = 16
_BATCH_AGE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    seq: int
    data: bytes
    entries: Mapping[int, EntryColumns]
    """By pack id: what is in it of each pack, to be told once it is through."""
    size_bytes: int
    """Of the packs."""


class Segmenter:
    """Writes the segments of one spool's writer; one `publish` at a time."""

    def __init__(self, spool: Spool, *, services: Services, membership: Membership, lane: int) -> None:
        self._spool = spool
        self._lane = lane
        self._membership = membership
        self._services = services
        self._next_seq = _last_seq(spool) + 1
        self._draft: _Draft | None = None

    def is_due(self, verified: Sequence[PackRecord], *, is_hurried: bool, more_to_come: bool) -> bool:
        """Write now? If packs are enough, the oldest waits long, or somebody waits and no pack is under way."""
        if not verified:
            return False
        if self._draft is not None or len(verified) >= _BATCH_PACKS or (is_hurried and not more_to_come):
            return True
        oldest = min(
            (Stamp.parse(r.evidence.taken) for r in verified if r.evidence), key=lambda s: s.wall_ns, default=None
        )
        age = age_s(oldest, self._services.clock.stamp()) if oldest is not None else None
        return age is None or age >= _BATCH_AGE_S

    @property
    def is_under_way(self) -> bool:
        """Whether a batch may be in the bucket already and is not recorded: its packs have to stay as they are."""
        return self._draft is not None

    def publish(self, verified: Sequence[PackRecord]) -> None:
        """Manifest these packs, or first the batch whose outcome is still open. Network errors pass; safe to repeat."""
        if self._draft is None:
            self._draft = self._make_draft(verified)
        self._send(self._draft)
        self._draft = None

    def _make_draft(self, records: Sequence[PackRecord]) -> _Draft:
        journal = self._spool.journal
        for record, sample_id in drop_made_again(self._spool, self._services, records=records):
            self._membership.drop_pending(sample_id, lane=self._lane, pack_id=record.pack_id)
        for record in records:
            dead = journal.dead_rows(record.pack_id)
            if dead:
                raise NotVerified(
                    f"pack {record.name}: the row of {dead[0]} was taken out for good",
                    hint="its file stays in the spool; report this, and put the sample again",
                )
        packs = [PackRows(_object_of(record), journal.entry_columns(record.pack_id)) for record in records]
        entries = {record.pack_id: pack.entries for record, pack in zip(records, packs, strict=True)}
        runs = _runs(packs, self._spool, current=self._services.run)
        data = render_segment_of(packs, tombstones=journal.tombstones(list(entries)), runs=runs)
        size_bytes = sum(record.size_bytes or 0 for record in records)
        return _Draft(seq=self._next_seq, data=data, entries=entries, size_bytes=size_bytes)

    def _send(self, draft: _Draft) -> None:
        services, journal = self._services, self._spool.journal
        # a rolled-back journal is noticed by this number
        journal.record_segment_started(draft.seq, list(draft.entries))
        key = publish_segment(
            services.objects, draft.data, prefix=services.prefix, writer=self._spool.writer, seq=draft.seq
        )
        services.verifier.check_bucket()  # what was proven before the bucket was made anew is not in it (case B164)
        self._next_seq = draft.seq + 1
        for pack_id, entries in draft.entries.items():
            # before the record: whoever sees MANIFESTED in the journal may ask next which samples are only local
            self._membership.settle(entries, lane=self._lane, pack_id=pack_id)
        at = services.clock.stamp()
        journal.record_manifested(list(draft.entries), key, at=at)  # INV-2: only after the segment was read back
        services.observer.emit(
            "manifest.segment",
            key=key.text,
            packs=len(draft.entries),
            samples=sum(len(entries.offset) for entries in draft.entries.values()),
            bytes=draft.size_bytes,
        )


def bury(spool: Spool, services: Services, *, stones: Sequence[Tombstone]) -> None:
    """Take rows whose object was proven gone out of the view, so that the next run makes their samples again.

    Before the lane of this spool begins. Network errors pass; safe to repeat.
    """
    content = SegmentContent(rows=(), tombstones=tuple(stones), covers=(), runs=())
    seq = _last_seq(spool) + 1
    spool.journal.record_segment_started(seq, ())
    key = publish_segment(
        services.objects, render_segment(content), prefix=services.prefix, writer=spool.writer, seq=seq
    )
    services.observer.emit("manifest.buried", key=key.text, rows=len(stones))


def _last_seq(spool: Spool) -> int:
    return max((w.last_segment_seq for w in spool.journal.writers() if w.writer == spool.writer), default=0)


def _object_of(record: PackRecord) -> ObjectFacts:
    """What the rows of this pack say of its object. `NotVerified` where nothing proves it."""
    evidence = record.evidence
    if evidence is None or evidence.level < EvidenceLevel.ATTESTED or evidence.key != record.key:
        raise NotVerified(f"pack {record.name} has no evidence that a manifest row could rest on (INV-5)")
    if record.key is None or record.size_bytes is None or record.digest is None or record.crc64nvme is None:
        raise NotVerified(f"pack {record.name} was never sealed")
    return ObjectFacts(
        key=record.key,
        size_bytes=record.size_bytes,
        digest=record.digest,
        crc64nvme=record.crc64nvme,
        etag=evidence.etag,
        version_id=evidence.version_id,
        writer=record.writer,
    )


def _runs(packs: Sequence[PackRows], spool: Spool, *, current: Run) -> tuple[Run, ...]:
    """The text of each run named by a row, as far as this spool knows it (packs of an earlier run may be drained)."""
    wanted = {Digest(run) for pack in packs for run in set(pack.entries.run)}
    known = {run.digest: run for run in (*spool.journal.runs().values(), current)}
    return tuple(known[digest] for digest in sorted(wanted) if digest in known)
