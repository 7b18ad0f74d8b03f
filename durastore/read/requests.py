"""The threads in which one process reads, and how many requests these may make at one time.

Duty: no more requests under way than allowed, also where one call makes several. Must never let in a part of a call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["RequestPool"]

P = ParamSpec("P")
T = TypeVar("T")


class RequestPool(ThreadPoolExecutor):
    """As many threads as requests are allowed. Thread-safe."""

    def __init__(self, max_requests: int) -> None:
        super().__init__(max_workers=max_requests, thread_name_prefix="durastore-dataset")
        self.max_requests = max_requests
        self._free = max_requests
        self._freed = threading.Condition()

    def begin(self, requests: int, work: Callable[P, T], /, *args: P.args, **given: P.kwargs) -> Future[T]:
        """Run `work`, which makes this many requests at one time (at most `max_requests`), once they are allowed."""
        return self.submit(self._run, requests, lambda: work(*args, **given))

    def _run(self, requests: int, work: Callable[[], T]) -> T:
        with self._freed:
            self._freed.wait_for(lambda: self._free >= requests)
            self._free -= requests
        try:
            return work()
        finally:
            with self._freed:
                self._free += requests
                self._freed.notify_all()
