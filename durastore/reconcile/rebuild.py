"""Rebuild a manifest from the packs alone (INV-11).

Duty: plan which packs no live row names, then read every byte of them, check each sample, and publish new segments.
Writes segments only: it must never touch a pack, never drop a damaged or foreign object in silence, and never name a
sample in the manifest that was not read back and checked (INV-5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from durastore.clock import Clock
from durastore.errors import ManifestIncomplete
from durastore.formats.keys import PackKeyParts, pack_listing_prefix, parse_pack_key
from durastore.formats.segment import SegmentContent, render_segment
from durastore.manifest.segments import publish_segment
from durastore.manifest.snapshot import SegmentGap, fetch_listing
from durastore.manifest.view import ResolvedView, fetch_partial_view
from durastore.model import Digest, ManifestRow, ObjectKey, Run, SampleId, WriterId
from durastore.objectstore.port import ObjectStore
from durastore.reconcile.findings import Finding, FindingKind
from durastore.reconcile.scan import ScannedPack, scan_pack

__all__ = ["RebuildPlan", "RebuildReport", "UnlistedPack", "execute_rebuild", "plan_rebuild"]

_SEGMENT_ROWS = 20_000
_PACKS_AT_ONCE = 4

_RowName = tuple[SampleId, ObjectKey, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlistedPack:
    """A pack that no live row names."""

    key: ObjectKey
    parts: PackKeyParts
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """What a rebuild would read and repair. Nothing was written for it."""

    prefix: str
    packs: tuple[UnlistedPack, ...]
    gaps: tuple[SegmentGap, ...]
    """Holes in writers' sequences, to be closed with empty segments once every pack was read."""
    unreadable: tuple[ObjectKey, ...]
    """Damaged segments, to be covered likewise."""
    tombstoned: frozenset[_RowName]
    """Rows that are taken out for good: they do not come back."""
    findings: tuple[Finding, ...]

    @property
    def bytes_to_read(self) -> int:
        """Sum of the listed sizes (an object listed without one counts as 0)."""
        return sum(pack.size_bytes or 0 for pack in self.packs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """What a rebuild did."""

    packs_read: int
    bytes_read: int
    rows_published: int
    rows_tombstoned: int
    segments: tuple[ObjectKey, ...]
    """All segments published, repairs included."""
    findings: tuple[Finding, ...]


def plan_rebuild(store: ObjectStore, prefix: str) -> RebuildPlan:
    """List the packs of `prefix` and plan to read those that no live row names. Writes nothing; safe to repeat.

    What is left of the manifest is read, gaps and damage included, which are to be repaired. Errors of listing or
    access pass through: there is no plan then (INV-6).
    """
    listing = fetch_listing(store, prefix)
    view, damaged = fetch_partial_view(store, listing)
    named, buried = view.object_keys(), _buried_keys(view)
    packs: list[UnlistedPack] = []
    findings: list[Finding] = []
    for page in store.list(pack_listing_prefix(prefix)):
        for stat in page:
            parts = parse_pack_key(prefix, stat.key)
            if parts is None:
                detail = "lies among the packs, but durastore gives no object such a name"
                findings.append(
                    Finding(kind=FindingKind.UNTRACKED, key=stat.key, detail=detail, size_bytes=stat.size_bytes)
                )
            elif stat.key not in named:
                packs.append(UnlistedPack(key=stat.key, parts=parts, size_bytes=stat.size_bytes))
                if stat.key in buried:
                    detail = "buried, and back: its rows were taken out as lost; run the extraction again"
                    findings.append(
                        Finding(kind=FindingKind.ORPHAN, key=stat.key, detail=detail, size_bytes=stat.size_bytes)
                    )
    return RebuildPlan(
        prefix=prefix,
        packs=tuple(packs),
        gaps=listing.gaps,
        unreadable=tuple(segment.key for segment in damaged),
        tombstoned=frozenset((t.sample_id, t.key, t.offset) for t in view.tombstones()),
        findings=tuple(findings),
    )


def _buried_keys(view: ResolvedView) -> frozenset[ObjectKey]:
    """Keys of rows taken out as lost, where no live row has the sample."""
    lost = [stone for stone in view.tombstones() if stone.reason == "lost"]
    return frozenset(stone.key for stone in lost if not view.rows_of(stone.sample_id))


def execute_rebuild(store: ObjectStore, plan: RebuildPlan, *, clock: Clock) -> RebuildReport:
    """Read the planned packs in full and publish a row for each sound sample, under a freshly minted writer.

    Interrupted, it leaves whole segments; a new plan goes on from there, and a row published twice is one row. Gaps
    and damaged segments are closed last, so that a manifest counts as complete only once every pack was looked at.
    """
    tally = _Tally(plan)
    publisher = _Publisher(store, plan.prefix)
    for scanned in _scan_all(store, plan.packs, default_time_ns=clock.now_ns()):
        publisher.add(tally.take(scanned), scanned.runs)
    publisher.flush()
    _repair(store, plan, publisher=publisher)
    return tally.report(publisher.segments)


class _Tally:
    """Counts and findings of a rebuild under way."""

    def __init__(self, plan: RebuildPlan) -> None:
        self._tombstoned = plan.tombstoned
        self._findings = list(plan.findings)
        self._packs = self._bytes = self._rows = self._dead = 0

    def take(self, scanned: ScannedPack) -> tuple[ManifestRow, ...]:
        """Count the pack; returns its rows that are to be published."""
        rows = tuple(row for row in scanned.rows if _row_name(row) not in self._tombstoned)
        self._packs += 1
        self._bytes += scanned.size_bytes
        self._rows += len(rows)
        self._dead += len(scanned.rows) - len(rows)
        self._findings.extend(scanned.findings)
        return rows

    def report(self, segments: Iterable[ObjectKey]) -> RebuildReport:
        return RebuildReport(
            packs_read=self._packs,
            bytes_read=self._bytes,
            rows_published=self._rows,
            rows_tombstoned=self._dead,
            segments=tuple(segments),
            findings=tuple(self._findings),
        )


def _row_name(row: ManifestRow) -> _RowName:
    return row.entry.sample_id, row.object.key, row.entry.offset


class _Publisher:
    """Gathers rows into segments of one new writer, numbered 1, 2, 3 ..."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._writer = WriterId.mint()
        self._seq = 0
        self._rows: list[ManifestRow] = []
        self._runs: dict[Digest, Run] = {}
        self.segments: list[ObjectKey] = []

    def add(self, rows: tuple[ManifestRow, ...], runs: tuple[Run, ...]) -> None:
        if rows:
            self._rows.extend(rows)
            self._runs.update((run.digest, run) for run in runs)
        if len(self._rows) >= _SEGMENT_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            runs = tuple(self._runs[digest] for digest in sorted(self._runs))
            self.publish(SegmentContent(rows=tuple(self._rows), runs=runs))
            self._rows, self._runs = [], {}

    def publish(self, content: SegmentContent) -> None:
        """One segment under the next number. On an error the number may be taken: the rebuild must end then."""
        self._seq += 1
        self.fill(content, writer=self._writer, seq=self._seq)

    def fill(self, content: SegmentContent, *, writer: WriterId, seq: int) -> None:
        data = render_segment(content)
        self.segments.append(publish_segment(self._store, data, prefix=self._prefix, writer=writer, seq=seq))


def _scan_all(store: ObjectStore, packs: Iterable[UnlistedPack], *, default_time_ns: int) -> Iterator[ScannedPack]:
    """Scan the packs in order, a few at a time: each is held in memory whole."""
    waiting: deque[Future[ScannedPack]] = deque()
    with ThreadPoolExecutor(max_workers=_PACKS_AT_ONCE, thread_name_prefix="durastore-rebuild") as pool:
        try:
            for pack in packs:
                waiting.append(
                    pool.submit(scan_pack, store, pack.key, parts=pack.parts, default_time_ns=default_time_ns)
                )
                if len(waiting) >= _PACKS_AT_ONCE:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for job in waiting:
                job.cancel()


def _repair(store: ObjectStore, plan: RebuildPlan, *, publisher: _Publisher) -> None:
    """Close the gaps that are still there and cover the damaged segments, so that the manifest is whole again.

    What the lost segments said of packs was published anew before; only their tombstones cannot come back.
    """
    if plan.unreadable:
        publisher.publish(SegmentContent(rows=(), covers=plan.unreadable))
    if not plan.gaps:
        return
    planned = {(gap.writer, seq) for gap in plan.gaps for seq in gap.missing}
    for gap in fetch_listing(store, plan.prefix).gaps:
        if gap.missing_count > len(gap.missing):
            raise ManifestIncomplete(
                f"writer {gap.writer} lacks {gap.missing_count} segments: no such number was ever written",
                hint=f"look at the object that claims to be its segment {gap.last_seq}",
            )
        for seq in gap.missing:
            if (gap.writer, seq) in planned:
                publisher.fill(SegmentContent(rows=()), writer=gap.writer, seq=seq)
