"""What worker processes of a loader import of these tests: nothing heavy, because each of them pays for it."""

from __future__ import annotations

from typing import Any

__all__ = ["ids_of"]


def ids_of(batch: list[Any]) -> list[str]:
    """Collates a batch; at the top of a module, so that a spawned worker finds it."""
    return [sample.id for sample in batch]
