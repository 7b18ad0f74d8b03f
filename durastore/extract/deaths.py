"""When to give up starting workers that die.

Duty: count deaths, and how many came one after the other without a sample done in between. Decides nothing else.
"""

from __future__ import annotations

from durastore.errors import EngineFailed
from durastore.extract.leases import LeaseQueue

__all__ = ["DeathCount"]

_DEATHS_IN_A_ROW = 6


class DeathCount:
    """The deaths of the workers of one command."""

    def __init__(self, queue: LeaseQueue) -> None:
        self._queue = queue
        self._done_before = 0
        self._in_a_row = 0
        self.total = 0

    def another(self, last_words: str) -> EngineFailed | None:
        """One more has died, with these last words of it. The error if another start would be in vain."""
        self.total += 1
        standing = self._queue.standing()
        done = standing.stored + standing.failed
        self._in_a_row = self._in_a_row + 1 if done == self._done_before else 1
        self._done_before = done
        if self._in_a_row < _DEATHS_IN_A_ROW:
            return None
        return EngineFailed(
            f"workers ended {self._in_a_row} times in a row without having stored a sample", hint=last_words
        )
