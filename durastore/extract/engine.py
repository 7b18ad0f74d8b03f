"""What the runner asks of a model, whatever runs it.

Duty: the `Engine` protocol and its values. An engine sees token rows and gives states; it never sees the store, the
disk or the bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from durastore.extract.rows import TokenRow

__all__ = ["Engine", "Extracted", "Refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """The tensors of one sample, on the CPU, one row per token, padding gone."""

    tensors: Mapping[str, Any]
    held_bytes: int
    """Memory that stays in use until the tensors are dropped (a view counts its share of the batch)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """One sample whose states may not be stored, and why."""

    reason: str


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
