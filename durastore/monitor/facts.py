"""What there is to be seen in a spool root at one moment: status files, journals of spools at rest, jobs, failures.

Duty: values, no I/O (`looking` fills them). Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from durastore.extract.failure_book import KnownFailure
from durastore.extract.job_book import JobStanding
from durastore.objectstore.probe.result import ProbeResult
from durastore.observe.status import StoreRecord, WorkerRecord
from durastore.spool.glance import SpoolGlance

__all__ = ["Liveness", "RootFacts", "SpoolFacts"]


class Liveness(StrEnum):
    """What is known of the process of a spool."""

    LIVE = "live"
    SILENT = "silent"
    """It holds the spool and has not told anything for a while."""
    ENDED = "ended"
    """It said goodbye."""
    KILLED = "killed"
    """It is gone, and did not say goodbye."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolFacts:
    """One spool. Records are the last that were told; a glance is there only for a spool that no process works in."""

    name: str
    store: StoreRecord | None
    worker: WorkerRecord | None
    liveness: Liveness
    silent_s: float
    """Seconds since the last record."""
    disk_wait: str | None = None
    """Where a silent process waits in the kernel."""
    glance: SpoolGlance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFacts:
    """One root."""

    path: str
    spools: tuple[SpoolFacts, ...] = ()
    jobs: tuple[JobStanding, ...] = ()
    """The newest first."""
    failures: tuple[KnownFailure, ...] = ()
    """The last ones, newest first."""
    failure_count: int = 0
    free_bytes: int | None = None
    disk_bytes: int | None = None
    stops: tuple[str, ...] = ()
    """Why nothing is reclaimed."""
    probes: tuple[ProbeResult, ...] = ()
    problem: str | None = None
    """Why the root cannot be looked at."""
    living_pids: frozenset[int] = frozenset()
    """Of the jobs' processes, those that are there."""
