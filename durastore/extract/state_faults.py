"""What makes states not worth storing, found in their bits.

Duty: a NaN, an infinity or a layer of only zeros in states [T, L, H] in host memory. With numpy and on the thread that
calls: torch's own reductions would wake its compute threads, which the model needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["find_array_fault", "find_state_fault"]

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
    form = _FORMS.get(str(states.dtype).removeprefix("torch."))
    if form is None:
        return f"states are {states.dtype}, which cannot be checked"
    return _find_fault(states.contiguous().view(_signed(states)).numpy(), form, layers=layers)


def find_array_fault(states: np.ndarray[Any, np.dtype[Any]], layers: Sequence[int]) -> str | None:
    """The same for an array of numpy (bfloat16 as ml_dtypes has it)."""
    form = _FORMS.get(states.dtype.name)
    if form is None:
        return f"states are {states.dtype}, which cannot be checked"
    return _find_fault(np.ascontiguousarray(states), form, layers=layers)


def _find_fault(
    states: np.ndarray[Any, np.dtype[Any]], form: tuple[type[np.unsignedinteger], int], *, layers: Sequence[int]
) -> str | None:
    unsigned, infinity = form
    bits = states.view(unsigned)
    magnitudes = bits & unsigned(np.iinfo(unsigned).max >> 1)  # without the sign they order as the numbers do
    for layer, peak in zip(layers, magnitudes.max(axis=0).max(axis=1).tolist(), strict=True):
        if peak >= infinity:
            return f"state {layer} has a NaN or an infinity"
        if peak == 0:
            return f"state {layer} is zero everywhere"
    return None


def _signed(states: torch.Tensor) -> torch.dtype:
    """The integer type of this size that every version of torch and numpy share."""
    import torch

    return {2: torch.int16, 4: torch.int32, 8: torch.int64}[states.element_size()]
