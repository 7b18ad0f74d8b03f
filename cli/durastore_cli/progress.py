"""How far a long command is, on stderr.

Duty: one plain line at most every few seconds. Must never write to stdout.
"""

from __future__ import annotations

import click

from durastore.clock import SYSTEM_CLOCK

__all__ = ["Ticker"]

_EVERY_S = 5.0


class Ticker:
    """Called with (done, of) as often as one likes; prints `<command>: <done> of <of> <unit>`, without `of` while
    that is not known (0).
    """

    def __init__(self, command: str, unit: str) -> None:
        self._command = command
        self._unit = unit
        self._next_s = SYSTEM_CLOCK.monotonic() + _EVERY_S

    def __call__(self, done: int, of: int) -> None:
        now_s = SYSTEM_CLOCK.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            click.echo(f"{self._command}: {done}{f' of {of}' if of >= done else ''} {self._unit}", err=True)
