"""Which extractions worked in a root, how much they had to do, and how they ended: for people.

Duty: one row per job in the shared file, written at a job's start and end. What is done in between, the queue and the
workers tell. Must never decide anything, and never fail a run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from durastore.clock import Clock
from durastore.errors import DurastoreError
from durastore.extract.tally import Counts
from durastore.extract.work_db import WorkDb
from durastore.observe.events import LOGGER

__all__ = ["JobStanding", "Jobs", "KnownJob", "begin_job", "end_job"]

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """One extraction, as it was told at its start or end."""

    job: str
    run: str
    input: str
    pid: int
    workers: int
    """Processes with a common queue; 0 for one that works alone."""
    inputs: int
    skipped: int
    failed: int
    ok: int
    done_before: int
    started_ns: int
    ended_ns: int | None
    exit_code: int | None


_NAMES = tuple(field.name for field in fields(KnownJob))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStanding:
    """A job and what of it is done, as far as the queue knows."""

    job: KnownJob
    ok: int
    failed: int
    skipped: int
    leased: int

    @property
    def done(self) -> int:
        return self.ok + self.failed + self.skipped


class Noted(Protocol):
    """What a report says of a job's end."""

    @property
    def counts(self) -> Counts: ...

    @property
    def exit_code(self) -> int: ...


def begin_job(root: Path, job: KnownJob) -> None:
    """The job begins, or goes on. A file that does not take it costs the run nothing."""
    marks = ", ".join("?" * len(_NAMES))
    sql = f"INSERT OR REPLACE INTO job ({', '.join(_NAMES)}) VALUES ({marks})"  # noqa: S608 - names of our own
    _change(root, sql, facts=tuple(getattr(job, name) for name in _NAMES))


def end_job(root: Path, job: str, *, report: Noted, clock: Clock) -> None:
    """The job ended. As `begin_job`."""
    counts = report.counts
    facts = (counts.ok, counts.failed, counts.skipped, clock.now_ns(), report.exit_code, job)
    sql = "UPDATE job SET ok = ?, failed = ?, skipped = ?, ended_ns = ?, exit_code = ? WHERE job = ?"
    _change(root, sql, facts=facts)


def _change(root: Path, sql: str, *, facts: tuple[object, ...]) -> None:
    try:
        db = WorkDb(root)
        try:
            with db.changing() as conn:
                conn.execute(sql, facts)
        finally:
            db.close()
    except DurastoreError as exc:
        LOGGER.warning("the job's progress is not told: %s", exc)


class Jobs:
    """Looks at the jobs of a root from outside. Writes nothing. Used by one thread."""

    def __init__(self, root: Path) -> None:
        """`StoreMissing` if no extraction has worked there, `DiskFailed`."""
        self._db = WorkDb(root, is_read_only=True)

    def standing(self) -> list[JobStanding]:
        """The newest first, at most five. `DiskFailed`."""
        sql = f"SELECT {', '.join(_NAMES)} FROM job ORDER BY started_ns DESC LIMIT {_SHOWN}"  # noqa: S608 - names of our own
        with self._db.reading() as conn:
            if conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'job'").fetchone() is None:
                return []  # of an older version
            jobs = [KnownJob(**dict(zip(_NAMES, row, strict=True))) for row in conn.execute(sql)]
            return [self._standing_of(job) for job in jobs]

    def _standing_of(self, job: KnownJob) -> JobStanding:
        if job.ended_ns is not None or not job.workers:
            return JobStanding(job=job, ok=job.ok, failed=job.failed, skipped=job.skipped, leased=0)
        with self._db.reading() as conn:
            query = "SELECT state, count(*) FROM task WHERE job = ? GROUP BY state"
            found = dict(conn.execute(query, (job.job,)).fetchall())
        return JobStanding(
            job=job,
            ok=found.get("stored", 0) + max(0, found.get("done", 0) - job.done_before),
            failed=job.failed + found.get("failed", 0),
            skipped=job.skipped,
            leased=found.get("leased", 0),
        )

    def close(self) -> None:
        """Safe to repeat."""
        self._db.close()
