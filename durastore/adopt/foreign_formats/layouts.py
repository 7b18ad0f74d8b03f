"""Which tool's layout a file has, told by its keys; and the states, tokens and mask in it.

Duty: `recognise`, a table as code. Facts that a layout fixes (padding, the final norm) are told; layer numbers are in
no file, and are never guessed. Every key of the file ends up in exactly one place of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from durastore.adopt.foreign_formats.contents import Array, ForeignContents, Unparsed

__all__ = ["LAYOUTS", "ForeignSample", "Layout", "recognise"]

_TOKENS = ("input_ids", "token_ids")
_MASK = "loss_mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one tool stores a sample."""

    name: str
    states: str
    """The key of the wanted layers' states, in the order in which they were asked for."""
    last: str | None = None
    """The key of the last layer's states, where they are stored by themselves."""
    tokens: str | None = None
    """A key that has to be there for this layout; else any of the known ones is taken."""
    is_last_normed: bool | None = None
    """Whether the last layer's states went through the final norm; None where the layout does not fix it."""
    prenorm: str | None = None
    """A key that says whether the last layer's states are those before the norm."""
    suffix: str | None = None
    """The layout is told from others with these keys by this part of the file's name."""
    is_padded: bool = False
    """Rows may go on behind the sample's end, with padding tokens that are 0."""


LAYOUTS = (
    Layout(
        name="specforge-eagle3",
        states="aux_hidden_state",
        last="hidden_state",
        is_last_normed=True,
        is_padded=True,
    ),
    Layout(
        name="specforge-dspark",
        states="hidden_states",
        last="target_last_hidden_states",
        is_last_normed=True,
        is_padded=True,
    ),
    Layout(name="angelslim", states="hidden_states", last="target_hiddens"),
    Layout(name="modelopt", states="aux_hidden_states", last="hidden_states", prenorm="hidden_states_prenorm"),
    Layout(name="speculators", states="hidden_states", tokens="token_ids", is_last_normed=False),
    Layout(name="specforge-dflash", states="hidden_states", suffix=".ckpt", is_padded=True),
    Layout(name="rows-pt", states="hidden_states"),
    Layout(name="rows-pt", states="hidden_state"),
)
"""In the order in which they are tried. The first six are described in the documentation of their tools; `rows-pt` is
any file with one tensor of states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSample:
    """One file, taken apart."""

    layout: Layout
    states: Array
    last: Array | None
    tokens: NDArray[np.int64] | None
    """[T], a leading dimension of one dropped; with the padding that the layout allows."""
    loss_mask: NDArray[np.uint8] | None
    """[T], 0 and 1."""
    is_last_normed: bool | None
    arrays: Mapping[str, Array]
    """All other tensors, under their own names."""
    values: Mapping[str, Any]
    """All that is no tensor."""


def recognise(contents: ForeignContents, *, path: str) -> ForeignSample:
    """The sample in a file. `Unparsed` where its keys are those of no known layout, or hold what they cannot mean."""
    layout = next((each for each in LAYOUTS if _fits(each, contents, path=path)), None)
    if layout is None:
        keys = ", ".join(sorted([*contents.arrays, *contents.values])[:12]) or "none"
        raise Unparsed(f"its keys are those of no known layout: {keys}", is_damage=False)
    arrays = contents.arrays
    tokens_key = layout.tokens or next((key for key in _TOKENS if key in arrays), None)
    used = {layout.states, layout.last, tokens_key, _MASK}
    return ForeignSample(
        layout=layout,
        states=arrays[layout.states],
        last=arrays[layout.last] if layout.last is not None else None,
        tokens=_tokens(arrays[tokens_key], tokens_key) if tokens_key is not None else None,
        loss_mask=_mask(arrays[_MASK]) if _MASK in arrays else None,
        is_last_normed=_normed(layout, contents),
        arrays={name: array for name, array in arrays.items() if name not in used},
        values=contents.values,
    )


def _fits(layout: Layout, contents: ForeignContents, *, path: str) -> bool:
    wanted = [key for key in (layout.states, layout.last, layout.tokens) if key is not None]
    has_name = layout.suffix is None or layout.suffix in path.rpartition("/")[2]
    return has_name and all(key in contents.arrays for key in wanted)


def _normed(layout: Layout, contents: ForeignContents) -> bool | None:
    if layout.prenorm is None:
        return layout.is_last_normed
    prenorm = contents.values.get(layout.prenorm)
    return not prenorm if isinstance(prenorm, bool) else layout.is_last_normed


def _flat(array: Array, key: str) -> Array:
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 1 or array.dtype.kind not in "iub":
        shown = f"{array.dtype} {list(array.shape)}"
        raise Unparsed(f"{key} is {shown}, not one row of whole numbers", is_damage=False)
    return array


def _tokens(array: Array, key: str) -> NDArray[np.int64]:
    flat = _flat(array, key)
    if flat.dtype.kind == "b" or (flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < 1 << 31):
        raise Unparsed(f"{key} holds what is no token id", is_damage=False)
    return flat.astype(np.int64)


def _mask(array: Array) -> NDArray[np.uint8]:
    flat = _flat(array, _MASK)
    if flat.size and not bool(np.isin(flat, (0, 1)).all()):
        raise Unparsed(f"{_MASK} holds more than 0 and 1", is_damage=False)
    return flat.astype(np.uint8)
