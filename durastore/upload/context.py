"""What every job of one engine shares on its loop.

Duty: `UploadContext` and the bounded worker threads behind it (`Offload`). Must never run blocking work on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from durastore.observe.events import Observer
from durastore.upload.allowance import Allowance
from durastore.upload.calls import Calls
from durastore.upload.job import UploadLimits
from durastore.upload.port import Transport

__all__ = ["CreateOnly", "Offload", "UploadContext"]

T = TypeVar("T")


class Offload:
    """The one bounded pool for file reads, hashing and the callers' records."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="durastore-upload-io")

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work()`. When cancelled, work that has not begun is dropped."""
        return await asyncio.wrap_future(self._pool.submit(work))

    async def record(self, work: Callable[[], None]) -> None:
        """As `run`, but once asked for the work is done even when the asker is cancelled meanwhile: a cancelled job
        must not lose the record of what the endpoint already acknowledged.
        """
        done = asyncio.wrap_future(self._pool.submit(work))
        done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # no asker may be left to look
        await asyncio.shield(done)

    def later(self, work: Callable[[], None]) -> None:
        """Does the work soon; `close` waits for it."""
        self._pool.submit(work)

    def close(self) -> None:
        """Returns when all work handed in has ended. Blocks: the last thing that is called."""
        self._pool.shutdown(wait=True)


class CreateOnly:
    """Whether single PUTs still say If-None-Match: *; turned off for good by the first answer that does not know it."""

    def __init__(self, *, is_wanted: bool) -> None:
        self.is_wanted = is_wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadContext:
    """The shared means of all jobs; belongs to the engine's loop."""

    transport: Transport
    calls: Calls
    budget: Allowance
    """File bytes in memory."""
    offload: Offload
    limits: UploadLimits
    observer: Observer
    create_only: CreateOnly
