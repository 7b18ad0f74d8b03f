"""Tensors of a batch as one tensor.

Duty: what `torch.stack` gives, without a copy where the tensors lie side by side already, as those of a batch do that a
loader's worker has read. Must never change a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["stacked"]


def stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One tensor of shape [batch, ...] of tensors of one shape and dtype; raises as `torch.stack` where they are not.

    For a `collate_fn`: `durastore.stacked([sample.tensors["hidden_states"] for sample in samples])`. Where no copy was
    needed, the result and the tensors given are the same memory.
    """
    from torch.utils.data import default_collate, get_worker_info

    if _are_neighbours(tensors):
        first = tensors[0]
        strides = (first.numel(), *first.stride())
        return first.as_strided((len(tensors), *first.shape), strides, first.storage_offset())
    if get_worker_info() is not None and tensors:
        whole: torch.Tensor = default_collate(list(tensors))  # into shared memory at once
        return whole
    import torch

    return torch.stack(list(tensors))


def _are_neighbours(tensors: Sequence[torch.Tensor]) -> bool:
    if not tensors:
        return False
    first = tensors[0]
    if not first.is_contiguous() or not first.numel():
        return False
    # what a tensor says beside its bytes is lost where another tensor is made of them
    if any(one.requires_grad or one.is_conj() or one.is_neg() for one in tensors):
        return False
    storage, begin, size = first.untyped_storage().data_ptr(), first.storage_offset(), first.numel()
    return all(
        one.dtype == first.dtype
        and one.shape == first.shape
        and one.device == first.device
        and one.is_contiguous()
        and one.untyped_storage().data_ptr() == storage
        and one.storage_offset() == begin + number * size
        for number, one in enumerate(tensors)
    )
