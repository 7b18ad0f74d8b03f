"""The sample of another tool's file as `extract` would have stored it, or why it is not that.

Pure. Duty: compare tokens and mask with the row they are said to belong to, and states with what the run says of them.
Layer numbers are in no file: that they are the run's is asserted by whoever adopts, and recorded so. Must never change
an element, and never make fit what does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from durastore.adopt.foreign_formats.contents import Array
from durastore.adopt.foreign_formats.layouts import ForeignSample
from durastore.errors import ConfigError
from durastore.extract.rows import TokenRow
from durastore.extract.state_faults import find_array_fault

__all__ = ["ConvertedSample", "Mismatch", "RunShape", "convert"]

_STATES, _TOKENS, _MASK, _LAST = "hidden_states", "input_ids", "loss_mask", "last_hidden_states"
_SHOWN_DTYPES = {"bfloat16", "float16", "float32"}


class Mismatch(Exception):
    """The file is not the sample it would have to be; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """What a run says that its states look like; None where it does not say."""

    layers: tuple[int, ...]
    num_layers: int | None
    is_last_normed: bool | None
    dtype: str | None
    hidden_size: int | None

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> RunShape:
        """Read from the run's own words. `ConfigError` where it names no layers, or what it names cannot be."""
        layers = run.get("layers")
        if not isinstance(layers, list) or not layers or not all(type(layer) is int for layer in layers):
            raise ConfigError(
                "the run names no layers, so nothing can be compared with it", hint="layers = [2, 15, 27]"
            )
        model = run.get("model")
        hidden_size = model.get("hidden_size") if isinstance(model, Mapping) else run.get("hidden_size")
        dtype = run.get("dtype")
        if dtype is not None and dtype not in _SHOWN_DTYPES:
            raise ConfigError(f"the run's dtype is {dtype!r}", hint=f"known: {', '.join(sorted(_SHOWN_DTYPES))}")
        num_layers, is_last_normed = run.get("num_layers"), run.get("last_is_normed")
        return cls(
            layers=tuple(layers),
            num_layers=num_layers if type(num_layers) is int else None,
            is_last_normed=is_last_normed if isinstance(is_last_normed, bool) else None,
            dtype=dtype,
            hidden_size=hidden_size if type(hidden_size) is int else None,
        )

    @property
    def has_last(self) -> bool | None:
        """Whether the state after the last layer is among the wanted ones; None where the run does not tell."""
        return None if self.num_layers is None else self.num_layers in self.layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedSample:
    """Ready to be put."""

    row: TokenRow
    tensors: Mapping[str, Any]
    values: Mapping[str, Any]
    """What had no place as a tensor."""
    layout: str


def convert(sample: ForeignSample, row: TokenRow, *, shape: RunShape) -> ConvertedSample:
    """The sample for this row. `Mismatch` where tokens, mask, row count, states, dtype or norm are others.

    `row` has what the input says; where the file stores no tokens, only their number is compared.
    """
    count = len(row.input_ids)
    _check_tokens(sample, row)
    rows = len(sample.tokens) if sample.tokens is not None else count
    states, left = _states(sample, rows=rows, shape=shape)
    tensors: dict[str, Any] = {_STATES: states[:count], _TOKENS: row.input_ids}
    mask = row.loss_mask if row.loss_mask is not None else sample.loss_mask
    if mask is not None:
        tensors[_MASK] = mask[:count]
    for name, array in [*left.items(), *sample.arrays.items()]:
        if name in tensors:
            raise Mismatch(f"its tensor {name!r} has the name of one that the run's samples have")
        tensors[name] = array
    fault = find_array_fault(tensors[_STATES], shape.layers)
    if fault is not None:
        raise Mismatch(f"{fault}: not worth storing")
    return ConvertedSample(row=row, tensors=tensors, values=sample.values, layout=sample.layout.name)


# --- tokens --------------------------------------------------------------------------------------------------------


def _check_tokens(sample: ForeignSample, row: TokenRow) -> None:
    wanted, tokens, where = row.input_ids, sample.tokens, f"line {row.line} of the input"
    if tokens is not None:
        at = _first_difference(tokens, wanted)
        if at is not None:
            raise Mismatch(f"its token {at} is {int(tokens[at])}, and in {where} it is {int(wanted[at])}")
        is_cut = len(tokens) < len(wanted)
        if is_cut or (len(tokens) > len(wanted) and not _is_padding(sample, begin=len(wanted))):
            raise Mismatch(f"it has {len(tokens)} tokens, and {where} has {len(wanted)}")
    mask = sample.loss_mask
    if mask is None:
        return
    if len(mask) != (len(tokens) if tokens is not None else len(wanted)):
        raise Mismatch(f"its loss_mask has {len(mask)} entries for {len(wanted)} tokens")
    at = _first_difference(mask, row.loss_mask) if row.loss_mask is not None else None
    if at is not None:
        raise Mismatch(f"its loss_mask differs from that of {where} at token {at}")


