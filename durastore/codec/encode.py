"""A sample into its bytes: one valid safetensors file that describes itself fully.

Duty: order, copy, chunk and digest the tensors. The copy made here is the one `put` keeps: the caller may reuse its
tensors at once. Must never hold on to a caller's tensor and never put a time or a random value into the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from durastore.codec.copying import Source, copy_into, inspect_tensor
from durastore.codec.dtypes import DTYPES
from durastore.codec.header import (
    MAX_META_BYTES,
    MAX_TENSORS,
    PROVENANCES,
    BytesLike,
    parse_header,
    render_schema,
    row_bytes,
    row_count,
    tensor_name_fault,
)
from durastore.codec.render import render_header
from durastore.errors import IntegrityError, InvalidInput
from durastore.model import Digest, Run, SampleEntry, SampleId, TensorSpec, parse_json, render_json

__all__ = ["CHUNK_BYTES", "EncodedSample", "SampleContext", "encode_sample"]

CHUNK_BYTES = 1 << 20
MAX_META_DEPTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleContext:
    """What is recorded with a sample besides its tensors."""

    run: Run
    meta: Mapping[str, Any] | None
    input_digest: Digest | None
    provenance: str = "computed"
    embed_run_above_bytes: int = 16 << 20
    """A sample of at least this size is a pack of its own and therefore carries the run's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSample:
    """A sample's bytes, owned, with the facts a pack and the journal record of them."""

    sample_id: SampleId
    header: bytes
    payload: tuple[memoryview, ...]
    """Read-only views of one private copy, in order."""
    length: int
    header_digest: Digest
    schema: str
    meta: str
    run: Digest
    input_digest: Digest | None
    provenance: str

    def chunks(self) -> Iterator[BytesLike]:
        """All bytes of the sample in order."""
        yield self.header
        yield from self.payload

    def entry(self, *, offset: int, time_ns: int) -> SampleEntry:
        """The record of this sample at `offset` of a pack."""
        return SampleEntry(
            sample_id=self.sample_id,
            offset=offset,
            length=self.length,
            header_length=len(self.header),
            header_digest=self.header_digest,
            schema=self.schema,
            meta=self.meta,
            run=self.run,
            input_digest=self.input_digest,
            provenance=self.provenance,
            time_ns=time_ns,
        )


def encode_sample(sample_id: SampleId, tensors: Mapping[str, Any], *, context: SampleContext) -> EncodedSample:
    """Copy `tensors` once and describe them. Equal content gives equal bytes; safe to repeat.

    Takes torch (CPU, CUDA) and numpy tensors of any strides. Raises `InvalidInput` for bad names, meta or counts and
    `UnsupportedTensor`, naming the tensor, for what has no lossless form.
    """
    meta, meta_value = _check_meta(context.meta)
    if context.provenance not in PROVENANCES:
        raise InvalidInput(f"provenance {ascii(context.provenance)[:40]} is not one of {', '.join(PROVENANCES)}")
    sources = _ordered(tensors)
    payload, specs = _copy_and_digest(sources)
    facts = {
        "id": sample_id.text,
        "meta": meta_value,
        "run": context.run.digest.hex,
        "input": context.input_digest.hex if context.input_digest else None,
        "provenance": context.provenance,
    }
    header = render_header(facts, specs, run_text=None)
    if len(header) + len(payload) >= context.embed_run_above_bytes:
        header = render_header(facts, specs, run_text=context.run.text)
    _check_readable(header, sample_id, specs=specs, total_length=len(header) + len(payload))
    return EncodedSample(
        sample_id=sample_id,
        header=header,
        payload=(payload,) if len(payload) else (),
        length=len(header) + len(payload),
        header_digest=Digest.of(header),
        schema=render_schema(specs),
        meta=meta,
        run=context.run.digest,
        input_digest=context.input_digest,
        provenance=context.provenance,
    )


def _check_readable(header: bytes, sample_id: SampleId, *, specs: list[TensorSpec], total_length: int) -> None:
    """What is about to be acknowledged can be decoded: the reader's own parser finds what was put in (case B67)."""
    found = parse_header(header, total_length=total_length)
    if found.sample_id != sample_id or found.tensors != tuple(specs):
        raise IntegrityError(f"sample {sample_id}: its header tells of another sample than was put; nothing was stored")


def _check_meta(meta: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """`meta` as canonical text and as it will come back from it, which must be unchanged."""
    if meta is None:
        return "{}", {}
    if not isinstance(meta, Mapping):
        raise InvalidInput(f"meta is a {type(meta).__name__}, not a mapping")
    text = render_json(dict(meta))
    if len(text.encode()) > MAX_META_BYTES:
        raise InvalidInput(
            f"meta takes {len(text.encode())} bytes (1 MiB is allowed)", hint="store large values as tensors"
        )
    try:
        value: dict[str, Any] = parse_json(text, what="meta", max_depth=MAX_META_DEPTH)
    except IntegrityError as exc:
        raise InvalidInput(f"meta cannot be stored: {exc.message}") from exc
    if not _has_text_keys(meta):  # JSON would turn them into strings, and sort them differently ever after
        raise InvalidInput("meta has a key that is not a string", hint="JSON has string keys only")
    return text, value


def _has_text_keys(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _has_text_keys(v) for k, v in value.items())
    return all(_has_text_keys(v) for v in value) if isinstance(value, (list, tuple)) else True


def _ordered(tensors: Mapping[str, Any]) -> list[Source]:
    """The tensors by element size, largest first, then by name: every tensor starts aligned to its own elements."""
    if not isinstance(tensors, Mapping):
        raise InvalidInput(f"tensors is a {type(tensors).__name__}, not a mapping of names to tensors")
    if not 0 < len(tensors) <= MAX_TENSORS:
        raise InvalidInput(f"a sample has 1 to {MAX_TENSORS} tensors, here are {len(tensors)}")
    sources = []
    for name, value in tensors.items():
        fault = tensor_name_fault(name)
        if fault:
            raise InvalidInput(f"tensor name {ascii(name)[:80]} {fault}")
        sources.append(inspect_tensor(name, value))
    return sorted(sources, key=lambda s: (-DTYPES[s.dtype].item_bytes, s.name))


def _copy_and_digest(sources: list[Source]) -> tuple[memoryview, list[TensorSpec]]:
    import numpy as np

    sizes = [row_count(s.shape) * row_bytes(s.dtype, s.shape) for s in sources]
    buffer = np.empty(sum(sizes), np.uint8)  # every byte of it is written below
    payload = buffer.data.toreadonly()
    specs = []
    start = 0
    for source, size in zip(sources, sizes, strict=True):
        copy_into(buffer[start : start + size], source)
        specs.append(_describe(source, payload[start : start + size]))
        start += size
    return payload, specs


def _describe(source: Source, data: memoryview) -> TensorSpec:
    one_row = row_bytes(source.dtype, source.shape)
    rows_per_chunk = max(1, CHUNK_BYTES // one_row) if one_row else 1
    step = rows_per_chunk * one_row
    chunks = [data[at : at + step] for at in range(0, len(data), step)] if len(data) else []
    return TensorSpec(
        name=source.name,
        dtype=source.dtype,
        shape=source.shape,
        rows_per_chunk=rows_per_chunk,
        chunk_sizes=tuple(len(c) for c in chunks),
        chunk_digests=tuple(xxhash.xxh3_128_hexdigest(c) for c in chunks),
    )
