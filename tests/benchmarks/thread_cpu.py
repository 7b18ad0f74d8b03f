"""CPU seconds of each thread of this process, native ones included, in nanoseconds' resolution. Linux only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

__all__ = ["cpu_of", "native_threads"]

_PER_THREAD = 6  # the low bits of a clock id that mean the CPU time of one thread (Linux)


def native_threads() -> frozenset[int]:
    """Ids of all threads of this process, also those that Python knows nothing of (torch's, a Rust runtime's)."""
    return frozenset(int(name) for name in os.listdir("/proc/self/task"))


def cpu_of(threads: Iterable[int]) -> float:
    """CPU seconds that these threads have used so far, user and system; ended ones count nothing."""
    total_s = 0.0
    for thread in threads:
        try:
            total_s += time.clock_gettime((~thread << 3) | _PER_THREAD)
        except OSError:
            continue
    return total_s
