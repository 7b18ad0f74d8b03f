"""Which states are stored, in one convention.

Duty: `--layers` text -> `LayerPlan`. Index k is the state after k layers: 0 the embeddings, n the state after the last
layer (the numbering of Hugging Face's `hidden_states`). Tools count differently by one and differ in the final norm, so
both are recorded with the run. Must never clamp or guess an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durastore.errors import InvalidInput

__all__ = ["LAYER_CONVENTION", "LayerPlan", "parse_layers"]

LAYER_CONVENTION = "state after k layers; 0 = embeddings, n = after the last layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """The wanted states in ascending order, which is their order in `hidden_states` [T, L, H]."""

    indices: tuple[int, ...]
    num_layers: int
    is_last_normed: bool
    """Index n is taken after the model's final norm instead of before it."""

    def describe(self) -> dict[str, Any]:
        """What the run records. `last_is_normed` is null where index n is not stored."""
        has_last = self.indices[-1] == self.num_layers
        return {
            "layers": list(self.indices),
            "num_layers": self.num_layers,
            "layer_convention": LAYER_CONVENTION,
            "last_is_normed": self.is_last_normed if has_last else None,
        }


def parse_layers(text: str, *, num_layers: int, is_last_normed: bool = False) -> LayerPlan:
    """The plan of a list such as `2,15,27,last`; repeats count once, the order given does not matter.

    Raises `InvalidInput`, naming the allowed range, for anything that is not an index of this model or `last`.
    """
    hint = f"this model has indices 0 (embeddings) to {num_layers} (after the last layer, also called 'last')"
    indices = set()
    for item in text.split(","):
        name = item.strip()
        if name == "last":
            indices.add(num_layers)
        elif name.isascii() and name.isdigit() and int(name) <= num_layers:
            indices.add(int(name))
        else:
            raise InvalidInput(f"unknown layer {name!r}", hint=hint)
    return LayerPlan(indices=tuple(sorted(indices)), num_layers=num_layers, is_last_normed=is_last_normed)
