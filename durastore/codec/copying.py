"""Tensors into bytes: the one copy that `put` keeps.

Duty: read dtype and shape of a torch or numpy tensor, refuse what has no lossless form, and copy its elements once,
contiguous and little-endian. Must never import torch (a caller who hands in a torch tensor has imported it) and never
convert a value.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from durastore.codec.dtypes import name_of_numpy, name_of_torch
from durastore.codec.header import MAX_RANK, shape_fault
from durastore.errors import UnsupportedTensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Source", "copy_into", "flat_bytes", "inspect_tensor", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A tensor as handed in, with what a sample needs to know of it."""

    name: str
    value: Any
    dtype: str
    shape: tuple[int, ...]
    is_torch: bool


def inspect_tensor(name: str, value: object) -> Source:
    """Dtype and shape of `value`; nothing is copied. Raises `UnsupportedTensor` naming the tensor and the way out."""
    torch = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)
    if tensor_type is not None and isinstance(value, tensor_type):
        try:
            source = _inspect_torch(name, value, plain_dispatch=tensor_type.__torch_dispatch__)
        except RuntimeError as exc:  # torch's answer of wrappers that do not know what they are asked
            raise unreadable(name, exc) from exc
    else:
        source = _inspect_numpy(name, value)
    fault = shape_fault(source.dtype, source.shape)
    if fault:  # what no reader would take must not be written
        raise UnsupportedTensor(
            f"tensor {name!r} {fault}", hint=f"at most {MAX_RANK} dimensions and 2^62 bytes are allowed"
        )
    return source


def _inspect_torch(name: str, value: Any, *, plain_dispatch: object) -> Source:
    layout = str(value.layout).removeprefix("torch.")
    if value.is_nested or layout == "jagged":
        raise UnsupportedTensor(f"tensor {name!r} is nested", hint="store its parts as tensors of their own")
    if layout != "strided":
        raise UnsupportedTensor(
            f"tensor {name!r} has layout {layout}", hint="call .to_dense(), or store indices and values"
        )
    if value.is_quantized:
        raise UnsupportedTensor(
            f"tensor {name!r} is quantized", hint="store int_repr(), scale and zero point as tensors"
        )
    if value.is_meta:
        raise UnsupportedTensor(f"tensor {name!r} is on the meta device and has no values")
    if type(value).__torch_dispatch__ is not plain_dispatch:  # wrappers (DTensor, fake, ...) hold their data elsewhere
        raise UnsupportedTensor(f"tensor {name!r} is a {type(value).__name__}", hint="hand in the plain local tensor")
    dtype = name_of_torch(value.dtype)
    if dtype is None:
        raise _no_form(name, str(value.dtype))
    return Source(name=name, value=value.detach(), dtype=dtype, shape=tuple(int(n) for n in value.shape), is_torch=True)


def _inspect_numpy(name: str, value: object) -> Source:
    import numpy as np

    if not isinstance(value, (np.ndarray, np.generic)):
        raise UnsupportedTensor(
            f"tensor {name!r} is a {type(value).__name__}", hint="hand in a torch tensor or a numpy array"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise UnsupportedTensor(f"tensor {name!r} is a masked array", hint="store its data and its mask as two tensors")
    array = np.asarray(value)
    dtype = name_of_numpy(array.dtype)
    if dtype is None:
        raise _no_form(name, array.dtype.name)
    return Source(name=name, value=array, dtype=dtype, shape=array.shape, is_torch=False)


def _no_form(name: str, dtype: str) -> UnsupportedTensor:
    hints = {
        "complex128": "store real and imaginary part as two tensors",
        "longdouble": "store it as float64, if that is enough",
    }
    return UnsupportedTensor(
        f"tensor {name!r} has dtype {dtype}, which has no lossless form in a sample",
        hint=hints.get(dtype.removeprefix("torch."), "convert it to a supported dtype first"),
    )


def unreadable(name: str, exc: Exception) -> UnsupportedTensor:
    """What to raise of a tensor whose elements torch does not give."""
    return UnsupportedTensor(
        f"tensor {name!r} cannot be read: {exc}", hint="hand in a plain tensor: .detach().cpu().clone()"
    )


def flat_bytes(value: Any) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """The bytes of a torch tensor as they lie in the CPU's memory, not copied; None where they are not its elements in
    order (strides, another device, lazy conjugation or negation).

    For copies by numpy: torch's own wakes a compute thread for each thread that copies, and these spin afterwards.
    """
    # Few calls, on purpose: after a forward pass none of this is in the CPU's caches, and each costs microseconds.
    if not value.is_cpu:
        return None
    if not value.is_contiguous() or value.is_neg() or (value.is_complex() and value.is_conj()):
        value.as_strided(value.shape, value.stride())  # an error where its memory is gone: torch's copy would just read
        return None
    if value.requires_grad:
        value = value.detach()
    # flat first, and with a stride of our own: whoever has at most one element in a dimension may have any stride there
    # and still be contiguous, and torch then shows no bytes
    flat: np.ndarray[Any, np.dtype[np.uint8]]
    flat = value.as_strided((value.numel(),), (1,)).view(sys.modules["torch"].uint8).numpy()
    return flat


def copy_into(target: np.ndarray[Any, np.dtype[np.uint8]], source: Source) -> None:
    """Copy every element of `source` into `target`, a contiguous byte array of exactly its size.

    One pass and no temporary for any strides, byte order or (CUDA) device: the target is viewed as the tensor's own
    type and shape. Lazy conjugation and negation are resolved on the way. `UnsupportedTensor` where torch refuses.
    """
    if not target.size:
        return
    if source.is_torch:
        try:
            _copy_torch(target, source.value)
        except RuntimeError as exc:
            raise unreadable(source.name, exc) from exc
        return
    import numpy as np

    array = source.value
    np.copyto(target.view(array.dtype.newbyteorder("<")).reshape(array.shape), array, casting="equiv")


def _copy_torch(target: np.ndarray[Any, np.dtype[np.uint8]], value: Any) -> None:
    data = flat_bytes(value)
    if data is not None:
        target[...] = data
        return
    sys.modules["torch"].from_numpy(target).view(value.dtype).view(value.shape).copy_(value)
