"""Children of the test's process: one that only lives, and one that no hook of Python's saw."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["exit_code_of", "fork_in_c", "living_child"]


@contextmanager
def living_child() -> Iterator[int]:
    """A forked process that lives until the block ends, and does nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        yield child
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it lived all the time"
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def fork_in_c(work: Callable[[], None]) -> int:
    """The process id of a child that does `work` and ends. Python does not know of the fork, so no hook of it runs."""
    child: int = ctypes.PyDLL(None).fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child must not come back into the test run
            os._exit(99)
    return child


def exit_code_of(child: int) -> int:
    """Waits for its end."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
