"""A sample into its bytes: one valid safetensors file that describes itself fully.

Duty: order, copy, chunk and digest the tensors. The copy made here is the one `put` keeps: the caller may reuse its
tensors at once. Must never hold on to a caller's tensor and never put a time or a random value into the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import xxhash

from durastore.codec.blocks import BLOCKS
from durastore.codec.columns import columns_of
from durastore.codec.copying import Source, copy_into, inspect_tensor
from durastore.codec.dtypes import DTYPES
from durastore.codec.forms import Form, check_readable, make_form, with_digests
from durastore.codec.header import (
    MAX_META_BYTES,
    MAX_TENSORS,
    PROVENANCES,
    BytesLike,
    render_schema,
    row_bytes,
    row_count,
    tensor_name_fault,
)
from durastore.codec.planes import CODEC, LEAST_SAVING, Piece, encode_chunk
from durastore.codec.render import render_header
from durastore.codec.staging import Staging, TorchCuda, is_on_cuda
from durastore.codec.words import plane_count
from durastore.errors import IntegrityError, InvalidInput
from durastore.model import Digest, Run, SampleEntry, SampleId, TensorSpec, parse_json, render_json

__all__ = ["CHUNK_BYTES", "COMPRESS_CHOICES", "EncodedSample", "SampleContext", "encode_sample"]

CHUNK_BYTES = 2 << 20
DENSE = f"{CODEC}-dense"
COMPRESS_CHOICES = ("auto", "none", CODEC, DENSE)
LEAST_PACKED_BYTES: Mapping[str, int] = MappingProxyType({"auto": 32 << 10, CODEC: 1, DENSE: 1})
MAX_META_DEPTH = 32
_KINDS = 1024
_FORMS: dict[tuple[Any, ...], Form] = {}
"""By names, dtypes, shapes, run and the rest that is the same for all samples of a form. Shared by threads without a
lock: each step is one call of the dict, and what is missing from it is only made once more."""
GPU_STAGING = Staging(cuda=TorchCuda(), size_bytes=64 << 20)
"""Where tensors of a GPU pass through, for all stores of the process; nothing is allocated before the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleContext:
    """What is recorded with a sample besides its tensors."""

    run: Run
    meta: Mapping[str, Any] | None
    input_digest: Digest | None
    provenance: str = "computed"
    embed_run_above_bytes: int = 16 << 20
    """A sample of at least this size is a pack of its own and therefore carries the run's text."""
    compress: str = "none"
    """`none`, `auto` (tensors of 32 KiB and more, where it saves), `planes-zstd` (any size, where it saves), or
    `planes-zstd-dense` (likewise, smaller and slower)."""

    def __post_init__(self) -> None:
        if self.compress not in COMPRESS_CHOICES:
            raise InvalidInput(f"compress is {self.compress!r}", hint=f"use {', '.join(COMPRESS_CHOICES)}")


