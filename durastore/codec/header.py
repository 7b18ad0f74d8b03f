"""The header of a sample's bytes: what it says, and parsing it from bytes that nothing vouches for.

Duty: `docs/format/sample.md` as code. Every fault found while parsing is `IntegrityError` (`FormatUnsupported` for a
newer major), whatever the bytes are. Must never touch tensor bytes and never believe a length before checking it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from durastore.codec import planes
from durastore.codec.dtypes import DTYPES
from durastore.errors import FormatUnsupported, IntegrityError, InvalidInput
from durastore.model import Digest, SampleEntry, SampleId, TensorSpec, parse_json, render_json

__all__ = [
    "CHECK_AT",
    "CHECK_END",
    "FORMAT_MAJOR",
    "MAX_HEADER_BYTES",
    "MAX_META_BYTES",
    "MAX_RANK",
    "MAX_TENSORS",
    "NO_CHECK",
    "BytesLike",
    "SampleHeader",
    "header_check",
    "header_size",
    "parse_header",
    "render_schema",
    "row_bytes",
    "row_count",
    "shape_fault",
    "stored_as",
    "tensor_name_fault",
]

BytesLike: TypeAlias = bytes | bytearray | memoryview

FORMAT_MAJOR = "1"
CHECK_AT = 44
"""The first of the 32 check digits: after the length and `{"__metadata__":{"durastore.check":"`."""
CHECK_END = CHECK_AT + 32
NO_CHECK = "0" * 32
MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 4096
MAX_META_BYTES = 1 << 20
MAX_NAME_BYTES = 256
MAX_RANK = 32
PROVENANCES = ("computed", "asserted")

_MAX_BYTES = 1 << 62
_LEAD = b'{"__metadata__":{"durastore.check":"'
_HEX = re.compile(r"[0-9a-f]*")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleHeader:
    """What a sample says of itself. Its digest covers id, meta, run, input digest and every chunk digest."""

    sample_id: SampleId
    meta: str
    """Canonical JSON object."""
    run: Digest
    run_text: str | None
    """The run itself, where the sample carries it."""
    input_digest: Digest | None
    provenance: str
    tensors: tuple[TensorSpec, ...]
    """In the order of their bytes."""
    tensor_offsets: tuple[int, ...]
    """First byte of each tensor, counted from the start of the sample."""
    header_length: int
    """8 + JSON, in bytes."""
    length: int
    """Of the whole sample, in bytes."""
    digest: Digest
    """XXH3-128 of the header bytes."""

    @property
    def schema(self) -> str:
        """JSON list of [name, dtype, shape, codec]."""
        return render_schema([(t.name, t.dtype, t.shape, t.codec) for t in self.tensors])

    def entry(self, *, offset: int, time_ns: int) -> SampleEntry:
        """The record of this sample at `offset` of a pack."""
        return SampleEntry(
            sample_id=self.sample_id,
            offset=offset,
            length=self.length,
            header_length=self.header_length,
            header_digest=self.digest,
            schema=self.schema,
            meta=self.meta,
            run=self.run,
            input_digest=self.input_digest,
            provenance=self.provenance,
            time_ns=time_ns,
        )


def render_schema(tensors: Sequence[tuple[str, str, tuple[int, ...], str]]) -> str:
    """The `schema` of entries and manifest rows: canonical JSON list of [name, dtype, shape, codec]."""
    return render_json([[name, dtype, list(shape), codec] for name, dtype, shape, codec in tensors])


def row_count(shape: Sequence[int]) -> int:
    """Rows of the first dimension; a 0-dim tensor is one row."""
    return shape[0] if shape else 1


def row_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Raw bytes of one row."""
    size = DTYPES[dtype].item_bytes
    for extent in shape[1:]:
        size *= extent
    return size


def stored_as(tensor: TensorSpec) -> dict[str, Any]:
    """Dtype and shape in the safetensors entry: the tensor's own, or a vector of bytes where it is compressed."""
    if tensor.codec == "raw":
        return {"dtype": tensor.dtype, "shape": list(tensor.shape)}
    return {"dtype": "U8", "shape": [sum(tensor.chunk_sizes)]}


def shape_fault(dtype: str, shape: Sequence[int]) -> str | None:
    """Why no array has this shape; None where one can. An empty tensor's other extents count as if it were not."""
    if len(shape) > MAX_RANK:
        return f"has {len(shape)} dimensions"
    size = DTYPES[dtype].item_bytes
    for extent in shape:
        size *= max(1, extent)
    return "has an impossible shape" if size > _MAX_BYTES else None


def tensor_name_fault(name: object) -> str | None:
    """Why this cannot name a tensor; None where it can."""
    if not isinstance(name, str):
        return "is not a string"
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return "has lone surrogates"
    if not 0 < size_bytes <= MAX_NAME_BYTES:
        return f"has {size_bytes} bytes (1 to {MAX_NAME_BYTES} are allowed)"
    if _CONTROL.search(name):
        return "has a control character or line separator"
    return "is reserved" if name == "__metadata__" else None


