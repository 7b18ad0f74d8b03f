"""The inventory report at the end of a run: counts, bytes, findings, and what was done. Pure.

Duty: the value, its JSON form, and the lines for people. The sums of every side are taken twice, as a whole and by
class; where they differ the report says so and the exit code is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from durastore.model import render_json
from durastore.reconcile.applied import Applied
from durastore.reconcile.bucket import ManifestFacts
from durastore.reconcile.compare import BucketComparison
from durastore.reconcile.findings import FindingSet
from durastore.reconcile.folder import FolderFacts

if TYPE_CHECKING:  # a folder has none
    from durastore.reconcile.spools import SpoolFacts

__all__ = ["ADOPTED", "Count", "ReconcileReport", "folder_counts", "spool_counts"]

ADOPTED = "adopted folder"
_ROWS = "manifest rows"  # which have no size of their own
_SHOWN = 20
_FINDINGS, _NOT_VERIFIED, _PARTLY = 12, 13, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many of something, and how many bytes."""

    what: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """One run, as it ended. `findings` are what is left; `before` what there was, where something was done."""

    root: str
    bucket: str
    kind: str
    """`folder`, `adopted folder` or `spools`."""
    is_deep: bool
    counts: tuple[Count, ...]
    adds_up: bool
    """Whether every sum by class is the sum of the whole."""
    findings: tuple[FindingSet, ...]
    before: tuple[FindingSet, ...] = ()
    applied: Applied | None = None
    case_collisions: int = 0
    """Local names that differ from another one by case only."""

    @property
    def exit_code(self) -> int:
        """0 only where nothing disagrees and nothing was left undone."""
        if self.applied is not None and (self.applied.unproven or self.applied.refused):
            return _NOT_VERIFIED
        if self.applied is not None and self.applied.failed:
            return _PARTLY
        is_open = any(not finding.is_note for finding in self.findings)
        return _FINDINGS if is_open or not self.adds_up else 0

    def facts(self) -> dict[str, Any]:
        """The report as plain values, all names included."""
        return {
            "root": self.root,
            "bucket": self.bucket,
            "kind": self.kind,
            "deep": self.is_deep,
            "applied": asdict(self.applied) if self.applied is not None else None,
            "counts": {each.what: {"count": each.count, "bytes": each.size_bytes} for each in self.counts},
            "sums_agree": self.adds_up,
            "case_collisions": self.case_collisions,
            "findings": [_finding_facts(finding) for finding in self.findings],
            "findings_before": [_finding_facts(finding) for finding in self.before],
            "exit_code": self.exit_code,
        }

    def render(self) -> str:
        """The report as JSON with a final newline."""
        return render_json(self.facts()) + "\n"

    def lines(self) -> Iterator[str]:
        """The report for people: a few names of each finding."""
        kind = "folder" if self.kind == ADOPTED and self.applied is None else self.kind
        yield f"{kind} {self.root} against {self.bucket}"
        for each in self.counts:
            yield f"  {each.what}: {each.count}" + (f" ({each.size_bytes} bytes)" if each.what != _ROWS else "")
        yield "  sums: " + ("agree" if self.adds_up else "DO NOT AGREE: something changed while it was looked at")
        if not self.is_deep:
            deep = "reconcile --deep" if self.kind == ADOPTED else "--deep"
            yield f"  files that were hashed before and have not changed since were not re-hashed ({deep} does)"
        if self.case_collisions:
            yield f"  {self.case_collisions} names differ from another one by case only"
        if self.applied is not None:
            yield from _done_lines(self.applied)
        told = "left" if self.applied is not None else "--apply" if self.kind != ADOPTED else "without --dry-run"
        yield from _finding_lines(self.findings, told=told)
        if not any(not finding.is_note for finding in self.findings):
            yield "nothing disagrees"


def _finding_facts(finding: FindingSet) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "side": finding.side.value,
        "meaning": finding.meaning,
        "action": finding.action.value,
        "count": finding.count,
        "bytes": finding.size_bytes,
        "is_note": finding.is_note,
        "names": list(finding.names),
        "details": list(finding.details),
    }


def _finding_lines(findings: Iterable[FindingSet], *, told: str) -> Iterator[str]:
    for finding in findings:
        size = f", {finding.size_bytes} bytes" if finding.sizes else ""
        yield f"{finding.kind.value} ({finding.side.value}): {finding.count}{size}: {finding.meaning}"
        if not finding.is_note:
            yield f"  {told}: {finding.action.value}"
        details = finding.details or [""] * finding.count
        for name, detail in nsmallest(_SHOWN, zip(finding.names, details, strict=True)):  # a disk has no order
            yield f"    {_shown(name)}" + (f": {detail}" if detail else "")
        if finding.count > _SHOWN:
            yield f"    ... and {finding.count - _SHOWN} more (--json and --report name all)"


