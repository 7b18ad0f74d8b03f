"""A seat at the queue of another machine: what is said between a worker and whoever hands out the leases.

Duty: collect what the worker tells until it is fetched, and hand on what it is given. The other side asks, one question
at a time, and may ask the same again where it does not know whether the answer was made. Must never drop anything that
the worker told, and never let it wait for leases once it is to stop. Knows no network: `integrations` carries it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from durastore.clock import Clock
from durastore.extract.leased_work import WorkerEnd
from durastore.extract.rows import RowFailure
from durastore.extract.seat import LeasedRow, StoredSample
from durastore.extract.switch import StopSwitch

__all__ = ["Given", "LeaseLine", "Told"]

_POLL_S = 0.1
_LINGER_S = 0.1
_QUIET_S = 1.0
"""After an answer without samples the next question waits so long: many idle workers must not keep the driver busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the worker is given with a question."""

    number: int
    """Of the question. The same number twice is the same question."""
    answers: int = 0
    """Which of the worker's requests for samples `rows` answers; 0 if none."""
    rows: tuple[LeasedRow, ...] = ()
    has_others: bool = True
    """Whether samples that somebody else has may come back."""
    stop: int | None = None
    """The signal as if by which to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the worker did since the last question."""

    request: int = 0
    """The number of its request for samples that waits; 0 if none."""
    batch_tokens: int = 0
    stored: tuple[StoredSample, ...] = ()
    failed: tuple[RowFailure, ...] = ()
    notes: tuple[str, ...] = ()
    """For the log of the command."""
    is_renewed: bool = False
    is_leaving: bool = False
    is_handed_back: bool = False
    is_flushed: bool = False
    spool: str | None = None
    """Where its spool is on its machine, once it has one."""
    end: WorkerEnd | None = None
    """Its last word."""


class LeaseLine:
    """The worker's end. Thread-safe."""

    def __init__(self, *, number: int, switch: StopSwitch, clock: Clock) -> None:
        self._number = number
        self._switch = switch
        self._clock = clock
        self._changed = threading.Condition()
        self._news = Told()
        self._answered: tuple[int, Told] | None = None
        self._request = 0
        self._replies: list[Given] = []
        self._is_quiet = False
        self._has_others = True
        self.asked_s = clock.monotonic()
        """When the other side asked last."""

    # --- the worker's side: a `Seat` ---------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return self._number

    def take(self, *, batch_tokens: int) -> tuple[Sequence[LeasedRow], Sequence[RowFailure]]:
        """Samples; none if there are none at the moment, or if the worker is to stop. From one thread."""
        if self._is_quiet:
            self._rest()
        with self._changed:
            self._request += 1
            self._replies.clear()
            self._news = replace(self._news, request=self._request, batch_tokens=batch_tokens)
            self._changed.notify_all()
            while not self._replies:
                if self._switch.signal is not None:
                    # What is given meanwhile is handed back with the rest. What were given for it later would lapse.
                    self._news = replace(self._news, request=0, batch_tokens=0)
                    return (), ()
                self._changed.wait(_POLL_S)
            reply = self._replies.pop()
        self._has_others = reply.has_others
        self._is_quiet = not reply.rows
        return reply.rows, ()

    def _rest(self) -> None:
        until_s = self._clock.monotonic() + _QUIET_S
        while self._switch.signal is None and self._clock.monotonic() < until_s:
            self._clock.sleep(_POLL_S)

    def has_work_of_others(self) -> bool:
        return self._has_others

    def stored(self, sample: StoredSample) -> None:
        self._tell(lambda news: replace(news, stored=(*news.stored, sample)))

    def failed(self, failure: RowFailure) -> None:
        self._tell(lambda news: replace(news, failed=(*news.failed, failure)))

    def note(self, text: str) -> None:
        self._tell(lambda news: replace(news, notes=(*news.notes, text)))

    def renew(self) -> None:
        self._tell(lambda news: replace(news, is_renewed=True))

    def leaving(self) -> None:
        self._tell(lambda news: replace(news, is_leaving=True))

    def hand_back(self) -> int:
        """How many it was, the other side knows."""
        self._tell(lambda news: replace(news, is_handed_back=True))
        return 0

    def flushed(self) -> None:
        self._tell(lambda news: replace(news, is_flushed=True))

    def opened(self, spool: str) -> None:
        """The worker's spool is here."""
        self._tell(lambda news: replace(news, spool=spool))

    def end(self, end: WorkerEnd) -> None:
        """Nothing is told after this."""
        self._tell(lambda news: replace(news, end=end))

    def _tell(self, change: Callable[[Told], Told]) -> None:
        with self._changed:
            self._news = change(self._news)
            self._changed.notify_all()

    # --- the side that asks ------------------------------------------------------------------------------------------

    def exchange(self, given: Given, *, wait_s: float) -> Told:
        """Hand on what is given, and what the worker told since; waits at most so long for a request, an end, or a
        stored sample.

        Safe to repeat with the same question: the answer is the same.
        """
        with self._changed:
            self.asked_s = self._clock.monotonic()
            if self._answered is not None and self._answered[0] == given.number:
                return self._answered[1]
            self._hand_on(given)
            if self._changed.wait_for(lambda: self._is_urgent() or self._news.stored, wait_s):
                # What is stored and not told when this process dies is done again: tell it soon, but not one by one.
                self._changed.wait_for(self._is_urgent, min(wait_s, _LINGER_S))
            told, self._news = self._news, Told()
            self._answered = given.number, told
            self.asked_s = self._clock.monotonic()
            return told

    def _is_urgent(self) -> bool:
        return self._news.request > 0 or self._news.end is not None

    def _hand_on(self, given: Given) -> None:
        if given.stop is not None:
            self._switch.request(given.stop)
        if given.answers and given.answers == self._request:
            self._replies.append(given)
        self._changed.notify_all()
