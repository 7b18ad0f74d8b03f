"""How far a long command is, on stderr.

Duty: one plain line at most every few seconds. Must never write to stdout.
"""

from __future__ import annotations

from typing import ClassVar

import click

from durastore.clock import SYSTEM_CLOCK

__all__ = ["Ticker"]

_EVERY_S = 5.0


class Ticker:
    """Called with (done, of) as often as one likes; prints `<command>: <done> of <of> <unit>`, without `of` while
    that is not known (0). The end is printed too, where anything was.
    """

    _newest: ClassVar[Ticker | None] = None

    def __init__(self, command: str, unit: str) -> None:
        self._command = command
        self._unit = unit
        self._next_s = SYSTEM_CLOCK.monotonic() + _EVERY_S
        self._now = self._printed = (0, 0)
        Ticker._newest = self

    def __call__(self, done: int, of: int) -> None:
        self._now = (done, of)
        now_s = SYSTEM_CLOCK.monotonic()
        is_end = done == of and self._printed != (0, 0)  # a last line in the middle looks as if it had stopped there
        if now_s >= self._next_s or is_end:
            self._next_s = now_s + _EVERY_S
            self._print()

    def _print(self) -> None:
        if self._now == self._printed:
            return
        self._printed = done, of = self._now
        click.echo(f"{self._command}: {done}{f' of {of}' if of >= done else ''} {self._unit}", err=True)

    @classmethod
    def print_last(cls) -> None:
        """How far the command came that ends now, where that was told."""
        if cls._newest is not None:
            cls._newest._print()
            cls._newest = None
