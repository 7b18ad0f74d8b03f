"""Which samples of which run failed, and why, for as long as they do.

Duty: one row per run and sample (or unreadable line) in the shared file: the last reason, how often it was tried and
who tried it; settled once the sample is stored. People and `--retry-failed` read it. Must never decide what is done.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from durastore.clock import Clock
from durastore.extract.rows import RowFailure
from durastore.extract.work_db import WorkDb

__all__ = ["FailureBook", "FailureReader", "KnownFailure", "load_failures"]

_COLUMNS = ("run", "sample_id", "line", "stage", "reason", "attempts", "runs", "worker", "time_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """One sample that failed and was not stored since."""

    run: str
    sample_id: str | None
    line: int
    stage: str
    reason: str
    attempts: int
    """Forward passes (or leases) that the last try took."""
    runs: int
    """How many times it was recorded as failed."""
    worker: str
    time_ns: int


class FailureBook:
    """The failures of one run, for one process. Thread-safe."""

    def __init__(self, root: Path, *, run: str, worker: str, clock: Clock) -> None:
        self._db = WorkDb(root)
        self._run = run
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._known = {_name(f.sample_id, f.line) for f in _load(self._db, run=run)}

    def add(self, failure: RowFailure) -> None:
        """Record a failure; a later one of the same sample takes its place. `DiskFailed` if it cannot be written."""
        sample_id = str(failure.sample_id) if failure.sample_id is not None else None
        name = _name(sample_id, failure.line)
        facts = (self._run, name, sample_id, failure.line, failure.stage, failure.reason, failure.attempts)
        with self._lock, self._db.changing() as conn:
            conn.execute(
                "INSERT INTO failure (run, name, sample_id, line, stage, reason, attempts, runs, worker, time_ns)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?) ON CONFLICT (run, name) DO UPDATE SET line = excluded.line,"
                " stage = excluded.stage, reason = excluded.reason, attempts = excluded.attempts, runs = runs + 1,"
                " worker = excluded.worker, time_ns = excluded.time_ns, settled_ns = NULL",
                (*facts, self._worker, self._clock.now_ns()),
            )
            self._known.add(name)

    def knows(self, sample_id: str | None, line: int) -> bool:
        """True if this sample (or line, while it is unreadable or was) is recorded as failed."""
        return _name(sample_id, line) in self._known or _name(None, line) in self._known

    def settle(self, sample_id: str, line: int) -> None:
        """The sample is stored: whatever failed of it before is history."""
        names = [name for name in (_name(sample_id, line), _name(None, line)) if name in self._known]
        if not names:
            return
        with self._lock, self._db.changing() as conn:
            now_ns = self._clock.now_ns()
            conn.executemany(
                "UPDATE failure SET settled_ns = ? WHERE run = ? AND name = ? AND settled_ns IS NULL",
                [(now_ns, self._run, name) for name in names],
            )
            self._known.difference_update(names)

    def failures(self) -> list[KnownFailure]:
        """What is failed now, in the order of the lines."""
        with self._lock:
            return _load(self._db, run=self._run)

    def close(self) -> None:
        """Safe to repeat."""
        self._db.close()


class FailureReader:
    """Looks at the failures of a root from outside, again and again. Writes nothing. Used by one thread."""

    def __init__(self, root: Path) -> None:
        """`StoreMissing` if no extraction has worked there, `DiskFailed`."""
        self._db = WorkDb(root, is_read_only=True)

    def last(self, limit: int) -> tuple[int, tuple[KnownFailure, ...]]:
        """How many samples are failed now, and the last `limit` of them, newest first. `DiskFailed`."""
        sql = (
            f"SELECT {', '.join(_COLUMNS)} FROM failure WHERE settled_ns IS NULL"  # noqa: S608 - names of our own
            " ORDER BY time_ns DESC, run, name LIMIT ?"
        )
        with self._db.reading() as conn:
            (count,) = conn.execute("SELECT count(*) FROM failure WHERE settled_ns IS NULL").fetchone()
            found = tuple(KnownFailure(**dict(zip(_COLUMNS, row, strict=True))) for row in conn.execute(sql, (limit,)))
        return count, found

    def close(self) -> None:
        """Safe to repeat."""
        self._db.close()


def load_failures(root: Path) -> list[KnownFailure]:
    """All samples of a spool root that failed and were not stored since, also while extractors work there.

    Takes no lock and writes nothing. `StoreMissing` if no extraction has worked there.
    """
    db = WorkDb(root, is_read_only=True)
    try:
        return _load(db, run=None)
    finally:
        db.close()


def _load(db: WorkDb, *, run: str | None) -> list[KnownFailure]:
    query = (
        "SELECT run, sample_id, line, stage, reason, attempts, runs, worker, time_ns FROM failure"
        " WHERE settled_ns IS NULL AND (? IS NULL OR run = ?) ORDER BY run, line, name"
    )
    with db.reading() as conn:
        return [KnownFailure(**dict(zip(_COLUMNS, row, strict=True))) for row in conn.execute(query, (run, run))]


def _name(sample_id: str | None, line: int) -> str:
    return f"id {sample_id}" if sample_id is not None else f"line {line}"
