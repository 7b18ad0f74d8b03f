"""Events: the one way in which a part of durastore says what it did.

Duty: a narrow port (`Observer.emit`) and two observers. Must never raise into the caller's work, block, or carry a
secret, a tensor or a path outside the spool.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol

__all__ = ["LOGGER", "Counting", "Observer", "Silent", "Tee"]

LOGGER = logging.getLogger("durastore")
LOGGER.addHandler(logging.NullHandler())  # a library never configures logging; it only must not complain

Fact = str | int | float | bool | None


class Observer(Protocol):
    """Takes events. Called from many threads; must be quick and must not raise."""

    def emit(self, name: str, **facts: Fact) -> None: ...


class Silent:
    """Hears nothing."""

    def emit(self, name: str, **facts: Fact) -> None:
        del name, facts


class Counting:
    """Counts events and sums their integer facts under `<event>.<fact>`; the source of status numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def emit(self, name: str, **facts: Fact) -> None:
        with self._lock:
            self._counts[name] += 1
            for fact, value in facts.items():
                if isinstance(value, int) and not isinstance(value, bool):
                    self._counts[f"{name}.{fact}"] += value

    def count(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def counts(self) -> Counter[str]:
        """All of them at one moment; 0 for what never happened."""
        with self._lock:
            return self._counts.copy()


class Tee:
    """Gives each event to several observers. One that raises is logged once and given the next event all the same: what
    somebody's metrics think of an event must not decide what becomes of a pack.
    """

    def __init__(self, *observers: Observer | Callable[..., None]) -> None:
        self._emits = tuple(o if callable(o) else o.emit for o in observers)
        self._has_raised: set[int] = set()

    def emit(self, name: str, **facts: Fact) -> None:
        for number, emit in enumerate(self._emits):
            try:
                emit(name, **facts)
            except Exception as exc:  # noqa: BLE001 - a caller's code, called in the middle of ours
                if number not in self._has_raised:
                    self._has_raised.add(number)
                    LOGGER.warning("an observer raised at %s, which is logged once: %r", name, exc)
