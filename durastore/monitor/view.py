"""The one model of what an operator sees; page, terminal, JSON and metrics only render it.

Duty: frozen values. No I/O, no decisions. Times are Unix nanoseconds, rates per second, sizes bytes, shares 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from durastore.monitor.history import Point, Rates
from durastore.observe.status import Happening, PackAtRisk, Proofs, Stage, Transfers

__all__ = [
    "Banner",
    "Failure",
    "JobView",
    "Limit",
    "Probe",
    "Risk",
    "RoomView",
    "View",
    "WorkerView",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One extraction."""

    name: str
    input: str
    inputs: int
    ok: int
    failed: int
    skipped: int
    state: str
    """`running`, `finished`, `ended` (with something left), or `gone` (its process ended without saying so)."""
    workers: int
    started_ns: int
    ended_ns: int | None
    exit_code: int | None
    samples_per_s: float | None
    eta_s: float | None
    """Until all inputs have an outcome, at the speed of the last five minutes. None: not known, or done."""

    @property
    def done(self) -> int:
        return self.ok + self.failed + self.skipped

    @property
    def share(self) -> float:
        return self.done / self.inputs if self.inputs else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One process at work in a spool, or the spool of one that ended."""

    spool: str
    """With its root's name, where there are several."""
    number: int
    pid: int | None
    state: str
    """`working`, `loading`, `flushing`, `storing`, `waiting`, `stalled`, `silent`, `killed` or `ended`."""
    says: str
    """What is to be said of that."""
    ok: int
    failed: int
    skipped: int
    rates: Rates
    used_bytes: int
    high_bytes: int
    only_local: int
    """Samples that are in no manifest segment yet."""
    waiting_packs: int
    """Sealed, not uploaded yet."""
    age_s: float
    """Since its last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomView:
    """The disk under a root, and how full its spools are."""

    root: str
    used_bytes: int
    fullest: str | None
    """The spool that is nearest to its high watermark, whose marks the next three are."""
    fullest_bytes: int
    high_bytes: int
    low_bytes: int
    reserve_bytes: int
    free_bytes: int | None
    disk_bytes: int | None
    quarantined_bytes: int

    @property
    def fill(self) -> float:
        return self.fullest_bytes / self.high_bytes if self.high_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Which stage keeps the others waiting."""

    stage: str | None
    """None while nothing runs or nothing can be said."""
    starved: tuple[str, ...] = ()
    """The stages behind it, which have nothing to do."""
    held_up: tuple[str, ...] = ()
    """The stages before it, which could do more."""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """Something that has to be seen first."""

    severity: str
    """`bad`, `warn` or `info`."""
    what: str
    """A short stable name, for example `stall`."""
    title: str
    detail: str
    stage: str | None = None
    since_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A sample or pack that could not be done."""

    name: str
    where: str
    reason: str
    at_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """What is only on this machine."""

    samples: int = 0
    packs: int = 0
    size_bytes: int = 0
    oldest_ns: int | None = None
    shown: tuple[tuple[str, PackAtRisk], ...] = ()
    """Spool and pack, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What is known of an endpoint's honesty."""

    place: str
    level: str
    taken_ns: int
    blocking: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything, at one moment."""

    at_ns: int
    roots: tuple[str, ...]
    jobs: tuple[JobView, ...] = ()
    rates: Rates = field(default_factory=Rates)
    series: tuple[Point, ...] = ()
    stages: tuple[Stage, ...] = ()
    limit: Limit = field(default_factory=lambda: Limit(stage=None))
    workers: tuple[WorkerView, ...] = ()
    rooms: tuple[RoomView, ...] = ()
    transfers: Transfers = field(default_factory=Transfers)
    proofs: Proofs = field(default_factory=Proofs)
    audited: int = 0
    """Samples that went through the model twice, to compare."""
    probes: tuple[Probe, ...] = ()
    risk: Risk = field(default_factory=Risk)
    failures: tuple[Failure, ...] = ()
    failure_count: int = 0
    banners: tuple[Banner, ...] = ()
    events: tuple[Happening, ...] = ()
    """What happened last, newest first."""
    deaths: int = 0
    """Processes that ended without saying so since watching began."""

    @property
    def job(self) -> JobView | None:
        """The one that is shown first: running before ended, newest first."""
        running = [job for job in self.jobs if job.state == "running"]
        return next(iter(running or self.jobs), None)
