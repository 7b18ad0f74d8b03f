"""What the runner asks of a model, whatever runs it.

Duty: the `Engine` protocol and its values. An engine sees token rows and gives states; it never sees the store, the
disk or the bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from durastore.extract.rows import TokenRow

__all__ = ["Engine", "Extracted", "Holds", "Refused", "StreamEngine"]

Holds: TypeAlias = Callable[[], bool]
"""Asks the store, now, whether it holds the sample of this input durably."""


def _no_fault(_: Mapping[str, Any]) -> str | None:
    return None


def _nothing_left(_: Holds | None) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The tensors of one sample, one row per token, padding gone; on any device, and perhaps not computed yet."""

    tensors: Mapping[str, Any]
    held_bytes: int
    """Host memory that the sample takes until it is stored."""
    find_fault: Callable[[Mapping[str, Any]], str | None] = _no_fault
    """Why these tensors, copied to host memory, may not be stored; asked by the thread that stores them."""
    settle: Callable[[Holds | None], None] = _nothing_left
    """Called by that thread once the sample was put, or with None once it is known that it will not be."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What the sample's own meta says besides its line and length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One sample whose states may not be stored, and why."""

    reason: str
    attempts: int = 1
    """Passes that this took: a batch that raised is halved, until the sample stands alone."""


class Engine(Protocol):
    """One loaded model. Used from one thread; `extract` may raise for a whole batch, the runner then splits it."""

    def start(self) -> None:
        """Load the model. Raises `ConfigError` if it cannot be. Safe to repeat."""
        ...

    def health(self) -> str | None:
        """None if the engine can go on, else the reason why every further sample would fail."""
        ...

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        """One result per row, in order."""
        ...

    def close(self) -> None:
        """Let go of the model. Safe to repeat."""
        ...


@runtime_checkable
class StreamEngine(Engine, Protocol):
    """A server that works on many samples at once. It is asked for as many as there is room for."""

    def stream(
        self, rows: Iterator[TokenRow | None], *, may_wait: Callable[[], bool]
    ) -> Iterator[tuple[TokenRow, Extracted | Refused]]:
        """Each row with its result, in the order in which they come. A row of None: there is none at the moment.

        Ends after the last row, or without those in work once `may_wait` says no. `EngineFailed`, `ConfigError` for
        what is not about a sample. Rows are taken only when there is room for them; a result's `settle` gives it back.
        """
        ...
