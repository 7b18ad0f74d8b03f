"""Which extractions were started in a root, how much they had to do, and how they ended: for people.

Duty: in the shared file a row for each start, and one for each job, which is the same however often it is started. What
is done in between, the queue and the workers tell. Must never decide anything, and never fail a run that has begun.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from durastore.clock import Clock
from durastore.errors import DurastoreError, IntegrityError, StoreMissing
from durastore.extract.starts import Start
from durastore.extract.tally import Counts
from durastore.extract.work_db import WorkDb
from durastore.observe.events import LOGGER

__all__ = ["JobStanding", "Jobs", "KnownJob", "begin_job", "end_job", "load_starts", "note_found"]

_SHOWN = 5
_KEPT = 1_000
"""Starts that are handed out, the newest first."""
_NUMBERS = ("workers", "inputs", "skipped", "failed", "ok", "done_before", "ended_ns", "exit_code")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """One extraction, as it was told at its start or end."""

    job: str
    """The name that all starts of it share."""
    start: Start
    """The last one."""
    workers: int
    """Processes with a common queue; 0 for one that works alone."""
    inputs: int
    skipped: int = 0
    failed: int = 0
    ok: int = 0
    done_before: int = 0
    """Samples that the queue had as done when the job began."""
    ended_ns: int | None = None
    exit_code: int | None = None

    @property
    def pid(self) -> int:
        return self.start.pid

    @property
    def input(self) -> str:
        return self.start.input

    @property
    def started_ns(self) -> int:
        return self.start.stamp.wall_ns


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
    """The job was started, for the first time or again. `DiskFailed`, while it still costs nothing."""
    start = job.start
    with closing(WorkDb(root)) as db, db.changing() as conn:
        noted = conn.execute("INSERT INTO start (time_ns, facts) VALUES (?, ?)", (job.started_ns, start.render()))
        conn.execute("INSERT OR REPLACE INTO job (job, start) VALUES (?, ?)", (job.job, noted.lastrowid))
        _update(conn, job.job, facts={name: getattr(job, name) for name in _NUMBERS})


def note_found(root: Path, job: str, *, counts: Counts, done_before: int) -> None:
    """What came of reading the input of a job with a queue. A file that does not take it costs the run nothing."""
    _note(root, job, facts={"skipped": counts.skipped, "failed": counts.failed, "done_before": done_before})


def end_job(root: Path, job: str, *, report: Noted, clock: Clock) -> None:
    """The job ended. As `note_found`."""
    counts = report.counts
    facts = {"ok": counts.ok, "failed": counts.failed, "skipped": counts.skipped}
    _note(root, job, facts={**facts, "ended_ns": clock.now_ns(), "exit_code": report.exit_code})


def _note(root: Path, job: str, *, facts: Mapping[str, int | None]) -> None:
    try:
        with closing(WorkDb(root)) as db, db.changing() as conn:
            _update(conn, job, facts=facts)
    except DurastoreError as exc:
        LOGGER.warning("the job's progress is not told: %s", exc)


def _update(conn: sqlite3.Connection, job: str, *, facts: Mapping[str, int | None]) -> None:
    columns = ", ".join(f"{name} = ?" for name in facts)
    conn.execute(f"UPDATE job SET {columns} WHERE job = ?", (*facts.values(), job))  # noqa: S608 - columns of `_NUMBERS`


def load_starts(root: Path) -> list[Start]:
    """The starts that can be read, the newest first; empty where no extraction has worked. Writes nothing.

    `DiskFailed` where the file cannot be read.
    """
    try:
        db = WorkDb(root, is_read_only=True)
    except StoreMissing:
        return []
    with closing(db), db.reading() as conn:
        if not _has_table(conn, "start"):
            return []
        rows = conn.execute("SELECT facts FROM start ORDER BY id DESC LIMIT ?", (_KEPT,)).fetchall()
    return [start for (text,) in rows if (start := _parsed(text)) is not None]


class Jobs:
    """Looks at the jobs of a root from outside. Writes nothing. Used by one thread."""

    def __init__(self, root: Path) -> None:
        """`StoreMissing` if no extraction has worked there, `DiskFailed`."""
        self._db = WorkDb(root, is_read_only=True)

    def standing(self) -> list[JobStanding]:
        """The newest first, at most five. `DiskFailed`."""
        columns = ", ".join(f"job.{name}" for name in _NUMBERS)
        sql = f"SELECT job.job, start.facts, {columns} FROM job JOIN start ON start.id = job.start"  # noqa: S608 - `_NUMBERS`
        with self._db.reading() as conn:
            if not _has_table(conn, "job"):
                return []
            rows = conn.execute(f"{sql} ORDER BY job.start DESC LIMIT {_SHOWN}").fetchall()
        return [
            self._standing_of(KnownJob(job=name, start=start, **dict(zip(_NUMBERS, numbers, strict=True))))
            for name, text, *numbers in rows
            if (start := _parsed(text)) is not None
        ]

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


def _has_table(conn: sqlite3.Connection, name: str) -> bool:
    """False where the file is of an older version."""
    return conn.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def _parsed(text: str) -> Start | None:
    """None for one of a newer version: it is for people, and others tell the same."""
    try:
        return Start.parse(text)
    except IntegrityError:
        return None