def header_check(raw: bytes) -> bytes:
    """The 32 digits that belong into header bytes `raw`: their XXH3-128 with these very digits as zeros."""
    return Digest.of(raw[:CHECK_AT] + NO_CHECK.encode() + raw[CHECK_END:]).hex.encode()


def header_size(first_8_bytes: BytesLike) -> int:
    """Bytes of the whole header, these 8 included. `IntegrityError` where no sample can begin like this."""
    prefix = bytes(first_8_bytes[:8])
    if len(prefix) < 8:
        raise IntegrityError(f"a sample has at least 8 bytes, here are {len(prefix)}")
    size = int.from_bytes(prefix, "little") + 8
    if size > MAX_HEADER_BYTES or size < 16 or size % 8:
        raise IntegrityError(f"sample header length {size} is impossible")
    return size


def parse_header(data: BytesLike, *, total_length: int | None) -> SampleHeader:
    """The header at the start of `data`; bytes after it are not looked at.

    With `total_length` (of the whole sample) the tensors must end exactly there. Offsets must be gapless and in
    order, every chunk row-exact. Raises `IntegrityError` on anything odd, `FormatUnsupported` for a newer format.
    """
    size = header_size(data)
    if len(data) < size:
        raise IntegrityError(f"sample header has {size} bytes, here are {len(data)}")
    raw = bytes(data[:size])
    if raw[8:9] != b"{":
        raise IntegrityError("sample header does not start with '{'")
    has_check = raw[8:CHECK_AT] == _LEAD
    if has_check and header_check(raw) != raw[CHECK_AT:CHECK_END]:
        raise IntegrityError("sample header does not match its own check")
    top = _object(parse_json(raw[8:], what="sample header"), "sample header")
    metadata = _object(top.pop("__metadata__", None), "__metadata__")
    facts = _sample_facts(metadata)
    if not has_check:
        raise IntegrityError("sample header has no check")
    try:
        header = _build(top, facts, run_text=metadata.get("durastore.run"), raw=raw)
    except InvalidInput as exc:  # an id, digest or number that checks itself
        raise IntegrityError(f"sample header: {exc.message}") from exc
    if total_length is not None and header.length != total_length:
        raise IntegrityError(
            f"{_shown(header.sample_id)}: header describes {header.length} bytes, here are {total_length}"
        )
    return header


def _sample_facts(metadata: dict[str, Any]) -> dict[str, Any]:
    version = metadata.get("durastore.format")
    if version != FORMAT_MAJOR:
        if isinstance(version, str) and re.fullmatch(r"[1-9][0-9]{0,8}(\.[0-9]{1,9})*", version):
            raise FormatUnsupported(f"sample format {version} is newer than {FORMAT_MAJOR}", hint="upgrade durastore")
        raise IntegrityError("not a durastore sample: durastore.format is missing or odd")
    text = metadata.get("durastore.sample")
    if not isinstance(text, str):
        raise IntegrityError("not a durastore sample: durastore.sample is missing")
    return _object(parse_json(text, what="durastore.sample"), "durastore.sample")


def _build(top: dict[str, Any], facts: dict[str, Any], *, run_text: object, raw: bytes) -> SampleHeader:
    sample_id = SampleId(_field(facts, "id", kind=str))
    meta = render_json(_field(facts, "meta", kind=dict))
    run = Digest(_field(facts, "run", kind=str))
    if run_text is not None and (not isinstance(run_text, str) or _digest_of(run_text) != run):
        raise IntegrityError(f"{_shown(sample_id)}: durastore.run does not match its digest")
    input_hex = facts.get("input")
    if input_hex is not None and not isinstance(input_hex, str):
        raise IntegrityError(f"{_shown(sample_id)}: input is neither null nor a digest")
    provenance = _field(facts, "provenance", kind=str)
    if provenance not in PROVENANCES:
        raise IntegrityError(f"{_shown(sample_id)}: unknown provenance")
    specs, offsets, end = _tensors(top, _field(facts, "tensors", kind=dict), start=len(raw))
    return SampleHeader(
        sample_id=sample_id,
        meta=meta,
        run=run,
        run_text=run_text,
        input_digest=Digest(input_hex) if input_hex is not None else None,
        provenance=provenance,
        tensors=tuple(specs),
        tensor_offsets=tuple(offsets),
        header_length=len(raw),
        length=end,
        digest=Digest.of(raw),
    )


def _digest_of(text: str) -> Digest:
    try:
        return Digest.of(text.encode())
    except UnicodeEncodeError as exc:
        raise IntegrityError("durastore.run has lone surrogates") from exc


