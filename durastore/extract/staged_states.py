"""What the engines of model servers share: the shape of a run's states, the size of their files, and files as samples.

Duty: bytes of one file -> the tensors of one row, checked. Must never make fit what does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from durastore.adopt.foreign_formats.containers import parse_foreign
from durastore.adopt.foreign_formats.contents import Array, Unparsed
from durastore.adopt.foreign_formats.layouts import recognise
from durastore.clock import Clock
from durastore.codec.dtypes import DTYPES, has_torch
from durastore.extract.conversion import Mismatch, RunShape, convert
from durastore.extract.engine import Extracted, Holds
from durastore.extract.json_server import AskAgain, Unusable
from durastore.extract.layers import LayerPlan
from durastore.extract.rows import TokenRow
from durastore.extract.server_settings import ServerSettings
from durastore.extract.staged_files import StagedFiles
from durastore.extract.staging_room import Reservation, StagingRoom
from durastore.model import Digest, render_json
from durastore.reclaim.staging import StagingFolder

__all__ = [
    "DTYPE_NAMES",
    "extracted",
    "joined",
    "reserved",
    "served_digest",
    "shape_of",
    "staged_bytes",
    "states_in",
    "torch_view",
]

_PAGE_BYTES = 4096
DTYPE_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def shape_of(plan: LayerPlan, *, dtype: str, hidden_size: int) -> RunShape:
    """What states of this run look like."""
    has_last = plan.indices[-1] == plan.num_layers
    return RunShape(
        layers=plan.indices,
        num_layers=plan.num_layers,
        is_last_normed=plan.is_last_normed if has_last else None,
        dtype=dtype,
        hidden_size=hidden_size,
    )


def served_digest(shape: RunShape, *, model: str) -> Digest:
    """What a server of this staging folder serves. `model`: what tells the model from others."""
    return Digest.of(render_json([model, list(shape.layers), shape.dtype, shape.hidden_size]).encode())


def joined(path: Path, settings: ServerSettings, *, served: Digest, clock: Clock) -> StagedFiles:
    """The staging folder, with its room. `ConfigError` where it is none."""
    folder = StagingFolder.open(path, served=served, clock=clock)
    limit_bytes, share = settings.staging_limit_bytes, settings.staging_share
    return StagedFiles(folder, StagingRoom(folder.free_bytes, limit_bytes=limit_bytes, share=share), clock=clock)


def staged_bytes(shape: RunShape, *, tokens: int) -> int:
    """Size of the file that a server writes for so many tokens, rounded up to pages."""
    item = DTYPES[DTYPE_NAMES[shape.dtype or "float32"]].item_bytes
    size = _PAGE_BYTES + tokens * (8 + len(shape.layers) * (shape.hidden_size or 0) * item)
    return -(-size // _PAGE_BYTES) * _PAGE_BYTES


def reserved(room: StagingRoom, size_bytes: int) -> Reservation | None:
    """Room for a file, or None at the moment. `Unusable` if it never fits."""
    if not room.fits_ever(size_bytes):
        raise Unusable(
            f"its file of {size_bytes} bytes does not fit into the staging folder ({room.limit_bytes} bytes)"
        )
    return room.reserve(size_bytes)


def states_in(data: bytes, row: TokenRow, *, shape: RunShape, path: str) -> dict[str, Any]:
    """The tensors of a sample in the bytes of a file. `AskAgain` where it is not whole, or not this row's."""
    try:
        sample = recognise(parse_foreign(data, path=path), path=path)
        if sample.tokens is None:
            raise AskAgain("its file does not say which tokens it is of")
        if len(sample.tokens) != len(row.input_ids):  # padding is no concern of a server's
            raise AskAgain(f"its file has {len(sample.tokens)} tokens, and the sample {len(row.input_ids)}")
        converted = convert(sample, row, shape=shape)
    except (Unparsed, Mismatch) as exc:
        raise AskAgain(f"its file {exc}" if isinstance(exc, Unparsed) else f"its file: {exc}") from exc
    return dict(converted.tensors)


def torch_view(array: Array) -> Any:
    """The same memory as a torch tensor, where torch is there."""
    if not has_torch():
        return array
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def extracted(tensors: dict[str, Any], settle: Callable[[Holds | None], None], **meta: Any) -> Extracted:
    """A sample that was checked already, whose staging files go when it is settled."""
    states = tensors["hidden_states"]
    held_bytes = sum(int(tensor.nbytes) for tensor in tensors.values())
    return Extracted(
        tensors={**tensors, "hidden_states": torch_view(states)}, held_bytes=held_bytes, settle=settle, meta=meta
    )
