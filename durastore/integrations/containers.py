"""Named arrays as the bytes of a file: `.safetensors` as every tool writes it, `.ckpt` as `torch.save` does.

Duty: render. The safetensors bytes are those that the safetensors package gives every caller for these tensors, so they
equal the tool's own; a `.ckpt` differs from another writer's in its container, never in a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from safetensors.numpy import save

from durastore.adopt.foreign_formats.contents import Array
from durastore.extras import ensure_extra

__all__ = ["render_file", "torch_tensor"]


def render_file(arrays: Mapping[str, Array], *, suffix: str) -> bytes:
    """The bytes of one file. `ConfigError` where torch is needed and missing."""
    if suffix == ".safetensors":
        data: bytes = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        return data
    return _render_torch(arrays)


def _render_torch(arrays: Mapping[str, Array]) -> bytes:
    ensure_extra("torch", "torch", what="writing .ckpt files")
    import torch

    target = BytesIO()
    torch.save({name: torch_tensor(array) for name, array in arrays.items()}, target)
    return target.getvalue()


def torch_tensor(array: Array) -> Any:
    """The same elements as a torch tensor of its own memory."""
    import torch

    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return torch.from_numpy(flat.copy()).view(getattr(torch, array.dtype.name)).reshape(array.shape)
