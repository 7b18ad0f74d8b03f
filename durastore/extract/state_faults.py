"""What makes states not worth storing, found in their bits.

Duty: a NaN, an infinity, or a layer of one number everywhere (zero, most often) in states [T, L, H] in host memory.
With numpy and on the thread that calls: torch's own reductions would wake its compute threads, which the model needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

__all__ = ["find_array_fault", "find_state_fault", "numbers_of", "state_bits"]

Bits = npt.NDArray[Any]
# dtype: the unsigned integer of its size, and the bits of an infinity; all above those are NaNs
_FORMS: Mapping[str, tuple[type[np.unsignedinteger], int]] = MappingProxyType(
    {
        "bfloat16": (np.uint16, 0x7F80),
        "float16": (np.uint16, 0x7C00),
        "float32": (np.uint32, 0x7F80_0000),
        "float64": (np.uint64, 0x7FF0_0000_0000_0000),
    }
)


def find_state_fault(states: torch.Tensor, layers: Sequence[int]) -> str | None:
    """Why these states are not worth storing, or None. `layers`: the names of the second dimension."""
    form = _FORMS.get(_name_of(states))
    bits = state_bits(states)
    if form is None or bits is None:
        return f"states are {states.dtype}, which cannot be checked"
    return _find_fault(bits, form, layers=layers)


def find_array_fault(states: np.ndarray[Any, np.dtype[Any]], layers: Sequence[int]) -> str | None:
    """The same for an array of numpy (bfloat16 as ml_dtypes has it)."""
    form = _FORMS.get(states.dtype.name)
    if form is None:
        return f"states are {states.dtype}, which cannot be checked"
    return _find_fault(np.ascontiguousarray(states).view(form[0]), form, layers=layers)


def _find_fault(bits: Bits, form: tuple[type[np.unsignedinteger], int], *, layers: Sequence[int]) -> str | None:
    unsigned, infinity = form
    magnitudes = bits & unsigned(np.iinfo(unsigned).max >> 1)  # without the sign they order as the numbers do
    for slot, (layer, peak) in enumerate(zip(layers, magnitudes.max(axis=0).max(axis=1).tolist(), strict=True)):
        if peak >= infinity:
            return f"state {layer} has a NaN or an infinity"
        if peak == 0:
            return f"state {layer} is zero everywhere"
        if _is_constant(bits[:, slot]):
            return f"state {layer} is the same number everywhere"
    return None


def _is_constant(bits: Bits) -> bool:
    """The corners first: nearly all states are told apart by them."""
    first = bits[0, 0]
    if bits.size == 1 or bits[0, -1] != first or bits[-1, 0] != first or bits[-1, bits.shape[1] // 2] != first:
        return False
    return bool((bits == first).all())


def _name_of(states: torch.Tensor) -> str:
    return str(states.dtype).removeprefix("torch.")


def state_bits(states: torch.Tensor) -> Bits | None:
    """The states as unsigned integers, without a copy where they are contiguous; None for a dtype that has no form."""
    form = _FORMS.get(_name_of(states))
    return states.contiguous().view(_signed(states)).numpy().view(form[0]) if form is not None else None


def numbers_of(bits: Bits, states: torch.Tensor) -> npt.NDArray[np.float32]:
    """The numbers that these bits of the states are."""
    match str(states.dtype):
        case "torch.bfloat16":
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "torch.float16":
            return np.ascontiguousarray(bits).view(np.float16).astype(np.float32)
        case "torch.float32":
            return np.ascontiguousarray(bits).view(np.float32)
        case _:
            return np.ascontiguousarray(bits).view(np.float64).astype(np.float32)


def _signed(states: torch.Tensor) -> torch.dtype:
    """The integer type of this size that every version of torch and numpy share."""
    import torch

    return {2: torch.int16, 4: torch.int32, 8: torch.int64}[states.element_size()]