def _tensors(top: dict[str, Any], described: dict[str, Any], *, start: int) -> tuple[list[TensorSpec], list[int], int]:
    if not 0 < len(top) <= MAX_TENSORS:
        raise IntegrityError(f"a sample has 1 to {MAX_TENSORS} tensors, here are {len(top)}")
    if top.keys() != described.keys():
        raise IntegrityError("safetensors entries and durastore.sample name different tensors")
    specs: list[TensorSpec] = []
    offsets: list[int] = []
    position = start
    for name, outer in top.items():
        fault = tensor_name_fault(name)
        if fault:
            raise IntegrityError(f"tensor name {ascii(name)[:80]} {fault}")
        spec = _spec(name, _object(described[name], f"tensor {name!r}"))
        stored = sum(spec.chunk_sizes)
        expected = {**stored_as(spec), "data_offsets": [position - start, position - start + stored]}
        if _plain(outer) != expected:
            raise IntegrityError(
                f"tensor {name!r}: its safetensors entry disagrees with durastore.sample or leaves a gap"
            )
        specs.append(spec)
        offsets.append(position)
        position += stored
        if position > _MAX_BYTES:
            raise IntegrityError("the sample claims an impossible length")
    return specs, offsets, position


def _spec(name: str, facts: dict[str, Any]) -> TensorSpec:
    codec, dtype = _field(facts, "codec", kind=str), _field(facts, "dtype", kind=str)
    if codec not in ("raw", planes.CODEC):
        raise FormatUnsupported(f"tensor {name!r} is stored with codec {ascii(codec)[:40]}", hint="upgrade durastore")
    if dtype not in DTYPES:
        raise IntegrityError(f"tensor {name!r} has unknown dtype {ascii(dtype)[:40]}")
    shape = tuple(_sizes(_field(facts, "shape", kind=list), f"shape of {name!r}"))
    fault = shape_fault(dtype, shape)
    if fault:
        raise IntegrityError(f"tensor {name!r} {fault}")
    rows_per_chunk = _sizes([facts.get("rows_per_chunk")], f"rows_per_chunk of {name!r}")[0]
    sizes = tuple(_sizes(_field(facts, "sizes", kind=list), f"sizes of {name!r}"))
    spec = TensorSpec(
        name=name,
        dtype=dtype,
        shape=shape,
        codec=codec,
        rows_per_chunk=rows_per_chunk,
        chunk_sizes=sizes,
        chunk_digests=_digests(facts, "digests", count=len(sizes)),
        content_digests=() if codec == "raw" else _digests(facts, "contents", count=len(sizes)),
    )
    if not _are_row_exact(spec):
        raise IntegrityError(f"tensor {name!r}: chunk sizes do not follow from dtype, shape and rows per chunk")
    return spec


def _digests(facts: dict[str, Any], name: str, *, count: int) -> tuple[str, ...]:
    text = _field(facts, name, kind=str)
    if len(text) != 32 * count or not _HEX.fullmatch(text):
        raise IntegrityError(f"sample header: {name} has not one digest per chunk")
    return tuple(text[i : i + 32] for i in range(0, len(text), 32))


def _are_row_exact(spec: TensorSpec) -> bool:
    sizes, rows_per_chunk = spec.chunk_sizes, spec.rows_per_chunk
    if rows_per_chunk < 1:
        return False
    one_row, rows = row_bytes(spec.dtype, spec.shape), row_count(spec.shape)
    if not one_row or not rows:
        return not sizes
    full, rest = divmod(rows, rows_per_chunk)
    if len(sizes) != full + bool(rest):  # before any product is spread out: `rows` is still only a claim
        return False
    raw_sizes = [rows_per_chunk * one_row] * full + [rest * one_row] * bool(rest)
    if spec.codec == "raw":
        return list(sizes) == raw_sizes
    bounds = {raw: planes.stored_bounds(spec.dtype, raw_bytes=raw) for raw in set(raw_sizes)}
    return all(bounds[raw][0] <= size <= bounds[raw][1] for size, raw in zip(sizes, raw_sizes, strict=True))


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise IntegrityError(f"{what} is not a JSON object")
    return value


def _field(facts: dict[str, Any], name: str, *, kind: type[Any]) -> Any:
    value = facts.get(name)
    if not isinstance(value, kind):
        raise IntegrityError(f"sample header: {name} is missing or not a {kind.__name__}")
    return value


def _sizes(values: Sequence[object], what: str) -> list[int]:
    found = [v for v in values if type(v) is int and 0 <= v <= _MAX_BYTES]
    if len(found) != len(values):
        raise IntegrityError(f"{what} is not made of sizes")
    return found


def _plain(outer: object) -> dict[str, Any]:
    """The entry with numbers that are really integers (JSON's 1.0 and true equal 1 in Python)."""
    entry = _object(outer, "safetensors entry")
    numbers: Iterator[object] = (
        v for k in ("shape", "data_offsets") if isinstance(entry.get(k), list) for v in entry[k]
    )
    return entry if all(type(v) is int for v in numbers) else {}


def _shown(sample_id: SampleId) -> str:
    return f"sample {sample_id.text!r}"