def _done_lines(done: Applied) -> Iterator[str]:
    for what, count in (
        ("moved back from an interrupted run", len(done.moved_back)),
        ("moved to quarantine", len(done.quarantined)),
        ("uploaded, read back and listed", done.uploaded),
        ("bytes uploaded", done.uploaded_bytes),
        ("rows rebuilt", done.rows_rebuilt),
        ("rows taken out", done.rows_buried),
        ("reclaimed, each after its own proof", done.reclaimed),
        ("bytes reclaimed", done.reclaimed_bytes),
    ):
        if count:
            yield f"done: {what}: {count}"
    for what, found in (("refused", done.refused), ("not done", done.failed), ("kept, not proven", done.unproven)):
        for name, why in list(found.items())[:_SHOWN]:
            yield f"{what}: {_shown(name)}: {why}"
        if len(found) > _SHOWN:
            yield f"{what}: ... and {len(found) - _SHOWN} more"


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)[1:-1]


# --- counting ----------------------------------------------------------------------------------------------------


def folder_counts(facts: FolderFacts) -> tuple[tuple[Count, ...], bool]:
    """Counts of a folder and its bucket, and whether the classes add up."""
    local, split = facts.local, facts.split
    other = ~facts.is_data
    parts = (split.agreeing, split.divergent, split.only_local, facts.unhashed, other)
    adds_up = sum(int(part.sum()) for part in parts) == len(local.paths)
    adds_up &= sum(int(local.sizes[part].sum()) for part in parts) == int(local.sizes.sum())
    counts = [
        Count(what="local files", count=len(local.paths), size_bytes=int(local.sizes.sum())),
        _masked(facts, split.agreeing, what="local files in the manifest"),
        _masked(facts, split.divergent, what="local files with another content listed"),
        _masked(facts, split.only_local, what="local files only here"),
        _masked(facts, facts.unhashed, what="local files not compared by content yet"),
        _masked(facts, other, what="local files of no known format or name"),
    ]
    more, remote_adds_up = _remote_counts(facts.bucket, facts.manifest)
    return (*counts, *more), bool(adds_up) and remote_adds_up


def _masked(facts: FolderFacts, mask: Any, *, what: str) -> Count:
    return Count(what=what, count=int(mask.sum()), size_bytes=int(facts.local.sizes[mask].sum()))


def spool_counts(facts: SpoolFacts) -> tuple[tuple[Count, ...], bool]:
    """Counts of a spool root and its bucket, and whether the classes add up."""
    from durastore.reconcile.spools import WITH_FILE

    counts = [
        Count(
            what="local pack files",
            count=sum(len(look.files.names) for look in facts.spools),
            size_bytes=sum(sum(look.files.sizes) for look in facts.spools),
        )
    ]
    for state in (*WITH_FILE, "quarantined", "lost"):
        sizes = [
            max(size, 0)
            for look in facts.spools
            for size, held in zip(look.packs.sizes, look.packs.states, strict=True)
            if held == state
        ]
        if sizes:
            counts.append(Count(what=f"journal packs {state}", count=len(sizes), size_bytes=sum(sizes)))
    more, adds_up = _remote_counts(facts.bucket, facts.manifest)
    return (*counts, *more), adds_up


def _remote_counts(bucket: BucketComparison | None, manifest: ManifestFacts) -> tuple[list[Count], bool]:
    rows = manifest.objects
    counts = [
        Count(what=_ROWS, count=manifest.row_count, size_bytes=0),
        Count(what="manifest objects", count=len(rows), size_bytes=int(rows.sizes.sum())),
        Count(what="manifest segments", count=len(manifest.segments), size_bytes=int(manifest.segments.sizes.sum())),
    ]
    if bucket is None:
        return counts, False
    listed = bucket.listed
    counts += [
        Count(what="bucket objects", count=len(listed), size_bytes=int(listed.sizes.sum())),
        Count(what="bucket objects that rows name", count=bucket.agreeing, size_bytes=bucket.agreeing_bytes),
    ]
    for what, table in (
        ("bucket objects without rows", bucket.orphan_packs),
        ("bucket files without rows", bucket.orphan_files),
        ("bucket objects of rows taken out, or of packs on their way", bucket.known_dead),
        ("bucket objects of another size", bucket.resized),
        ("bucket objects that are none of ours", bucket.untracked),
    ):
        if len(table):
            counts.append(Count(what=what, count=len(table), size_bytes=int(table.sizes.sum())))
    return counts, bucket.adds_up
