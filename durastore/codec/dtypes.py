"""Element types: how safetensors, numpy and torch name them and how many bytes one element takes.

Duty: one table and its look-ups. Must never convert a value from one element type to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from durastore.errors import UnsupportedTensor

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DTYPES", "DType", "has_torch", "name_of_numpy", "name_of_torch", "numpy_dtype", "torch_dtype"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """One element type. `numpy` is an attribute of numpy, or of ml_dtypes where numpy has none."""

    name: str
    """The safetensors name."""
    item_bytes: int
    numpy: str
    torch: str
    is_ml_dtype: bool = False


def _table() -> dict[str, DType]:
    plain = {
        "F64": (8, "float64"), "F32": (4, "float32"), "F16": (2, "float16"), "C64": (8, "complex64"),
        "I64": (8, "int64"), "I32": (4, "int32"), "I16": (2, "int16"), "I8": (1, "int8"),
        "U64": (8, "uint64"), "U32": (4, "uint32"), "U16": (2, "uint16"), "U8": (1, "uint8"),
    }  # fmt: skip
    extended = {
        "BF16": (2, "bfloat16"), "F8_E4M3": (1, "float8_e4m3fn"), "F8_E5M2": (1, "float8_e5m2"),
        "F8_E4M3FNUZ": (1, "float8_e4m3fnuz"), "F8_E5M2FNUZ": (1, "float8_e5m2fnuz"), "F8_E8M0": (1, "float8_e8m0fnu"),
    }  # fmt: skip
    rows = [DType(name=n, item_bytes=b, numpy=a, torch=a) for n, (b, a) in plain.items()]
    rows += [DType(name=n, item_bytes=b, numpy=a, torch=a, is_ml_dtype=True) for n, (b, a) in extended.items()]
    rows.append(DType(name="BOOL", item_bytes=1, numpy="bool_", torch="bool"))
    return {row.name: row for row in rows}


DTYPES = _table()


@lru_cache(maxsize=1)
def has_torch() -> bool:
    """Whether torch is installed; does not import it."""
    return find_spec("torch") is not None


@lru_cache(maxsize=64)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy form, little-endian. `UnsupportedTensor` where it lives in ml_dtypes and that is not installed."""
    import numpy as np

    row = DTYPES[name]
    if not row.is_ml_dtype:
        plain: np.dtype[Any] = np.dtype(getattr(np, row.numpy))
        return plain.newbyteorder("<")
    try:
        import ml_dtypes
    except ImportError as exc:
        raise UnsupportedTensor(f"{name} has no numpy form here", hint="install ml_dtypes, or torch") from exc
    extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, row.numpy))
    return extended


def torch_dtype(name: str) -> Any:
    """The torch dtype (imports torch). `UnsupportedTensor` where this torch is too old to have it."""
    import torch

    found = getattr(torch, DTYPES[name].torch, None)
    if found is None:
        raise UnsupportedTensor(f"{name} is not known to torch {torch.__version__}", hint="use a newer torch")
    return found


def name_of_numpy(dtype: np.dtype[Any]) -> str | None:
    """The safetensors name of a numpy or ml_dtypes dtype of either byte order; None where there is none."""
    import numpy as np

    name = _numpy_names().get(dtype.name)
    # The name alone does not decide: "float8_e4m3" style names are free for any package to register.
    return name if name and np.dtype(dtype).newbyteorder("=") == numpy_dtype(name).newbyteorder("=") else None


@lru_cache(maxsize=1)
def _numpy_names() -> dict[str, str]:
    return {("bool" if row.name == "BOOL" else row.numpy): row.name for row in DTYPES.values()}


def name_of_torch(dtype: Any) -> str | None:
    """The safetensors name of a torch dtype; None where there is none. Does not import torch."""
    return _torch_names().get(str(dtype).removeprefix("torch."))


@lru_cache(maxsize=1)
def _torch_names() -> dict[str, str]:
    return {row.torch: row.name for row in DTYPES.values()}
