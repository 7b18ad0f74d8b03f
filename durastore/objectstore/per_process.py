"""One value per process: what must not cross a fork.

Duty: hand each process its own clients. A connection used by two processes mixes up their answers, and a native
client's threads do not exist in a forked child. Must never close what belongs to the parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["PerProcess"]

T = TypeVar("T")


class _Slot(Generic[T]):
    __slots__ = ("lock", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: T | None = None


class PerProcess(Generic[T]):
    """Makes the value at first use in each process. Thread-safe.

    The parent's value stays referenced in a child, on purpose: finalising it there could hang on threads that the
    fork did not copy. Each pid has its own lock, because the parent's may have been held at the moment of the fork.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._slots: dict[int, _Slot[T]] = {}

    def get(self) -> T:
        slot = self._slots.get(os.getpid())
        if slot is None:
            slot = self._slots.setdefault(os.getpid(), _Slot())
        with slot.lock:
            if slot.value is None:
                slot.value = self._make()
            return slot.value

    def take(self) -> T | None:
        """This process's value if it was made, which is then forgotten; the next `get` makes another."""
        slot = self._slots.get(os.getpid())
        if slot is None:
            return None
        with slot.lock:
            value, slot.value = slot.value, None
            return value
