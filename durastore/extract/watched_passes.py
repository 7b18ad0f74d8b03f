"""Says that a worker is still at work, for as long as its model answers.

Duty: pass everything to the engine, and renew the leases meanwhile, also while the disk or the network is waited for. A
pass that takes longer than a lease is stuck: then it is silent, and others take the samples. Must never renew from the
loop itself, which a full spool holds up for longer than any lease.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from durastore.clock import Clock
from durastore.errors import DurastoreError
from durastore.extract.engine import Engine, Extracted, Refused, StreamEngine
from durastore.extract.rows import TokenRow

__all__ = ["WatchedEngine", "WatchedStream", "watched"]

_BEATS_A_LEASE = 4


class WatchedEngine:
    """An engine that knows since when it is in a pass."""

    def __init__(self, engine: Engine, *, clock: Clock, lease_s: float = math.inf) -> None:
        self._engine = engine
        self._clock = clock
        self._lease_s = lease_s
        self._since: float | None = None
        self.passes = 0
        self.longest_s = 0.0
        """Of the passes that ended."""
        self.is_loading = False

    @property
    def pass_s(self) -> float | None:
        """How long the pass under way has taken; None between two."""
        since = self._since
        return None if since is None else self._clock.monotonic() - since

    @property
    def is_stuck(self) -> bool:
        """True while one pass has taken longer than a lease lasts."""
        since = self._since
        return since is not None and self._clock.monotonic() - since > self._lease_s

    def start(self) -> None:
        self.is_loading = True
        try:
            self._engine.start()
        finally:
            self.is_loading = False

    def health(self) -> str | None:
        return self._engine.health()

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        begun = self._since = self._clock.monotonic()
        try:
            return self._engine.extract(batch)
        finally:
            self._since = None
            self.passes += 1
            self.longest_s = max(self.longest_s, self._clock.monotonic() - begun)

    def close(self) -> None:
        self._engine.close()

    @contextmanager
    def renewing(self, renew: Callable[[], None]) -> Iterator[None]:
        """Call `renew` several times a lease while the block runs, unless the engine is stuck."""
        is_over = threading.Event()

        def beat() -> None:
            while not is_over.wait(self._lease_s / _BEATS_A_LEASE):
                if self.is_stuck:
                    continue
                try:
                    renew()
                except DurastoreError:
                    return  # the loop's next look at the queue meets it too, and reports it

        thread = threading.Thread(target=beat, name="durastore-extract-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


class WatchedStream(WatchedEngine):
    """A server's engine. It is never stuck: each of its requests ends by its own time limit."""

    def __init__(self, engine: StreamEngine, *, clock: Clock, lease_s: float) -> None:
        super().__init__(engine, clock=clock, lease_s=lease_s)
        self._server = engine

    def stream(
        self, rows: Iterator[TokenRow | None], *, may_wait: Callable[[], bool]
    ) -> Iterator[tuple[TokenRow, Extracted | Refused]]:
        """As `StreamEngine.stream`; each result counts as a pass. How long one took is not told: a server that is
        waited for because the spool is full is not silent.
        """
        for result in self._server.stream(rows, may_wait=may_wait):
            self.passes += 1
            yield result


def watched(engine: Engine, *, clock: Clock, lease_s: float = math.inf) -> WatchedEngine:
    """The engine with a heartbeat, whichever of the two kinds it is: a stream must not become batches on the way."""
    if isinstance(engine, StreamEngine):
        return WatchedStream(engine, clock=clock, lease_s=lease_s)
    return WatchedEngine(engine, clock=clock, lease_s=lease_s)