def _first_difference(one: NDArray[Any], other: NDArray[Any]) -> int | None:
    length = min(len(one), len(other))
    found = np.flatnonzero(one[:length] != other[:length])
    return int(found[0]) if len(found) else None


def _is_padding(sample: ForeignSample, *, begin: int) -> bool:
    """Rows behind the end, as a tool that pads to its longest sample of a batch stores them. A causal model's states
    do not depend on what comes later, so those before it are the sample's own.
    """
    assert sample.tokens is not None
    has_mask = sample.loss_mask is not None and not sample.loss_mask[begin:].any()
    return sample.layout.is_padded and has_mask and not sample.tokens[begin:].any()


# --- states --------------------------------------------------------------------------------------------------------


def _states(sample: ForeignSample, *, rows: int, shape: RunShape) -> tuple[Array, dict[str, Array]]:
    """States [rows, L, H] of the run's layers, and the last layer's where the run does not want it."""
    wanted = len(shape.layers)
    last = _by_row(sample.last, rows=rows, slots=1, key=sample.layout.last) if sample.last is not None else None
    if last is None:
        _check_norm(sample, shape)
        states = _by_row(sample.states, rows=rows, slots=wanted, key=sample.layout.states)
        return _checked(states, shape, what=sample.layout.states), {}
    if sample.states.size == 0:
        parts = [last]
    else:
        slots = math.prod(sample.states.shape) // last.size if last.size else 0
        parts = [_by_row(sample.states, rows=rows, slots=max(slots, 1), key=sample.layout.states), last]
    found = sum(part.shape[1] for part in parts)
    if found == wanted and shape.has_last is not False:
        _check_norm(sample, shape)
        if len({part.dtype for part in parts}) > 1:
            raise Mismatch(f"{sample.layout.states} is {parts[0].dtype} and {sample.layout.last} is {last.dtype}")
        joined = np.concatenate(parts, axis=1) if len(parts) > 1 else last
        return _checked(joined, shape, what="its states"), {}
    if found == wanted + 1 and len(parts) > 1 and not shape.has_last:
        return _checked(parts[0], shape, what=sample.layout.states), {_LAST: last[:, 0]}
    aside = f"{found - 1} layers and the last one by itself ({sample.layout.last})"
    raise Mismatch(f"it holds {aside}, and the run's layers are {_listed(shape)}")


def _by_row(array: Array, *, rows: int, slots: int, key: str | None) -> Array:
    """[rows, slots, H] from [T, L, H], [1, T, L, H], [T, L*H] or [1, T, L*H]."""
    given = array.shape
    if array.ndim == 4 and given[0] == 1:
        array = array[0]
    if array.ndim == 3 and array.shape[:2] == (rows, slots):
        return array
    if array.ndim == 3 and array.shape[:2] == (1, rows):
        array = array[0]
    if array.ndim == 2 and array.shape[0] == rows and array.shape[1] % slots == 0:
        return array.reshape(rows, slots, array.shape[1] // slots)
    raise Mismatch(f"{key} has shape {list(given)}, which is not {slots} states for each of {rows} tokens")


def _checked(states: Array, shape: RunShape, *, what: str) -> Array:
    if states.shape[1] != len(shape.layers):
        raise Mismatch(f"{what}: {states.shape[1]} layers, and the run's are {_listed(shape)}")
    if shape.hidden_size is not None and states.shape[2] != shape.hidden_size:
        raise Mismatch(f"{what}: {states.shape[2]} numbers a state, and the run's model has {shape.hidden_size}")
    if shape.dtype is not None and states.dtype.name != shape.dtype:
        raise Mismatch(f"{what}: {states.dtype.name}, and the run's are {shape.dtype}")
    return states


def _check_norm(sample: ForeignSample, shape: RunShape) -> None:
    said = sample.is_last_normed
    if said is None or not shape.has_last or shape.is_last_normed is None or said == shape.is_last_normed:
        return
    kind, wanted = ("after", "before") if said else ("before", "after")
    raise Mismatch(
        f"{sample.layout.name} files hold the last state {kind} the final norm, and the run's is the one {wanted} it"
    )


def _listed(shape: RunShape) -> str:
    return ", ".join(map(str, shape.layers))
