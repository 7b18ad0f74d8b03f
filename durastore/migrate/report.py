"""What a migration did, for people and as JSON.

Duty: the report's value, its lines, its exit code. A file of which nothing was known before is never called good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from durastore.migrate.plan import MigratePlan
from durastore.migrate.record import Prior

__all__ = ["MigrateReport", "RootReport"]

_OK, _USAGE, _PARTLY, _LOCKED, _FINDINGS, _NOT_VERIFIED = 0, 2, 3, 11, 12, 13
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RootReport:
    """One spool root of the tree."""

    path: str
    target: str
    is_active: bool
    """It is at work in DST, and SRC refuses to open."""
    busy: tuple[str, ...] = ()
    """Spools that a process works in."""
    reason: str | None = None
    """Why it is not active."""


@dataclass(slots=True, kw_only=True)
class MigrateReport:
    """Everything that has to be known to go on."""

    source: str
    target: str
    plan: MigratePlan
    is_executed: bool = False
    stopped: str | None = None
    """Why no further file was begun."""
    not_attempted: int = 0
    copied: int = 0
    copied_bytes: int = 0
    there_before: int = 0
    links: int = 0
    prior: Counter[Prior] = field(default_factory=Counter)
    """Proven files by what was known of them before; damaged ones are not in it."""
    failed: dict[str, str] = field(default_factory=dict)
    mismatched: tuple[str, ...] = ()
    damaged: dict[str, str] = field(default_factory=dict)
    unproven_paths: tuple[str, ...] = ()
    """Proven copies of files with no prior evidence."""
    hard_links: tuple[str, ...] = ()
    sparse: tuple[str, ...] = ()
    odd: dict[str, str] = field(default_factory=dict)
    links_out: tuple[str, ...] = ()
    superseded: dict[str, str] = field(default_factory=dict)
    leftovers: tuple[str, ...] = ()
    """Temp files of a run that was killed, on a file system that knows no unnamed ones."""
    restored: tuple[str, ...] = ()
    roots: tuple[RootReport, ...] = ()
    notes: tuple[str, ...] = ()
    reclaimed: int = 0
    reclaimed_bytes: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    is_reclaiming: bool = False

    @property
    def exit_code(self) -> int:
        """The first that holds of: 2 refused, 13 read back otherwise than written, 3 partly done, 11 waits for a lock,
        12 damaged sources, 0. Of a dry run: what is known without reading, so never 12 or 13.
        """
        if self.plan.problems:
            return _USAGE
        if not self.is_executed:  # as far as it can be known before a byte is read
            return _PARTLY if self.failed else _LOCKED if any(root.busy for root in self.roots) else _OK
        if self.mismatched:
            return _NOT_VERIFIED
        if any(root.busy for root in self.roots) and not self.failed and self.stopped is None:
            return _LOCKED
        is_handed_over = all(root.is_active for root in self.roots)
        if self.failed or self.kept or self.stopped is not None or not is_handed_over:
            return _PARTLY
        return _FINDINGS if self.damaged else _OK

    def facts(self) -> dict[str, object]:
        """As JSON has it. Paths are text; bytes in them that are no UTF-8 are written as `\\xNN`."""
        return {
            "source": self.source,
            "target": self.target,
            "plan": self.plan.facts(),
            "executed": self.is_executed,
            "stopped": self.stopped,
            "not_attempted": self.not_attempted,
            "copied": self.copied,
            "copied_bytes": self.copied_bytes,
            "there_before": self.there_before,
            "links": self.links,
            "proven": {prior.name.lower(): self.prior[prior] for prior in Prior},
            "failed": _listed(self.failed),
            "damaged": _listed(self.damaged),
            "no_prior_evidence": [_text(path) for path in self.unproven_paths],
            "hard_links": [_text(path) for path in self.hard_links],
            "sparse": [_text(path) for path in self.sparse],
            "odd": _listed(self.odd),
            "links_out": [_text(path) for path in self.links_out],
            "superseded": _listed(self.superseded),
            "leftovers": list(self.leftovers),
            "restored": [_text(path) for path in self.restored],
            "roots": [
                {"path": r.path, "target": r.target, "active": r.is_active, "busy": list(r.busy), "reason": r.reason}
                for r in self.roots
            ],
            "notes": list(self.notes),
            "reclaimed": self.reclaimed,
            "reclaimed_bytes": self.reclaimed_bytes,
            "kept": _listed(self.kept),
            "exit_code": self.exit_code,
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield from _plan_lines(self.plan)
        if not self.is_executed:
            yield from self._finding_lines()
            yield from (_busy_line(self._place(root), root) for root in self.roots if root.busy)
            return
        done = sum(self.prior.values()) + len(self.damaged)
        yield (
            f"copied {self.copied} files ({self.copied_bytes} bytes), {self.there_before} were there; "
            f"{done} files and {self.links} links proven in {self.target}"
        )
        for prior in Prior:
            if self.prior[prior]:
                yield f"  {self.prior[prior]} {prior.value}"
        yield from self._finding_lines()
        for root in self.roots:
            yield _root_line(self._place(root), root)
        if self.is_reclaiming:
            yield f"freed {self.reclaimed} sources ({self.reclaimed_bytes} bytes)"
            yield from _some("kept", self.kept)
        if self.stopped is not None:
            yield f"STOPPED: {self.stopped}; {self.not_attempted} files were not attempted; run the same command again"

    def _place(self, root: RootReport) -> str:
        return _text(f"{self.source}/{root.path}" if root.path else self.source)

    def _finding_lines(self) -> Iterator[str]:
        yield from _some("FAILED", self.failed)
        yield from _some("damaged at the source, copied as it is", self.damaged)
        becomes = "now" if self.is_executed else "then"
        yield from _some(f"hard link, {becomes} a file of its own", dict.fromkeys(self.hard_links))
        yield from _some(f"sparse, {becomes} written in full", dict.fromkeys(self.sparse))
        yield from _some("not copied", self.odd)
        yield from _some("link that leads out of the tree or nowhere, kept as it is", dict.fromkeys(self.links_out))
        yield from _some("earlier copy set aside", self.superseded)
        yield from _some("left by a killed run, may be dropped by hand", dict.fromkeys(self.leftovers))
        yield from _some("taken back from an interrupted run", dict.fromkeys(self.restored))
        yield from self.notes


def _plan_lines(plan: MigratePlan) -> Iterator[str]:
    yield (
        f"plan: {plan.files} files ({plan.size_bytes} bytes), {plan.folders} folders, {plan.links} links to copy; "
        f"{plan.there} names are there already; {plan.waiting} files ({plan.waiting_bytes} bytes) wait for a lock"
    )
    yield f"plan: {plan.needed_bytes} bytes needed and {plan.reserve_bytes} kept free, of {plan.free_bytes} free"
    for note in plan.notes:
        yield f"note: {note}"
    for problem in plan.problems:
        yield f"REFUSED: {problem}"


def _root_line(place: str, root: RootReport) -> str:
    if root.is_active:
        return f"spool root {place} is at {root.target} now; the old place refuses to open"
    return f"spool root {place} is still here, and not active at {root.target}: {root.reason}"


def _busy_line(place: str, root: RootReport) -> str:
    return f"spool root {place} is in use ({', '.join(root.busy)}): its sealed packs can go, the rest needs the lock"


def _some(what: str, found: Mapping[str, str | None]) -> Iterator[str]:
    for path, why in list(found.items())[:_SHOWN]:
        yield f"{what}: {_text(path)}" + (f": {why}" if why else "")
    if len(found) > _SHOWN:
        yield f"{what}: {len(found) - _SHOWN} more (--json lists all)"


def _listed(found: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"path": _text(path), "reason": reason} for path, reason in found.items()]


def _text(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
