"""A sample's header as bytes.

Duty: `docs/format/sample.md` in the writing direction. Must never put a time or a random value into a header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from durastore.codec.header import (
    CHECK_AT,
    CHECK_END,
    FORMAT_MAJOR,
    MAX_HEADER_BYTES,
    NO_CHECK,
    header_check,
    stored_as,
)
from durastore.errors import InvalidInput
from durastore.model import MAX_JSON_ITEMS, TensorSpec, json_items, render_json

__all__ = ["render_header", "seal_header"]

_TOP = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def render_header(sample: Mapping[str, Any], tensors: Sequence[TensorSpec], *, run_text: str | None) -> bytes:
    """The header bytes, padded with spaces to a multiple of 8. `sample` holds id, meta, run, input and provenance.

    No timestamp, no random part: equal content gives equal bytes. Raises `InvalidInput` over 16 MiB.
    """
    metadata = {
        "durastore.check": NO_CHECK,
        "durastore.format": FORMAT_MAJOR,
        "durastore.sample": render_json({**sample, "tensors": _facts_of(tensors)}),
    }
    if run_text is not None:
        metadata["durastore.run"] = run_text
    return seal_header(_TOP.encode({"__metadata__": metadata, **_entries_of(tensors)}))


def _facts_of(tensors: Sequence[TensorSpec]) -> dict[str, Any]:
    return {t.name: _described(t) for t in tensors}


def _entries_of(tensors: Sequence[TensorSpec]) -> dict[str, Any]:
    """The safetensors entries, in the order of the bytes."""
    entries: dict[str, Any] = {}
    start = 0
    for t in tensors:
        stop = start + sum(t.chunk_sizes)
        entries[t.name] = {**stored_as(t), "data_offsets": [start, stop]}
        start = stop
    return entries


def _described(tensor: TensorSpec) -> dict[str, Any]:
    facts = {
        "codec": tensor.codec,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "rows_per_chunk": tensor.rows_per_chunk,
        "sizes": list(tensor.chunk_sizes),
        "digests": "".join(tensor.chunk_digests),
    }
    return facts if tensor.codec == "raw" else {**facts, "contents": "".join(tensor.content_digests)}


def seal_header(text: str) -> bytes:
    """Header bytes of JSON that begins with an empty `durastore.check`: length, padding and the check itself.

    The check is the XXH3-128 of all header bytes with its own 32 digits as zeros, so that a sample's bytes alone show
    a flipped bit in its header. Raises `InvalidInput` over 16 MiB, or for what no reader would take.
    """
    raw = text.encode()
    raw += b" " * (-len(raw) % 8)
    if len(raw) + 8 > MAX_HEADER_BYTES:
        raise InvalidInput(f"the sample's header would take {len(raw) + 8} bytes (16 MiB are allowed)")
    if json_items(text) > MAX_JSON_ITEMS:
        raise InvalidInput(f"the sample's header would have more than {MAX_JSON_ITEMS} items")
    header = len(raw).to_bytes(8, "little") + raw
    return header[:CHECK_AT] + header_check(header) + header[CHECK_END:]
