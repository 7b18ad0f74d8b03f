"""Commands that run until somebody interrupts them, which is how they are meant to end.

Duty: `until_interrupted`. Must never lose a Ctrl-C: Python raises `KeyboardInterrupt` wherever it is just then, and in
a finaliser that goes nowhere, so the handler writes it down as well.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["until_interrupted"]


@contextmanager
def until_interrupted() -> Iterator[Callable[[], bool]]:
    """Leaves the block at a SIGINT, as if it had ended; gives a function that says whether one came, to be asked in
    each turn of a loop. Main thread only.
    """
    has_come = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True
        signal.default_int_handler(number, frame)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: has_come
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, previous)
