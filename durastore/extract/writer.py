"""The one thread that stores samples, so that the model never waits for a disk until the queue is full.

Duty: a queue bounded in bytes, `store.put_many` for what waits in it, a last `flush`. All that the model's thread does
for a sample is to begin its copy to host memory; the wait for the copy, the look for faults and the rest happen here.
Must never drop a sample that it accepted without its run ending in an error, and never count one before `put_many`
returned.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from durastore.codec.staging import Staged, Staging, TorchCuda, is_on_cuda
from durastore.errors import DurastoreError, EngineFailed, InvalidInput
from durastore.extract.engine import Extracted
from durastore.extract.ports import SampleStore
from durastore.extract.rows import RowFailure, TokenRow
from durastore.extract.semantic import StateWatch, find_row_fault
from durastore.extract.tally import Tally

__all__ = ["StoreWriter"]

_GROUP_SAMPLES = 64
_GROUP_BYTES = 16 << 20
_POLL_S = 0.1  # a waiting main thread looks up this often, because a signal handler may not take locks


@dataclass(frozen=True, slots=True)
class _Job:
    """A sample in the queue. The model's own tensors are let go of: a GPU needs their memory for the next pass."""

    row: TokenRow
    held_bytes: int
    staged: Staged
    extracted: Extracted
    """Without its tensors."""


