"""Bytes back into tensors, and the full check of a sample's bytes.

Duty: hand out only elements whose chunk matched its digest. Must never hand out, or allocate for, bytes it has not
seen, and never repair.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import xxhash

from durastore.codec.dtypes import has_torch, numpy_dtype, torch_dtype
from durastore.codec.header import BytesLike, SampleHeader, parse_header, row_bytes, row_count
from durastore.codec.planes import PlanesFault, decode_chunk
from durastore.codec.selection import ChunkRead, Selection, TensorRows, plan_rows
from durastore.errors import IntegrityError, InvalidInput
from durastore.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Room", "decode_tensors", "scan_sample"]


class Room(Protocol):
    """Memory in which the tensors of one sample are wanted."""

    def take(self, tensor: str, size_bytes: int) -> Any | None:
        """A torch vector of so many bytes for this tensor, or None: then it gets memory of its own."""
        ...


def decode_tensors(
    header: SampleHeader,
    selection: Selection,
    *,
    buffers: Iterable[BytesLike],
    framework: str | None = None,
    into: Room | None = None,
) -> dict[str, Any]:
    """The selected rows as tensors that own their memory; `buffers` are the selection's chunks in order.

    `framework` is "torch", "numpy" (bf16 and fp8 as ml_dtypes) or None: torch where it is installed. Tensors of torch
    lie in the room of `into` as far as it has some. Raises `IntegrityError` naming sample, tensor and
    chunk where bytes are missing or do not match their digest.
    """
    if framework not in (None, "torch", "numpy"):
        raise InvalidInput(f"framework {framework!r} is neither 'torch' nor 'numpy'")
    use_torch = has_torch() if framework is None else framework == "torch"
    views = _in_order(header, selection, buffers=buffers)
    out: dict[str, Any] = {}
    at = 0
    for wanted in selection.tensors:
        stop = at + len(wanted.chunks)
        out[wanted.spec.name] = _decode(header, wanted, views=views[at:stop], use_torch=use_torch, into=into)
        at = stop
    return out


def _in_order(header: SampleHeader, selection: Selection, *, buffers: Iterable[BytesLike]) -> list[memoryview]:
    views = [memoryview(b).cast("B") for b in buffers]
    if len(views) != len(selection):
        raise IntegrityError(
            f"sample {header.sample_id.text!r}: {len(selection)} chunks were wanted, {len(views)} came"
        )
    for read, view in zip(selection, views, strict=True):
        if len(view) != read.length:
            raise _fault(header, read, what=f"has {read.length} bytes, {len(view)} came")
    return views


def _decode(
    header: SampleHeader, wanted: TensorRows, *, views: list[memoryview], use_torch: bool, into: Room | None
) -> Any:
    import numpy as np

    spec = wanted.spec
    one_row = row_bytes(spec.dtype, spec.shape)
    shape = (wanted.stop - wanted.start, *spec.shape[1:]) if spec.shape else ()
    size = (wanted.stop - wanted.start) * one_row
    given = into.take(spec.name, size) if into is not None and use_torch and size else None
    target = _room(size, spec) if given is None else given.numpy()
    for read, view in zip(wanted.chunks, views, strict=True):
        if xxhash.xxh3_128_hexdigest(view) != read.digest:
            raise _fault(header, read, what="does not match its digest")
        first_row = read.chunk * spec.rows_per_chunk
        end_row = min(first_row + spec.rows_per_chunk, row_count(spec.shape))
        low, high = max(wanted.start, first_row), min(wanted.stop, end_row)
        place = target[(low - wanted.start) * one_row : (high - wanted.start) * one_row]
        if spec.codec == "raw":
            place[:] = np.frombuffer(view, np.uint8)[(low - first_row) * one_row : (high - first_row) * one_row]
            continue
        is_whole = (low, high) == (first_row, end_row)
        chunk = place if is_whole else _room((end_row - first_row) * one_row, spec)
        _unpack(header, read, spec=spec, stored=view, out=chunk)
        if not is_whole:
            place[:] = chunk[(low - first_row) * one_row : (high - first_row) * one_row]
    if not use_torch:
        return target.view(numpy_dtype(spec.dtype)).reshape(shape)
    return _as_torch(target if given is None else given, dtype=spec.dtype, shape=shape)


def _room(size: int, spec: TensorSpec) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory for `size` bytes. The stored chunks are in memory already; compressed ones may claim 32,768 times that."""
    import numpy as np

    try:
        return np.empty(size, np.uint8)
    except MemoryError as exc:
        raise InvalidInput(f"no memory for {size} bytes of tensor {spec.name!r}", hint="read fewer rows") from exc


def _unpack(
    header: SampleHeader,
    read: ChunkRead,
    *,
    spec: TensorSpec,
    stored: memoryview,
    out: np.ndarray[Any, np.dtype[np.uint8]],
) -> None:
    """A compressed chunk's elements, which have a digest of their own: a fault of the codec shows, too."""
    try:
        decode_chunk(stored, spec.dtype, out=out)
    except PlanesFault as exc:
        raise _fault(header, read, what=f"cannot be unpacked: {exc}") from exc
    if xxhash.xxh3_128_hexdigest(out.data) != spec.content_digests[read.chunk]:
        raise _fault(header, read, what="does not unpack to the elements that were put")


def _as_torch(target: Any, *, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    if not len(target):
        return torch.empty(shape, dtype=torch_dtype(dtype))
    flat = target if isinstance(target, torch.Tensor) else torch.from_numpy(target)
    return flat.view(torch_dtype(dtype)).view(shape)


def scan_sample(data: BytesLike) -> SampleHeader:
    """Check one whole sample: header, exact length, every chunk against its digest. Safe to repeat.

    Returns the header; raises `IntegrityError` naming the first chunk that does not match.
    """
    view = memoryview(data).cast("B")
    header = parse_header(view, total_length=len(view))
    for read in plan_rows(header, None, rows=None):
        if xxhash.xxh3_128_hexdigest(view[read.offset : read.offset + read.length]) != read.digest:
            raise _fault(header, read, what="does not match its digest")
    return header


def _fault(header: SampleHeader, read: ChunkRead, *, what: str) -> IntegrityError:
    return IntegrityError(
        f"sample {header.sample_id.text!r}, tensor {read.tensor!r}, chunk {read.chunk} {what}",
        sample_id=header.sample_id.text,
        tensor=read.tensor,
        chunk=read.chunk,
    )
