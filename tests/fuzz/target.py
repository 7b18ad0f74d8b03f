"""What a fuzz target is.

A target's `check` takes any bytes. It returns where the parser gave a value or one of its documented errors, and lets
everything else through: that is a finding. It asserts what must hold of a value that was given out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutate import mutate_bytes, mutate_json

__all__ = ["CORPUS", "FuzzTarget", "load_corpus"]

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzTarget:
    """One parser under test. `reshape` mutates the structure of an input, None where it has none."""

    name: str
    check: Callable[[bytes], None]
    max_bytes: int = 4096
    reshape: Callable[[bytes, random.Random], bytes | None] = mutate_json

    def mutate(self, data: bytes, rng: random.Random, *, others: Sequence[bytes] = ()) -> tuple[bytes, bool]:
        """A new input from `data`, and whether it still has the structure of one: most are changed by structure."""
        shaped = self.reshape(data, rng) if rng.randrange(4) else None
        if shaped is not None and rng.randrange(8):
            return shaped[: self.max_bytes], len(shaped) <= self.max_bytes
        return mutate_bytes(shaped or data, rng, others=others, max_bytes=self.max_bytes), False


def load_corpus(name: str) -> list[bytes]:
    """The committed seeds of a target, in order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
