"""One sample taken apart by what the run says of it: which state lies where, and on which side of the final norm.

Pure. Duty: `SampleStates` from the tensors of a sample. Layer numbers come from the run alone, and what it does not say
is not known. Must never change an element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from durastore.adopt.foreign_formats.contents import Array
from durastore.adopt.foreign_formats.layouts import LAYOUTS
from durastore.codec.copying import flat_bytes, inspect_tensor
from durastore.codec.dtypes import numpy_dtype
from durastore.errors import ConfigError, InvalidInput
from durastore.extract.conversion import RunShape
from durastore.model import Run, Sample, parse_json

__all__ = ["SampleStates", "array_of", "shape_of_run", "states_of"]

_STATES, _LAST, _MASK = "hidden_states", "last_hidden_states", "loss_mask"
_TOKENS = ("input_ids", "token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStates:
    """Tokens [T], mask [T] where there is one, states [T, L, H] of `layers`, and the last layer's state [T, H]."""

    tokens: NDArray[np.int64]
    loss_mask: NDArray[np.int64] | None
    layers: tuple[int, ...]
    """Index k is the state after k layers; without the last one."""
    states: Array
    last: Array | None
    is_last_normed: bool | None
    """None where neither the run nor the file that the sample was made of tells."""
    others: tuple[str, ...]
    """Tensors of the sample that are none of these."""


def shape_of_run(run: Run) -> RunShape:
    """What the run says of its states. `InvalidInput` where it names no layers."""
    try:
        return RunShape.of(parse_json(run.text, what="run"))
    except ConfigError as exc:
        raise InvalidInput(f"run {run.digest}: {exc.message}", hint="only runs that name their layers go over") from exc


def array_of(name: str, tensor: object) -> Array:
    """A tensor's elements as they are, bfloat16 and fp8 as ml_dtypes. `InvalidInput` where it has no such form."""
    source = inspect_tensor(name, tensor)
    if not source.is_torch:
        array: Array = np.ascontiguousarray(source.value).reshape(source.shape)
        return array
    data = flat_bytes(source.value)
    if data is None:
        data = flat_bytes(source.value.contiguous())
    if data is None:
        raise InvalidInput(f"tensor {name!r} is not in host memory")
    return data.view(numpy_dtype(source.dtype)).reshape(source.shape)


def states_of(sample: Sample, shape: RunShape) -> SampleStates:
    """The sample by layers. `InvalidInput` where it is not what its run says."""
    tensors = sample.tensors
    tokens_key = next((key for key in _TOKENS if key in tensors), None)
    if _STATES not in tensors or tokens_key is None:
        raise InvalidInput(f"sample {sample.id!r} has no {_STATES if _STATES not in tensors else 'input_ids'}")
    tokens = _row(sample, tokens_key)
    states = array_of(_STATES, tensors[_STATES])
    if states.ndim != 3 or states.shape[:2] != (len(tokens), len(shape.layers)):
        wanted = f"[{len(tokens)}, {len(shape.layers)}, H]"
        raise InvalidInput(f"sample {sample.id!r}: {_STATES} is {list(states.shape)}, its run and tokens say {wanted}")
    order = sorted(range(len(shape.layers)), key=lambda at: shape.layers[at])
    inner = [at for at in order if shape.layers[at] != shape.num_layers]
    last, is_normed = _last(sample, states, shape=shape)
    return SampleStates(
        tokens=tokens,
        loss_mask=_row(sample, _MASK) if _MASK in tensors else None,
        layers=tuple(shape.layers[at] for at in inner),
        states=states if inner == list(range(len(shape.layers))) else states[:, inner],
        last=last,
        is_last_normed=is_normed,
        others=tuple(sorted(tensors.keys() - {_STATES, _LAST, _MASK, tokens_key})),
    )


def _row(sample: Sample, name: str) -> NDArray[np.int64]:
    array = array_of(name, sample.tensors[name])
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise InvalidInput(f"sample {sample.id!r}: {name} is {array.dtype} {list(array.shape)}, not whole numbers [T]")
    if len(array) != len(sample.tensors[_STATES]):
        raise InvalidInput(f"sample {sample.id!r}: {len(array)} {name} for {len(sample.tensors[_STATES])} states")
    return array.astype(np.int64)


def _last(sample: Sample, states: Array, *, shape: RunShape) -> tuple[Array | None, bool | None]:
    if shape.has_last:
        assert shape.num_layers is not None
        return states[:, shape.layers.index(shape.num_layers)], shape.is_last_normed
    if _LAST not in sample.tensors:
        return None, None
    last = array_of(_LAST, sample.tensors[_LAST])
    if last.shape != (states.shape[0], states.shape[2]):
        raise InvalidInput(f"sample {sample.id!r}: {_LAST} is {list(last.shape)}, not one state a token")
    return last, _adopted_norm(sample.meta)


def _adopted_norm(meta: Mapping[str, Any]) -> bool | None:
    """What the layout of the file says that the sample was made of."""
    adopted = meta.get("adopted")
    if not isinstance(adopted, Mapping):
        return None
    layout = next((each for each in LAYOUTS if each.name == adopted.get("layout")), None)
    values = adopted.get("values")
    said = values.get(layout.prenorm) if layout is not None and layout.prenorm and isinstance(values, Mapping) else None
    if isinstance(said, bool):
        return not said
    return layout.is_last_normed if layout is not None else None
