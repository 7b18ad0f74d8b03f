"""What it costs a put that its store tells how it stands: two stores in turns, one that tells and counts, one without.

On a file system in memory and with a small sample, where the rest of a put is as short as it gets.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

import durastore
from durastore.observe.events import Counting, Fact
from durastore.store.reporting import StoreReporter
from durastore.store.store import Store
from tests.benchmarks.pairs import Line, in_turns

__all__ = ["telling_line"]

_MEMORY = "/dev/shm"
_SAMPLE = {"x": np.arange(1024, dtype=np.float32)}


class _Before(Counting):
    """Does not hear what is counted for the monitor only."""

    def emit(self, name: str, **facts: Fact) -> None:
        if name not in ("encoded", "settled"):
            super().emit(name, **facts)


def telling_line(*, turns: int) -> Line:
    """CPU time of the thread that puts 4 kB."""
    with ExitStack() as stack:
        telling = _opened(stack)
        with mock.patch.object(StoreReporter, "start"):
            silent = _opened(stack)
        silent._parts = replace(silent._parts, counters=_Before())
        ours_s, theirs_s = in_turns(_puts(telling), _puts(silent), measure=_thread_s, n=turns)
    return Line(
        name="put of 4 kB in memory, CPU p50, that tells its status",
        durastore=ours_s * 1e6,
        peer=theirs_s * 1e6,
        peer_name="that does not",
        unit="us",
        goal="<= 1.05",
    )


def _opened(stack: ExitStack) -> Store:
    folder = stack.enter_context(tempfile.TemporaryDirectory(dir=_MEMORY))
    options: dict[str, Any] = {"reclaim": "never", "compress": "none", "seal_age_s": 3600.0, "reserve_bytes": 1}
    store = durastore.open(
        f"memory://{folder.rpartition('/')[2]}", local=folder, is_any_filesystem_allowed=True, **options
    )
    stack.callback(store.abandon)
    return store


def _puts(store: Store) -> Callable[[], object]:
    numbers = iter(range(1_000_000))
    return lambda: store.put(str(next(numbers)), _SAMPLE)


def _thread_s(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun
