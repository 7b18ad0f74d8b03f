"""Which bytes of a sample a read needs.

Duty: turn tensor names and a row range into chunk reads, from the header alone. Pure; must never read bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from durastore.codec.header import SampleHeader, row_bytes, row_count
from durastore.errors import InvalidInput
from durastore.model import TensorSpec

__all__ = ["ChunkRead", "Selection", "TensorRows", "plan_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRead:
    """One stored chunk to read: `length` bytes at `offset`, counted from the start of the sample."""

    tensor: str
    chunk: int
    """Its number within the tensor."""
    offset: int
    length: int
    digest: str
    """XXH3-128 hex of these bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRows:
    """One wanted tensor and its wanted rows `start..stop`."""

    spec: TensorSpec
    start: int
    stop: int
    chunks: tuple[ChunkRead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Sequence[ChunkRead]):
    """The chunk reads, in order of their bytes; a sequence of `ChunkRead`. Tensors without bytes have none."""

    tensors: tuple[TensorRows, ...]
    reads: tuple[ChunkRead, ...]
    rows: tuple[int, int] | None
    """The row range, where one was asked for and all selected tensors agree on it."""

    @overload
    def __getitem__(self, index: int) -> ChunkRead: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ChunkRead, ...]: ...

    def __getitem__(self, index: int | slice) -> ChunkRead | tuple[ChunkRead, ...]:
        return self.reads[index]

    def __len__(self) -> int:
        return len(self.reads)


def plan_rows(header: SampleHeader, names: Sequence[str] | None, *, rows: slice | None) -> Selection:
    """The chunks that hold rows `rows` (as numpy would slice them) of the tensors `names`; None means all.

    Rows are of the first dimension. Raises `InvalidInput` for an unknown or doubled name, a step other than 1, or
    rows of a 0-dim tensor.
    """
    wanted = _wanted(header, names)
    tensors: list[TensorRows] = []
    for spec, offset in zip(header.tensors, header.tensor_offsets, strict=True):
        if spec.name in wanted:
            start, stop = _row_range(spec, rows)
            tensors.append(
                TensorRows(spec=spec, start=start, stop=stop, chunks=_chunks(spec, offset, start=start, stop=stop))
            )
    ranges = {(t.start, t.stop) for t in tensors}
    return Selection(
        tensors=tuple(tensors),
        reads=tuple(chunk for t in tensors for chunk in t.chunks),
        rows=ranges.pop() if rows is not None and len(ranges) == 1 else None,
    )


def _wanted(header: SampleHeader, names: Sequence[str] | None) -> frozenset[str]:
    known = frozenset(t.name for t in header.tensors)
    if names is None:
        return known
    if isinstance(names, str):
        raise InvalidInput("tensor names are a list, not one string", hint=f"use [{names!r}]")
    wanted = frozenset(names)
    if len(wanted) != len(names):
        raise InvalidInput("a tensor is named twice")
    if not wanted <= known:
        missing = ", ".join(sorted(repr(n) for n in wanted - known))
        raise InvalidInput(
            f"sample {header.sample_id.text!r} has no tensor {missing[:200]}",
            hint=f"it has {', '.join(sorted(known))[:200]}",
        )
    return wanted


def _row_range(spec: TensorSpec, rows: slice | None) -> tuple[int, int]:
    if rows is None:
        return 0, row_count(spec.shape)
    if not spec.shape:
        raise InvalidInput(
            f"tensor {spec.name!r} is 0-dimensional and has no rows", hint="name the tensors you want rows of"
        )
    try:
        start, stop, step = rows.indices(spec.shape[0])
    except (TypeError, ValueError, AttributeError) as exc:
        raise InvalidInput(f"rows is not a slice of whole numbers: {exc}") from exc
    if step != 1:
        raise InvalidInput(f"rows has step {step}", hint="read the range and slice the result")
    return start, max(start, stop)


def _chunks(spec: TensorSpec, offset: int, *, start: int, stop: int) -> tuple[ChunkRead, ...]:
    if start == stop or not row_bytes(spec.dtype, spec.shape):
        return ()
    first, last = start // spec.rows_per_chunk, (stop - 1) // spec.rows_per_chunk
    found = []
    at = offset + sum(spec.chunk_sizes[:first])
    for number in range(first, last + 1):
        size = spec.chunk_sizes[number]
        found.append(
            ChunkRead(tensor=spec.name, chunk=number, offset=at, length=size, digest=spec.chunk_digests[number])
        )
        at += size
    return tuple(found)