class EncodedSample(NamedTuple):
    """A sample's bytes, owned, with the facts a pack and the journal record of them."""

    sample_id: SampleId
    header: bytes
    payload: tuple[memoryview, ...]
    """Private bytes, read-only, in order."""
    length: int
    header_digest: Digest
    described: tuple[TensorSpec, ...]
    """Its tensors; of one that was filled into a form without their digests."""
    digests: tuple[str, ...] | None
    """Of one that was filled into a form, all chunk digests of each tensor, joined."""
    schema: str
    meta: str
    run: Digest
    input_digest: Digest | None
    provenance: str

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Its tensors, as its header describes them."""
        return self.described if self.digests is None else with_digests(self.described, self.digests)

    @property
    def content_digest(self) -> Digest:
        """Of what was put, however it is stored: equal for equal samples under every codec."""
        tensors = {
            t.name: [t.dtype, list(t.shape), t.rows_per_chunk, *(t.content_digests or t.chunk_digests)]
            for t in self.specs
        }
        facts = {
            "id": self.sample_id.text,
            "meta": parse_json(self.meta, what="meta"),
            "run": self.run.hex,
            "input": self.input_digest.hex if self.input_digest else None,
            "provenance": self.provenance,
            "tensors": tensors,
        }
        return Digest.of(render_json(facts).encode())

    def chunks(self) -> Iterator[BytesLike]:
        """All bytes of the sample in order."""
        yield self.header
        for piece in self.payload:
            yield memoryview(piece)

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
    kinds = tuple([(s.name, s.dtype, s.shape) for s in sources])
    key = kinds, context.run.digest.hex, context.provenance, context.compress
    form = _FORMS.get(key)
    if form is not None and form.takes(meta) and not _is_any_on_cuda(sources):
        sample = _fill(form, sources, sample_id=sample_id, context=context, meta=meta)
        if sample is not None:
            return sample
    payload, specs = _store(sources, compress=context.compress)
    size = sum(len(piece) for piece in payload)
    facts = {
        "id": sample_id.text,
        "meta": meta_value,
        "run": context.run.digest.hex,
        "input": context.input_digest.hex if context.input_digest else None,
        "provenance": context.provenance,
    }
    header = render_header(facts, specs, run_text=None)
    is_large = len(header) + size >= context.embed_run_above_bytes
    if is_large:
        header = render_header(facts, specs, run_text=context.run.text)
    check_readable(header, sample_id, specs=specs, total_length=len(header) + size)
    schema = render_schema([(t.name, t.dtype, t.shape, t.codec) for t in specs])
    if not is_large and _is_stored_raw(specs, compress=context.compress):
        _keep_form(key, make_form(header, facts, specs=specs, schema=schema))
    return EncodedSample(
        sample_id=sample_id,
        header=header,
        payload=payload,
        length=len(header) + size,
        header_digest=Digest.of(header),
        described=tuple(specs),
        digests=None,
        schema=schema,
        meta=meta,
        run=context.run.digest,
        input_digest=context.input_digest,
        provenance=context.provenance,
    )


def _is_any_on_cuda(sources: list[Source]) -> bool:
    return any(s.is_torch and s.value.is_cuda for s in sources)


def _is_stored_raw(specs: list[TensorSpec], *, compress: str) -> bool:
    """Whether tensors of these sizes are stored as they are whatever is in them."""
    return compress == "none" or max(sum(t.chunk_sizes) for t in specs) < LEAST_PACKED_BYTES[compress]


def _keep_form(key: tuple[Any, ...], form: Form | None) -> None:
    if form is not None:
        if len(_FORMS) >= _KINDS:
            _FORMS.clear()
        _FORMS[key] = form


def _fill(
    form: Form, sources: list[Source], *, sample_id: SampleId, context: SampleContext, meta: str
) -> EncodedSample | None:
    """A sample of a form that is known; None where it is so large that it has to carry its run."""
    # an array and no view of it: views are the garbage collector's business. Every byte of it is written below
    data: Any = BLOCKS.take(form.size_bytes)
    digests = []
    for source, (whole, chunks) in zip(sources, form.cuts, strict=True):
        copy_into(data[whole], source)
        if len(chunks) == 1:
            digests.append(xxhash.xxh3_128_hexdigest(data[whole]))
        else:
            digests.append("".join([xxhash.xxh3_128_hexdigest(data[chunk]) for chunk in chunks]))
    data.flags.writeable = False
    input_digest = context.input_digest
    input_hex = None if input_digest is None else input_digest.hex
    header = form.header(sample_id, meta=meta, input_hex=input_hex, digests=digests)
    length = len(header) + form.size_bytes
    if length >= context.embed_run_above_bytes:
        return None
    return EncodedSample(
        sample_id,
        header,
        (data,),
        length,
        Digest.of(header),
        form.specs,
        tuple(digests),
        form.schema,
        meta,
        context.run.digest,
        input_digest,
        context.provenance,
    )


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


def _store(sources: list[Source], *, compress: str) -> tuple[tuple[memoryview, ...], list[TensorSpec]]:
    """The stored bytes as pieces in order, and what they are. Compressed tensors are bytes, and come last."""
    sizes = [row_count(s.shape) * row_bytes(s.dtype, s.shape) for s in sources]
    buffer = BLOCKS.take(sum(sizes))  # every byte of it is written below
    data = buffer.data.toreadonly()
    stored: list[tuple[TensorSpec, list[memoryview]]] = []
    start = 0
    with _on_host(sources) as copies:
        for source, size in zip(copies, sizes, strict=True):
            copy_into(buffer[start : start + size], source)
            stored.append(_store_one(source, data[start : start + size], compress=compress))
            start += size
    stored.sort(key=lambda each: each[0].codec != "raw")  # what is left raw keeps its order
    return tuple(piece for _, pieces in stored for piece in pieces), [spec for spec, _ in stored]


@contextmanager
def _on_host(sources: list[Source]) -> Iterator[list[Source]]:
    """The sources, those of a GPU in host memory until the block is left. All their copies are begun before the first
    is waited for, and what the caller launched after computing them is not waited for at all.
    """
    on_cuda = {source.name: source.value for source in sources if is_on_cuda(source.value)}
    staged = GPU_STAGING.begin(on_cuda) if on_cuda else None
    if staged is None:
        yield sources
        return
    try:
        copies = staged.wait()
        yield [replace(s, value=copies[s.name]) if s.name in copies else s for s in sources]
    finally:
        staged.release()


def _store_one(source: Source, data: memoryview, *, compress: str) -> tuple[TensorSpec, list[memoryview]]:
    rows, one_row = _rows_per_chunk(source), row_bytes(source.dtype, source.shape)
    cut = [data[at : at + rows * one_row] for at in range(0, len(data), rows * one_row)] if len(data) else []
    chunks = _pack(source, data, cut=cut, compress=compress)
    pieces = [data] if len(data) else []
    if chunks is not None:
        pieces = [memoryview(piece).toreadonly() for chunk in chunks for piece in chunk]
    return _describe(source, cut, rows_per_chunk=rows, chunks=chunks), pieces


def _pack(source: Source, data: memoryview, *, cut: list[memoryview], compress: str) -> list[list[Piece]] | None:
    """The stored pieces of each chunk; None where the tensor is stored as it is."""
    if compress == "none" or len(data) < LEAST_PACKED_BYTES[compress]:
        return None
    middle = len(cut) // 2
    first = _pack_chunk(source, cut[middle], is_dense=compress == DENSE)
    if _size(first) > (1 - LEAST_SAVING) * len(cut[middle]):  # the others are not tried: it will be the same with them
        return None
    chunks = [
        first if number == middle else _pack_chunk(source, chunk, is_dense=compress == DENSE)
        for number, chunk in enumerate(cut)
    ]
    return chunks if sum(map(_size, chunks)) <= (1 - LEAST_SAVING) * len(data) else None


def _pack_chunk(source: Source, chunk: memoryview, *, is_dense: bool) -> list[Piece]:
    columns = columns_of(source.shape, source.dtype, words=len(chunk) // plane_count(source.dtype))
    return encode_chunk(chunk, source.dtype, columns=columns, is_dense=is_dense)


def _size(pieces: list[Piece]) -> int:
    return sum(map(len, pieces))


def _rows_per_chunk(source: Source) -> int:
    """As many as fit into 2 MiB, or fewer, so that the last chunk has about as many as the others."""
    one_row, rows = row_bytes(source.dtype, source.shape), row_count(source.shape)
    if not one_row or not rows:
        return 1
    chunks = -(-rows // max(1, CHUNK_BYTES // one_row))
    return -(-rows // chunks)


def _describe(
    source: Source, cut: list[memoryview], *, rows_per_chunk: int, chunks: list[list[Piece]] | None
) -> TensorSpec:
    """`cut`: the elements of each chunk; `chunks`: its stored pieces, where they are compressed."""
    contents = tuple(map(xxhash.xxh3_128_hexdigest, cut))
    return TensorSpec(
        name=source.name,
        dtype=source.dtype,
        shape=source.shape,
        codec="raw" if chunks is None else CODEC,
        rows_per_chunk=rows_per_chunk,
        chunk_sizes=tuple(map(len, cut)) if chunks is None else tuple(map(_size, chunks)),
        chunk_digests=contents if chunks is None else tuple(map(_digest_of, chunks)),
        content_digests=() if chunks is None else contents,
    )


def _digest_of(pieces: list[Piece]) -> str:
    hasher = xxhash.xxh3_128()
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()
