"""Counters of processes that come and go, as totals and rates over time, in a bounded number of points.

Duty: sum sessions of spools, also those that ended; rates over the last while; a series of the whole time watched whose
points get coarser as it gets longer. No I/O. Must never show as speed what was there before watching began.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["Counters", "History", "Point", "Rates", "Series"]

_WINDOW_S = 30.0
_LONG_S = 300.0
_POINTS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What only grows, of one session of a process."""

    samples: int = 0
    put_bytes: int = 0
    uploaded_bytes: int = 0

    def plus(self, other: Counters, *, sign: int = 1) -> Counters:
        return Counters(
            samples=self.samples + sign * other.samples,
            put_bytes=self.put_bytes + sign * other.put_bytes,
            uploaded_bytes=self.uploaded_bytes + sign * other.uploaded_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Per second. None while nothing can be said."""

    samples: float | None = None
    put_bytes: float | None = None
    uploaded_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of the series: the middle of its time, Unix nanoseconds, and the rates in it."""

    at_ns: int
    samples_per_s: float
    put_bytes_per_s: float
    uploaded_bytes_per_s: float


class Series:
    """At most `_POINTS` points over any length of time: when they are full, two become one."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._span_s = 1.0
        self._begun: tuple[float, int, Counters] | None = None

    def add(self, now_s: float, now_ns: int, *, total: Counters) -> None:
        if self._begun is None:
            self._begun = (now_s, now_ns, total)
            return
        since_s, since_ns, before = self._begun
        passed_s = now_s - since_s
        if passed_s < self._span_s * 0.95:
            return
        grown = total.plus(before, sign=-1)
        self._begun = (now_s, now_ns, total)
        self._points.append(
            Point(
                at_ns=(since_ns + now_ns) // 2,
                samples_per_s=max(0.0, grown.samples / passed_s),
                put_bytes_per_s=max(0.0, grown.put_bytes / passed_s),
                uploaded_bytes_per_s=max(0.0, grown.uploaded_bytes / passed_s),
            )
        )
        if len(self._points) >= _POINTS:
            self._points = [_mean(*self._points[at : at + 2]) for at in range(0, len(self._points), 2)]
            self._span_s *= 2

    def points(self) -> tuple[Point, ...]:
        return tuple(self._points)


def _mean(one: Point, other: Point) -> Point:
    return Point(
        at_ns=(one.at_ns + other.at_ns) // 2,
        samples_per_s=(one.samples_per_s + other.samples_per_s) / 2,
        put_bytes_per_s=(one.put_bytes_per_s + other.put_bytes_per_s) / 2,
        uploaded_bytes_per_s=(one.uploaded_bytes_per_s + other.uploaded_bytes_per_s) / 2,
    )


class _Flow:
    """A counter's rate over the last while."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Counters]] = deque(maxlen=int(_LONG_S) + 60)

    def add(self, now_s: float, total: Counters) -> None:
        self._seen.append((now_s, total))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _LONG_S:
            self._seen.popleft()

    def rates(self, window_s: float) -> Rates:
        if len(self._seen) < 2:
            return Rates()
        now_s, total = self._seen[-1]
        since_s, before = next(seen for seen in self._seen if seen[0] >= now_s - window_s)
        passed_s = now_s - since_s
        if passed_s < 0.5:
            return Rates()
        grown = total.plus(before, sign=-1)
        return Rates(
            samples=max(0.0, grown.samples / passed_s),
            put_bytes=max(0.0, grown.put_bytes / passed_s),
            uploaded_bytes=max(0.0, grown.uploaded_bytes / passed_s),
        )


@dataclass(slots=True)
class _Session:
    key: tuple[int, int]
    """Process id and when it started."""
    first: Counters
    last: Counters
    flow: _Flow = field(default_factory=_Flow)


class History:
    """Of all spools of all roots. Used by one thread."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._before = Counters()
        """Of sessions whose spool has another process by now, since watching began."""
        self._flow = _Flow()
        self._began_ns: int | None = None
        self.series = Series()

    def note(self, spool: str, key: tuple[int, int], *, now: tuple[float, Counters]) -> None:
        """What a spool's process has done so far. `key`: process id and start, Unix nanoseconds; `now`: monotonic
        seconds, and its counters.
        """
        now_s, counters = now
        session = self._sessions.get(spool)
        if session is None or session.key != key:
            if session is not None:
                self._before = self._before.plus(session.last).plus(session.first, sign=-1)
            is_young = self._began_ns is not None and key[1] >= self._began_ns
            session = _Session(key=key, first=Counters() if is_young else counters, last=counters)
            self._sessions[spool] = session
        session.last = counters
        session.flow.add(now_s, counters)

    def tick(self, now_s: float, now_ns: int) -> None:
        """All spools were told of."""
        self._began_ns = now_ns if self._began_ns is None else self._began_ns
        total = self._before
        for session in self._sessions.values():
            total = total.plus(session.last).plus(session.first, sign=-1)
        self._flow.add(now_s, total)
        self.series.add(now_s, now_ns, total=total)

    def rates(self) -> Rates:
        """Of all together, over the last 30 s."""
        return self._flow.rates(_WINDOW_S)

    def long_rates(self) -> Rates:
        """Over the last five minutes, for an estimate of the end."""
        return self._flow.rates(_LONG_S)

    def rates_of(self, spool: str) -> Rates:
        session = self._sessions.get(spool)
        return session.flow.rates(_WINDOW_S) if session is not None else Rates()
