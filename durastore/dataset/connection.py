"""One process's connections of a dataset.

Duty: open store and thread pool lazily, once per process. Must never use, close or collect what a parent process
opened: a client used on both sides of a fork gives wrong bytes or hangs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from durastore.clock import SYSTEM_CLOCK
from durastore.dataset.arena import Arena
from durastore.dataset.handover import arena_of_worker
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.read.requests import RequestPool

__all__ = ["Connection"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handles:
    store: ObjectStore
    pool: RequestPool
    arena: Arena | None


class Connection:
    """Store and pool of the process that asks. Thread-safe, picklable (a copy opens its own)."""

    def __init__(self, place: BucketUrl, *, s3: S3Options, max_requests: int) -> None:
        self._place = place
        self._s3 = s3
        self._max_requests = max_requests
        # By pid, without a lock: a lock may be held by a thread that a fork did not copy. A parent's entry stays
        # untouched in the child, so that nothing of it is finalised there.
        self._by_pid: dict[int, _Handles] = {}

    @property
    def store(self) -> ObjectStore:
        return self._handles().store

    @property
    def pool(self) -> RequestPool:
        return self._handles().pool

    @property
    def arena(self) -> Arena | None:
        """Where the tensors of this process are wanted, if it is a loader's worker."""
        return self._handles().arena

    def close(self) -> None:
        """Close what this process opened. Safe to repeat; the next use opens again."""
        handles = self._by_pid.pop(os.getpid(), None)
        if handles is not None:
            handles.pool.shutdown()
            handles.store.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_place": self._place, "_s3": self._s3, "_max_requests": self._max_requests, "_by_pid": {}}

    def _handles(self) -> _Handles:
        pid = os.getpid()
        found = self._by_pid.get(pid)
        if found is not None:
            return found
        opened = _Handles(
            store=RetryingStore(open_object_store(self._place, s3=self._s3), policy=RetryPolicy(), clock=SYSTEM_CLOCK),
            pool=RequestPool(self._max_requests),
            arena=arena_of_worker(),
        )
        kept = self._by_pid.setdefault(pid, opened)
        if kept is not opened:  # two threads at once: nothing was sent on the second one yet
            opened.pool.shutdown()
            opened.store.close()
        return kept