class StoreWriter:
    """Takes samples from one thread and stores them in another. Start with `start`, end with `finish` and `wait`."""

    def __init__(self, store: SampleStore, tally: Tally, *, limit_bytes: int, staging: Staging | None = None) -> None:
        """`staging`: memory for samples on their way; by default made for the device of the first one."""
        self._store = store
        self._tally = tally
        self._limit_bytes = limit_bytes
        self._staging = staging
        self.watch = StateWatch()
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._held_bytes = 0
        self._is_finishing = False
        self._is_done = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="durastore-extract-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def error(self) -> Exception | None:
        """What stopped the writer early: nothing is stored any more then."""
        with self._changed:
            return self._error

    def queued(self) -> tuple[int, int]:
        """Samples that wait, and bytes of those and of the group that is being stored."""
        with self._changed:
            return len(self._queue), self._held_bytes

    def submit(self, row: TokenRow, extracted: Extracted, *, may_wait: Callable[[], bool]) -> bool:
        """Queue a sample; wait for room while `may_wait` says so. False if it was not taken.

        From one thread. Its tensors are copied, or on their way: see `Staging.begin` for when they may be changed.
        """
        if not self._has_room(extracted.held_bytes, may_wait=may_wait):
            return False
        staging = self._staging = self._staging or _staging_for(extracted)
        staged = staging.begin(extracted.tensors, may_wait=lambda: self.error is None and may_wait())
        if staged is None:
            return False
        with self._changed:
            if self._error is None:
                self._queue.append(_Job(row, extracted.held_bytes, staged, replace(extracted, tensors={})))
                self._held_bytes += extracted.held_bytes
                self._changed.notify_all()
                return True
        staged.release()
        return False

    def _has_room(self, size_bytes: int, *, may_wait: Callable[[], bool]) -> bool:
        with self._changed:
            while self._error is None and self._is_full_for(size_bytes):
                if not may_wait():
                    return False
                self._changed.wait(_POLL_S)
            return self._error is None

    def _is_full_for(self, size_bytes: int) -> bool:
        """An empty queue takes any sample, however large: it could never be stored otherwise."""
        return self._held_bytes > 0 and self._held_bytes + size_bytes > self._limit_bytes

    def finish(self) -> None:
        """No more samples will come: store what is queued, then flush the store. Returns at once."""
        with self._changed:
            self._is_finishing = True
            self._changed.notify_all()

    def wait(self) -> bool:
        """Wait a moment; True once everything is stored and flushed, or an error ended it."""
        with self._changed:
            if not self._is_done:
                self._changed.wait(_POLL_S)
            return self._is_done

    def _work(self) -> None:
        error: Exception | None = None
        try:
            while jobs := self._next():
                self._store_all(jobs)
            self._store.flush()
        except Exception as exc:  # noqa: BLE001 - handed to the runner, which stops and reports it
            error = exc
        except BaseException as exc:  # noqa: BLE001 - a library's panic is no `Exception`; the runner waits for an end
            error = DurastoreError(f"{type(exc).__name__}: {exc}")
        with self._changed:
            self._error = error
            left = list(self._queue)
            self._queue.clear()
            self._held_bytes = 0
            self._is_done = True
            self._changed.notify_all()
        for job in left:
            job.staged.release()

    def _next(self) -> list[_Job]:
        """The samples that wait, as one group up to a limit; none once the writer is finishing."""
        with self._changed:
            while not self._queue and not self._is_finishing:
                self._changed.wait()
            jobs: list[_Job] = []
            names: set[str] = set()
            size_bytes = 0
            while self._queue and len(jobs) < _GROUP_SAMPLES:
                job = self._queue[0]
                size_bytes += job.held_bytes
                if jobs and (size_bytes > _GROUP_BYTES or str(job.row.sample_id) in names):
                    break
                names.add(str(job.row.sample_id))
                jobs.append(self._queue.popleft())
            return jobs

    def _store_all(self, jobs: list[_Job]) -> None:
        """One durable group: what the model made while the last one was written shares a sync."""
        try:
            ready: list[tuple[_Job, Mapping[str, Any]]] = []
            for job in jobs:
                tensors = _on_host(job)
                fault = find_row_fault(job.row, tensors) or job.extracted.find_fault(tensors)
                fault = fault or self.watch.find_fault(job.row, tensors)
                if fault is None:
                    ready.append((job, tensors))
                else:
                    self._fail(job, stage="states", reason=fault)
            self._put(ready)
        finally:
            for job in jobs:
                job.staged.release()
            with self._changed:
                self._held_bytes -= sum(job.held_bytes for job in jobs)
                self._changed.notify_all()

    def _put(self, ready: list[tuple[_Job, Mapping[str, Any]]]) -> None:
        if not ready:
            return
        rows = [job.row for job, _ in ready]
        try:
            self._store.put_many(
                {str(job.row.sample_id): tensors for job, tensors in ready},
                meta={str(job.row.sample_id): _meta_of(job) for job, _ in ready},
                input_digests={str(row.sample_id): row.input_digest.hex for row in rows},
            )
        except InvalidInput as exc:  # one of these samples cannot be stored; the others can
            if len(ready) == 1:
                self._fail(ready[0][0], stage="store", reason=f"{exc.code}: {exc.message}")
                return
            for each in ready:
                self._put([each])
            return
        for job, tensors in ready:
            tensor_bytes = sum(int(tensor.nbytes) for tensor in tensors.values())
            self._tally.add_ok(job.row, tensor_bytes=tensor_bytes)
            job.extracted.settle(lambda row=job.row: self._holds(row))  # type: ignore[misc]

    def _fail(self, job: _Job, *, stage: str, reason: str) -> None:
        row = job.row
        self._tally.add_failed(
            RowFailure(
                line=row.line, sample_id=row.sample_id, stage=stage, reason=reason, input_digest=row.input_digest
            )
        )
        job.extracted.settle(None)

    def _holds(self, row: TokenRow) -> bool:
        return self._store.contains(str(row.sample_id), input_digest=row.input_digest.hex)


def _staging_for(extracted: Extracted) -> Staging:
    return Staging(cuda=TorchCuda() if any(is_on_cuda(t) for t in extracted.tensors.values()) else None)


def _on_host(job: _Job) -> Mapping[str, Any]:
    try:
        return job.staged.wait()
    except Exception as exc:  # the device's own error, of this pass or of a later one
        raise EngineFailed(f"the states did not reach host memory: {type(exc).__name__}: {exc}") from exc


def _meta_of(job: _Job) -> dict[str, Any]:
    return {"n_tokens": len(job.row.input_ids), "line": job.row.line, **job.extracted.meta}
