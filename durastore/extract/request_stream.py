"""Many requests to a model server at a time, each tried again where that may help, as one stream of results.

Duty: ask for rows only while there are threads and room for them, hand out what is done at once, and end in time. Must
never hold a finished result back while it waits for a row, for room or for another result: whoever stores them is what
makes room.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from durastore.clock import Clock
from durastore.errors import EngineFailed
from durastore.extract.engine import Extracted, Refused
from durastore.extract.json_server import AskAgain, Unusable
from durastore.extract.rows import TokenRow
from durastore.extract.staging_room import Reservation

__all__ = ["Asker", "Pace", "RequestStream", "in_order"]

_POLL_S = 0.05
_ROOM_STALL_S = 600.0
_LONGEST_WAIT_S = 20.0
_REFUSED_AT_FIRST = 24
"""A server that does not serve what was asked for must not fail every sample of an input."""

Result = tuple[TokenRow, Extracted | Refused]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How hard a server is asked."""

    concurrency: int = 32
    """Requests in flight at a time."""
    tries: int = 3
    """Requests for one sample."""
    first_wait_s: float = 0.5
    """Before the second one; twice as long before each that follows."""


class Asker(Protocol):
    """One kind of server, as the stream sees it. All but `health` are called from several threads."""

    def reserve(self, row: TokenRow) -> Reservation | None:
        """Room for one request, or None while there is none. `Unusable` if there never will be."""
        ...

    def ask(self, row: TokenRow, room: Reservation) -> Extracted:
        """Send one request, in its room, which is given back when nothing of it is left. `AskAgain`, `Unusable`,
        `EngineFailed`, `ConfigError`.
        """
        ...

    def tidy(self) -> None:
        """See to what requests left that came to nothing; called now and then, and while there is no room."""
        ...

    def health(self) -> str | None: ...

    def hang_up(self) -> None:
        """End all requests in flight."""
        ...


class RequestStream:
    """One stream of results. Used once, from one thread."""

    def __init__(self, asker: Asker, *, pace: Pace, clock: Clock, room_wait_s: float = _ROOM_STALL_S) -> None:
        """`room_wait_s`: how long to wait for room that nobody is about to make."""
        self._asker = asker
        self._pace = pace
        self._clock = clock
        self._room_wait_s = room_wait_s
        self._is_over = threading.Event()
        self._pending: dict[Future[Extracted | Refused], TokenRow] = {}
        self._held: TokenRow | None = None
        self._is_dry = False
        self._moved_s = clock.monotonic()
        self._refused = 0
        """Results before the first good one; below 0 after it."""

    def results(self, rows: Iterator[TokenRow | None], *, may_wait: Callable[[], bool]) -> Iterator[Result]:
        """As `StreamEngine.stream`."""
        pool = ThreadPoolExecutor(self._pace.concurrency, thread_name_prefix="durastore-request")
        try:
            while may_wait():
                ready = [future for future in self._pending if future.done()]
                for future in ready:
                    yield self._pending.pop(future), self._taken(future)
                if ready:
                    self._moved_s = self._clock.monotonic()
                    continue
                refused = self._send(pool, rows)
                if refused is not None:
                    yield refused
                elif self._is_dry and not self._pending and self._held is None:
                    return
            for future in [each for each in self._pending if each.done() and each.exception() is None]:
                yield self._pending.pop(future), future.result()
        finally:
            self._is_over.set()
            if self._pending:
                self._asker.hang_up()
            pool.shutdown(wait=True, cancel_futures=True)

    def _send(self, pool: ThreadPoolExecutor, rows: Iterator[TokenRow | None]) -> Result | None:
        """Send the next request if it may be, else wait a moment. A row that can never be sent has its result."""
        if len(self._pending) >= self._pace.concurrency or (self._is_dry and self._held is None):
            wait(self._pending, _POLL_S, FIRST_COMPLETED)
            return None
        row = self._next(rows)
        if row is None:
            if self._pending:
                wait(self._pending, _POLL_S, FIRST_COMPLETED)
            return None
        try:
            room = self._asker.reserve(row)
        except Unusable as exc:
            self._held = None
            return row, Refused(reason=str(exc))
        if room is None:
            return self._without_room(row)
        self._held = None
        self._moved_s = self._clock.monotonic()
        self._pending[pool.submit(self._tried, row, room)] = row
        return None

    def _next(self, rows: Iterator[TokenRow | None]) -> TokenRow | None:
        if self._held is None and not self._is_dry:
            try:
                self._held = next(rows)
            except StopIteration:
                self._is_dry = True
        return self._held

    def _without_room(self, row: TokenRow) -> Result | None:
        self._asker.tidy()
        if self._pending:
            wait(self._pending, _POLL_S, FIRST_COMPLETED)
            return None
        if self._clock.monotonic() - self._moved_s < self._room_wait_s:
            self._clock.sleep(_POLL_S)
            return None
        if self._room_wait_s:
            raise EngineFailed(
                f"there was no room for a request in {self._room_wait_s:g} s",
                hint="the staging folder is full, and nothing in it is on its way to the store",
            )
        self._held = None
        return row, Refused(reason="there is no room for it in the staging folder")

    def _taken(self, future: Future[Extracted | Refused]) -> Extracted | Refused:
        result = future.result()
        if not isinstance(result, Refused):
            self._refused = -1
            return result
        sickness = self._asker.health()
        if sickness is not None:
            raise EngineFailed(f"the server cannot go on: {sickness}", hint=f"the last sample: {result.reason}")
        if self._refused >= 0:
            self._refused += 1
        if self._refused >= _REFUSED_AT_FIRST:
            raise EngineFailed(
                f"the server gave nothing usable for the first {self._refused} samples", hint=result.reason
            )
        return result

    def _tried(self, row: TokenRow, room: Reservation) -> Extracted | Refused:
        """In a thread of its own: requests for one sample, until one of them gives it."""
        wait_s = self._pace.first_wait_s
        number = 1
        while True:
            try:
                return self._asker.ask(row, room)
            except Unusable as exc:
                return Refused(reason=str(exc), attempts=number)
            except AskAgain as exc:
                reason = str(exc)
            again = None
            if number < self._pace.tries and not self._is_over.wait(wait_s):
                again = self._waited_for_room(row)
            if again is None:
                return Refused(reason=reason, attempts=number)
            room, number, wait_s = again, number + 1, min(2 * wait_s, _LONGEST_WAIT_S)

    def _waited_for_room(self, row: TokenRow) -> Reservation | None:
        until_s = self._clock.monotonic() + self._room_wait_s
        while (room := self._asker.reserve(row)) is None:
            self._asker.tidy()
            if self._is_over.wait(_POLL_S) or self._clock.monotonic() >= until_s:
                return None
        return room


def in_order(batch: Sequence[TokenRow], results: Iterator[Result]) -> list[Extracted | Refused]:
    """The results of a batch in the batch's order, each row once."""
    by_row = {id(row): result for row, result in results}
    return [by_row[id(row)] for row in batch]
