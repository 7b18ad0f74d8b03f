"""What happened last: the troubles of a process, and what stands in its way now.

Duty: an observer that keeps a bounded list of events that a person may want to know of, and the obstacle that the last
requests met. Must never raise, block, or grow.
"""

from __future__ import annotations

import threading
from collections import deque

from durastore.clock import Clock
from durastore.observe.events import Fact
from durastore.observe.status import Happening, Proofs, clipped

__all__ = ["Obstacle", "Recent"]

_KEPT = 12
_QUIET_S = 5.0
_TROUBLES = frozenset(
    {
        "pack.trouble",
        "put.gave_up",
        "put.waits",
        "reclaim.kept",
        "reclaim.object_gone",
        "reclaim.refused",
        "stall.begun",
        "stall.ended",
        "upload.failed",
        "upload.overloaded",
        "upload.retry",
        "upload.stuck",
        "verify.canary_failed",
        "verify.mismatch",
        "verify.spot_mismatch",
    }
)
_FAILING = frozenset({"upload.failed", "upload.retry", "upload.stuck", "pack.trouble"})
_PASSING = frozenset({"upload.done", "upload.part", "upload.sent", "pack.verified", "manifest.segment"})
_PROOFS = {"verify.attested": "ATTESTED", "verify.read_back": "READ_BACK"}


class Obstacle:
    """Requests fail since `since_ns`, and none got through."""

    __slots__ = ("since_ns", "text")

    def __init__(self, since_ns: int, text: str) -> None:
        self.since_ns = since_ns
        self.text = text


class Recent:
    """Thread-safe. Repetitions of an event within five seconds count as one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._happenings: deque[Happening] = deque(maxlen=_KEPT)
        self._told: dict[tuple[str, str], int] = {}
        self._obstacle: Obstacle | None = None
        self._last_proof: tuple[str, str, int] | None = None
        self.wait: str | None = None
        """Why puts wait now."""

    def emit(self, name: str, **facts: Fact) -> None:
        if name in _PASSING:
            self._obstacle = None  # a single reference: no lock needed on the way of every pack
            return
        if name in _PROOFS:
            self._last_proof = (str(facts.get("pack", "")), _PROOFS[name], self._clock.now_ns())
            return
        if name in ("put.waits", "put.resumed", "put.gave_up"):
            self.wait = str(facts.get("cause")) if name == "put.waits" else None
        if name not in _TROUBLES:
            return
        now_ns = self._clock.now_ns()
        with self._lock:
            text = _text(facts)
            if name in _FAILING:
                since_ns = self._obstacle.since_ns if self._obstacle is not None else now_ns
                self._obstacle = Obstacle(since_ns, str(facts.get("error") or name))
            key = (name, str(facts.get("error", "")))
            if now_ns - self._told.get(key, 0) < _QUIET_S * 1e9:
                return
            if len(self._told) > 100:
                self._told.clear()
            self._told[key] = now_ns
            self._happenings.append(Happening(at_ns=now_ns, what=name, text=text))

    @property
    def obstacle(self) -> Obstacle | None:
        return self._obstacle

    def happenings(self) -> tuple[Happening, ...]:
        with self._lock:
            return tuple(self._happenings)

    def proofs(self, *, attested: int, read_back: int, mismatches: int) -> Proofs:
        """With the last one that was made."""
        pack, level, at_ns = self._last_proof or (None, None, None)
        return Proofs(
            attested=attested,
            read_back=read_back,
            mismatches=mismatches,
            last_pack=pack,
            last_level=level,
            last_ns=at_ns,
        )


def _text(facts: dict[str, Fact]) -> str:
    shown = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in facts.items()}
    return clipped(", ".join(f"{name} {value}" for name, value in shown.items() if value is not None))
