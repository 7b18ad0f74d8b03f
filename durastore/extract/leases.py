"""Which worker of this machine does which sample.

Duty: a queue of the samples that are left, longest first; leases that end with their worker (the kernel says so) or
with their time; and how often a sample was leased. A sample whose worker ended goes last and alone, so that one that
kills its worker is found and no other is blamed. Must never call a sample done: a lease is a promise not to work twice,
and breaking it costs a forward pass only, because puts are idempotent.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from durastore.clock import Clock
from durastore.extract.batching import BATCH_ROWS
from durastore.extract.rows import RowFailure
from durastore.extract.work_db import ALIVE_FILE, WorkDb
from durastore.fsio.alive import PresenceFile
from durastore.model import SampleId

__all__ = ["MOST_LAPSES", "LeaseQueue", "Standing", "Task", "TaskState"]

_PAGE_ROWS = 1000
_FLUSHED, _LEAVING = 1, 2
MOST_LAPSES = 3
"""A sample that was in work when its worker ended (or its time) so often is failed."""


class TaskState(StrEnum):
    """Where a sample of the queue stands."""

    OPEN = "open"
    LEASED = "leased"
    STORED = "stored"
    """Its put returned: durable on this machine. Whether it is done, the manifest tells."""
    FAILED = "failed"
    DONE = "done"
    """A command found it in the manifest when it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One sample of the input: where its line lies, and what the model will see."""

    sample_id: str
    input_digest: str
    line: int
    offset: int
    size_bytes: int
    tokens: int
    attempts: int = 0
    """Leases so far, this one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How many samples of the queue are in each state."""

    open: int = 0
    leased: int = 0
    stored: int = 0
    failed: int = 0
    done: int = 0


class LeaseQueue:
    """One job's queue, as one process sees it. Thread-safe."""

    def __init__(self, root: Path, *, job: str, clock: Clock, lease_s: float = 900.0) -> None:
        """`job` names run and input: processes with the same one share the samples. `lease_s`: see `take`."""
        self._db = WorkDb(root)
        self._alive = PresenceFile(root / ALIVE_FILE)
        self._job = job
        self._clock = clock
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._worker = 0

    def join(self, pid: int) -> int:
        """Become a worker. Its number is never used again."""
        with self._lock, self._db.changing() as conn:
            facts = (self._job, pid, self._clock.now_ns())
            number = conn.execute("INSERT INTO worker (job, pid, started_ns) VALUES (?, ?, ?)", facts).lastrowid
            assert number is not None
            self._alive.hold(number)  # before anybody can see the number
            self._worker = number
            return number

    def add(self, tasks: Iterable[Task]) -> None:
        """Put samples into the queue. One that is in work or stored stays so; a failed or edited one is open again."""
        rows = [(self._job, t.sample_id, t.input_digest, t.line, t.offset, t.size_bytes, t.tokens) for t in tasks]
        with self._lock, self._db.changing() as conn:
            conn.executemany(
                "INSERT INTO task (job, sample_id, input_digest, line, offset, size_bytes, tokens, state)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 'open') ON CONFLICT (job, sample_id) DO UPDATE SET"
                " state = CASE WHEN state IN ('failed', 'done') OR input_digest <> excluded.input_digest"
                " THEN 'open' ELSE state END,"
                " lapses = CASE WHEN state = 'failed' THEN 0 ELSE lapses END,"
                " input_digest = excluded.input_digest, line = excluded.line, offset = excluded.offset,"
                " size_bytes = excluded.size_bytes, tokens = excluded.tokens",
                rows,
            )

    def found_done(self, sample_ids: Iterable[str]) -> None:
        """These are in the manifest already."""
        rows = [(self._job, name) for name in sample_ids]
        with self._lock, self._db.changing() as conn:
            conn.executemany("UPDATE task SET state = 'done' WHERE job = ? AND sample_id = ?", rows)

    def reopen(self, sample_ids: Sequence[str]) -> None:
        """These were stored, but are in no manifest: do them again."""
        with self._lock, self._db.changing() as conn:
            conn.executemany(
                "UPDATE task SET state = 'open', worker = NULL"
                " WHERE job = ? AND sample_id = ? AND state IN ('stored', 'done')",
                [(self._job, name) for name in sample_ids],
            )

    def take(self, *, batch_tokens: int) -> tuple[list[Task], list[RowFailure]]:
        """Lease the longest open samples that make one batch, after taking back what ended workers left.

        The lease lasts for `lease_s` after the last call of `take` or `renew` by this worker. Also gives the samples
        that are failed because they were in work too often when a worker ended. No sample although some are open: what
        is left has lapsed before, and goes only to a worker that has nothing else in work.
        """
        with self._lock, self._db.changing() as conn:
            self._take_back(conn)
            hopeless = self._fail_hopeless(conn)
            batch = self._pick(conn, batch_tokens=batch_tokens)
            expires_s = self._clock.monotonic() + self._lease_s
            conn.executemany(
                "UPDATE task SET state = 'leased', worker = ?, attempts = attempts + 1 WHERE job = ? AND sample_id = ?",
                [(self._worker, self._job, task.sample_id) for task in batch],
            )
            self._renew(conn, expires_s)
            return batch, hopeless

    def renew(self) -> None:
        """This worker still works on what it leased."""
        with self._lock, self._db.changing() as conn:
            self._renew(conn, self._clock.monotonic() + self._lease_s)

    def _renew(self, conn: sqlite3.Connection, expires_s: float) -> None:
        conn.execute(
            "UPDATE task SET expires_s = ? WHERE job = ? AND state = 'leased' AND worker = ?",
            (expires_s, self._job, self._worker),
        )

    def _take_back(self, conn: sqlite3.Connection) -> None:
        """Leases of workers that the kernel knows no more, and those whose time is over."""
        query = "SELECT DISTINCT worker FROM task WHERE job = ? AND state = 'leased' AND worker <> ?"
        for (number,) in conn.execute(query, (self._job, self._worker)).fetchall():
            now_s = self._clock.monotonic() if self._alive.is_held(number) else float("inf")
            conn.execute(
                "UPDATE task SET state = 'open', worker = NULL, lapses = lapses + 1"
                " WHERE job = ? AND state = 'leased' AND worker = ? AND expires_s < ?",
                (self._job, number, now_s),
            )

    def _fail_hopeless(self, conn: sqlite3.Connection) -> list[RowFailure]:
        query = "SELECT sample_id, line, attempts, lapses FROM task WHERE job = ? AND state = 'open' AND lapses >= ?"
        failures = [
            RowFailure(
                line=line,
                sample_id=SampleId(name),
                stage="worker",
                reason=f"was in work {lapses} times when its worker ended or got stuck",
                attempts=attempts,
            )
            for name, line, attempts, lapses in conn.execute(query, (self._job, MOST_LAPSES)).fetchall()
        ]
        conn.executemany(
            "UPDATE task SET state = 'failed', worker = ? WHERE job = ? AND sample_id = ?",
            [(self._worker, self._job, str(failure.sample_id)) for failure in failures],
        )
        return failures

    def _pick(self, conn: sqlite3.Connection, *, batch_tokens: int) -> list[Task]:
        query = (
            "SELECT sample_id, input_digest, line, offset, size_bytes, tokens, attempts + 1, lapses FROM task"
            " WHERE job = ? AND state = 'open' ORDER BY lapses, tokens DESC, sample_id LIMIT ?"
        )
        own = "SELECT count(*), coalesce(max(lapses), 0) FROM task WHERE job = ? AND state = 'leased' AND worker = ?"
        in_work, worst = conn.execute(own, (self._job, self._worker)).fetchone()
        batch: list[Task] = []
        if worst:
            return batch  # one that lapsed before is on its way: nothing else may be in work if it ends this worker
        for *facts, lapses in conn.execute(query, (self._job, BATCH_ROWS)):
            if lapses and (batch or in_work):
                break
            if batch and (len(batch) + 1) * batch[0].tokens > batch_tokens:
                break
            batch.append(_task(facts))
            if lapses:
                break
        return batch

    def has_work_of_others(self) -> bool:
        """Whether samples are leased that may come back. This worker's own are on their way to the store."""
        with self._lock, self._db.reading() as conn:
            query = "SELECT 1 FROM task WHERE job = ? AND state IN ('open', 'leased') AND worker IS NOT ? LIMIT 1"
            return conn.execute(query, (self._job, self._worker)).fetchone() is not None

    def stored(self, sample_id: str, *, input_digest: str, tensor_bytes: int) -> None:
        """The put of this sample, made from this input, has returned."""
        with self._lock, self._db.changing() as conn:
            conn.execute(
                "UPDATE task SET state = 'stored', worker = ?, tensor_bytes = ?"
                " WHERE job = ? AND sample_id = ? AND input_digest = ?",
                (self._worker, tensor_bytes, self._job, sample_id, input_digest),
            )

    def failed(self, sample_id: str) -> bool:
        """This worker could not do the sample it leased. False if it is no longer this worker's: no failure then."""
        with self._lock, self._db.changing() as conn:
            changed = conn.execute(
                "UPDATE task SET state = 'failed' WHERE job = ? AND sample_id = ? AND state = 'leased' AND worker = ?",
                (self._job, sample_id, self._worker),
            )
            return changed.rowcount == 1

    def hand_back(self) -> int:
        """Open again what this worker leased and did not do. The number of samples."""
        with self._lock, self._db.changing() as conn:
            changed = conn.execute(
                "UPDATE task SET state = 'open', worker = NULL WHERE job = ? AND state = 'leased' AND worker = ?",
                (self._job, self._worker),
            )
            return changed.rowcount

    def leaving(self) -> None:
        """This worker asks for no more samples: what it does from now on is to store and to flush."""
        self._set_flushed(_LEAVING)

    def flushed(self) -> None:
        """All that this worker stored is in the bucket's manifest."""
        self._set_flushed(_FLUSHED)

    def _set_flushed(self, value: int) -> None:
        with self._lock, self._db.changing() as conn:
            conn.execute("UPDATE worker SET is_flushed = ? WHERE id = ?", (value, self._worker))

    def standing(self) -> Standing:
        with self._lock, self._db.reading() as conn:
            query = "SELECT state, count(*) FROM task WHERE job = ? GROUP BY state"
            return Standing(**dict(conn.execute(query, (self._job,)).fetchall()))

    def each_in(self, first: TaskState, second: TaskState) -> Iterator[Task]:
        """The samples in one of these states, by id, a page at a time: the queue may be larger than memory."""
        query = (
            "SELECT sample_id, input_digest, line, offset, size_bytes, tokens, attempts FROM task"
            " WHERE job = ? AND sample_id > ? AND state IN (?, ?) ORDER BY sample_id LIMIT ?"
        )
        after = ""
        while True:
            with self._lock, self._db.reading() as conn:
                rows = conn.execute(query, (self._job, after, first, second, _PAGE_ROWS)).fetchall()
            yield from (_task(row) for row in rows)
            if len(rows) < _PAGE_ROWS:
                return
            after = rows[-1][0]

    def sums(self) -> tuple[int, int]:
        """Tokens and bytes of tensors of what was stored and not found done since."""
        query = "SELECT coalesce(sum(tokens), 0), coalesce(sum(tensor_bytes), 0) FROM task WHERE job = ? AND state = ?"
        with self._lock, self._db.reading() as conn:
            tokens, tensor_bytes = conn.execute(query, (self._job, "stored")).fetchone()
        return tokens, tensor_bytes

    def unflushed_ids(self) -> list[str]:
        """Samples that were stored by a worker which did not tell that it brought them to the bucket."""
        query = (
            "SELECT t.sample_id FROM task t JOIN worker w ON w.id = t.worker"
            " WHERE t.job = ? AND t.state = 'stored' AND w.is_flushed <> ?"
        )
        with self._lock, self._db.reading() as conn:
            return [name for (name,) in conn.execute(query, (self._job, _FLUSHED))]

    def has_work(self) -> bool:
        """Whether a sample is open or in work."""
        query = "SELECT 1 FROM task WHERE job = ? AND state IN ('open', 'leased') LIMIT 1"
        with self._lock, self._db.reading() as conn:
            return conn.execute(query, (self._job,)).fetchone() is not None

    def lagging(self) -> dict[int, int]:
        """Numbers and process ids of living workers that would still ask for samples. Where there is no work any more a
        worker that answers is among them for a moment only.
        """
        with self._lock, self._db.reading() as conn:
            query = "SELECT id, pid FROM worker WHERE job = ? AND is_flushed NOT IN (?, ?)"
            rows = conn.execute(query, (self._job, _LEAVING, _FLUSHED)).fetchall()
        return {number: pid for number, pid in rows if number != self._worker and self._alive.is_held(number)}

    def living(self) -> list[int]:
        """Numbers of this job's workers that the kernel still knows, this process's own left out."""
        with self._lock, self._db.reading() as conn:
            numbers = conn.execute("SELECT id FROM worker WHERE job = ?", (self._job,)).fetchall()
        return [number for (number,) in numbers if number != self._worker and self._alive.is_held(number)]

    def close(self) -> None:
        """Let go of the worker's number; whatever it still leases is open to the others. Safe to repeat."""
        self._db.close()
        self._alive.close()


def _task(facts: Sequence[Any]) -> Task:
    names = ("sample_id", "input_digest", "line", "offset", "size_bytes", "tokens", "attempts")
    return Task(**dict(zip(names, facts, strict=True)))
