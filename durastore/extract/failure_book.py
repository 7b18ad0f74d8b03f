"""Which samples of which run failed, and why, for as long as they do.

Duty: one row per run and sample (or unreadable line) in the shared file: the last reason, how often it was tried and
who tried it; settled once the sample is stored. Beside it, what the bucket was told of that, and what others told it
(`failure_teller`). People and `--retry-failed` read it. Must never decide what is done.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durastore.clock import Clock
from durastore.extract.failure_words import shareable
from durastore.extract.rows import RowFailure
from durastore.extract.work_db import WorkDb
from durastore.formats.failure_list import TEXT_LIMITS, FailedSample, SettledFailure, plain_text
from durastore.model import Digest, SampleId

__all__ = ["FailureBook", "FailureReader", "HeardFailure", "KnownFailure", "load_failures"]

_LATEST_NS, _MOST_RUNS = 1 << 61, 1_000_000_000
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardFailure:
    """One failure that the bucket knows of, whoever told it."""

    sample_id: str | None
    line: int
    runs: int
    time_ns: int


class FailureBook:
    """The failures of one run, for one process. Thread-safe."""

    def __init__(self, root: Path, *, run: str, worker: str, clock: Clock) -> None:
        self._db = WorkDb(root)
        self._run = run
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        query = (
            "SELECT name FROM failure WHERE run = ? AND settled_ns IS NULL"
            " UNION SELECT name FROM failure_told WHERE run = ? AND stored_id IS NULL"
        )
        with self._db.reading() as conn:
            self._known = {name for (name,) in conn.execute(query, (run, run))}

    def add(self, failure: RowFailure) -> None:
        """Record a failure; a later one of the same sample takes its place. `DiskFailed` if it cannot be written."""
        sample_id = str(failure.sample_id) if failure.sample_id is not None else None
        name = _name(sample_id, failure.line)
        digest = failure.input_digest.hex if failure.input_digest is not None else None
        # A library's error may hold bytes of a file name that are no UTF-8, which the file cannot take.
        reason = failure.reason.encode("utf-8", "backslashreplace").decode()
        facts = (self._run, name, sample_id, failure.line, failure.stage, reason, failure.attempts)
        with self._lock, self._db.changing() as conn:
            told_ns, told_runs = _told(conn, run=self._run, name=name)
            # After what was told, whatever the clock says: else the bucket would take the older one for the later.
            time_ns = max(self._clock.now_ns(), told_ns + 1)
            conn.execute(
                "INSERT INTO failure (run, name, sample_id, line, stage, reason, attempts, runs, worker, time_ns,"
                " input_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ? + 1, ?, ?, ?) ON CONFLICT (run, name) DO UPDATE SET"
                " line = excluded.line, stage = excluded.stage, reason = excluded.reason, attempts = excluded.attempts,"
                " runs = max(runs + 1, excluded.runs), worker = excluded.worker, time_ns = excluded.time_ns,"
                " input_digest = excluded.input_digest, settled_ns = NULL",
                (*facts, told_runs, self._worker, time_ns, digest),
            )
            conn.execute(
                "UPDATE failure_told SET stored_id = NULL, is_settled = 0 WHERE run = ? AND name = ?", (self._run, name)
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
            # Also where nothing was told yet: it may be on its way to the bucket at this moment.
            conn.executemany(
                "INSERT INTO failure_told (run, name, line, stored_id) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (run, name) DO UPDATE SET stored_id = excluded.stored_id,"
                " is_settled = CASE WHEN stored_id IS excluded.stored_id THEN is_settled ELSE 0 END",
                [(self._run, name, line, sample_id) for name in names],
            )
            self._known.difference_update(names)

    # --- what the bucket knows ---------------------------------------------------------------------------------------

    def hear(self, failures: Iterable[HeardFailure]) -> None:
        """What the bucket's lists call failed: known from now on, to all processes of this root that begin later.

        Known here also if it was settled here: the sample may have been lost since with its spool, or have gone to
        another bucket. Whether this bucket has it, the store tells.
        """
        rows = [
            # Whoever tells that a sample failed in the far future must not make its next failure one that nobody takes.
            (self._run, _name(f.sample_id, f.line), f.line, min(f.time_ns, _LATEST_NS), min(f.runs, _MOST_RUNS))
            for f in failures
        ]
        with self._lock, self._db.changing() as conn:
            conn.executemany(
                "INSERT INTO failure_told (run, name, line, time_ns, runs) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (run, name) DO UPDATE SET time_ns = max(time_ns, excluded.time_ns),"
                " runs = max(runs, excluded.runs),"
                " stored_id = CASE WHEN excluded.time_ns > time_ns THEN NULL ELSE stored_id END,"
                " is_settled = CASE WHEN excluded.time_ns > time_ns THEN 0 ELSE is_settled END",
                rows,
            )
            self._known.update(name for _, name, *_ in rows)

    def untold(self, *, host: str, limit: int) -> list[FailedSample | SettledFailure]:
        """What the bucket has not been told yet, at most `limit` rows, fit to be told. `host`: this machine."""
        failed = (
            "SELECT f.sample_id, f.line, f.input_digest, f.stage, f.reason, f.attempts, f.runs, f.worker, f.time_ns"
            " FROM failure f LEFT JOIN failure_told t ON t.run = f.run AND t.name = f.name"
            " WHERE f.run = ? AND f.settled_ns IS NULL AND coalesce(t.time_ns, 0) < f.time_ns ORDER BY f.name LIMIT ?"
        )
        settled = (
            "SELECT name, line, time_ns, stored_id FROM failure_told"
            " WHERE run = ? AND stored_id IS NOT NULL AND is_settled = 0 AND time_ns > 0 ORDER BY name LIMIT ?"
        )
        with self._lock, self._db.reading() as conn:
            first = conn.execute(failed, (self._run, limit)).fetchall()
            then = conn.execute(settled, (self._run, limit - len(first))).fetchall()
        # Not under the lock: whoever fails or stores a sample would wait for it.
        return [*(_failed_sample(row, host=host) for row in first), *(_settled_failure(row) for row in then)]

    def told(self, rows: Sequence[FailedSample | SettledFailure]) -> None:
        """These are in the bucket, read back. What became of them meanwhile is told next."""
        failed = [
            (self._run, _name_of(row), row.line, row.time_ns, row.runs) for row in rows if isinstance(row, FailedSample)
        ]
        settled = [
            (self._run, _name_of(row), row.time_ns, row.stored_id.text)
            for row in rows
            if isinstance(row, SettledFailure)
        ]
        with self._lock, self._db.changing() as conn:
            conn.executemany(
                "INSERT INTO failure_told (run, name, line, time_ns, runs) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (run, name) DO UPDATE SET time_ns = max(time_ns, excluded.time_ns),"
                " runs = max(runs, excluded.runs)",
                failed,
            )
            conn.executemany(
                "UPDATE failure_told SET is_settled = 1 WHERE run = ? AND name = ? AND time_ns = ? AND stored_id = ?",
                settled,
            )

    def failures(self) -> list[KnownFailure]:
        """What is failed now, in the order of the lines."""
        with self._lock:
            return _load(self._db, run=self._run)

    def close(self) -> None:
        """Safe to repeat."""
        with self._lock:
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


def _told(conn: sqlite3.Connection, *, run: str, name: str) -> tuple[int, int]:
    """Time and `runs` of what the bucket knows of it; zeros where that is nothing."""
    query = "SELECT time_ns, runs FROM failure_told WHERE run = ? AND name = ?"
    time_ns, runs = conn.execute(query, (run, name)).fetchone() or (0, 0)
    return time_ns, runs


def _name_of(row: FailedSample | SettledFailure) -> str:
    return _name(row.sample_id.text if row.sample_id is not None else None, row.line)


def _failed_sample(row: Sequence[Any], *, host: str) -> FailedSample:
    sample_id, line, digest, stage, reason, attempts, runs, worker, time_ns = row
    return FailedSample(
        sample_id=SampleId(sample_id) if sample_id is not None else None,
        line=line,
        input_digest=Digest(digest) if digest is not None else None,
        stage=plain_text(stage, limit=TEXT_LIMITS["stage"]),
        reason=shareable(reason),
        attempts=attempts,
        runs=runs,
        worker=plain_text(worker, limit=TEXT_LIMITS["worker"]),
        host=plain_text(host, limit=TEXT_LIMITS["host"]),
        time_ns=time_ns,
    )


def _settled_failure(row: Sequence[Any]) -> SettledFailure:
    name, line, time_ns, stored_id = row
    sample_id = SampleId(name.removeprefix("id ")) if name.startswith("id ") else None
    return SettledFailure(sample_id=sample_id, line=line, time_ns=time_ns, stored_id=SampleId(stored_id))
