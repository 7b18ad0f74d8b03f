"""Whatever goes in comes out: dtypes, shapes, strides, row ranges, and any damage is noticed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors import deserialize

from durastore.codec import EncodedSample, SampleContext, decode_tensors, encode_sample, plan_rows, scan_sample
from durastore.codec.dtypes import DTYPES, numpy_dtype, torch_dtype
from durastore.codec.staging import Staging
from durastore.errors import IntegrityError, InvalidInput
from durastore.model import Digest, Run, SampleId

RUN = Run.of({"model": "m"})
QUIET = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

texts = st.text(st.characters(codec="utf-8"), max_size=5)
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 24 bytes, so that small tensors have many."""
    monkeypatch.setattr("durastore.codec.encode.CHUNK_BYTES", 24)


@st.composite
def arrays(draw: st.DrawFn, *, min_dims: int = 0) -> Array:
    """Any dtype and shape, any bits, and any view of it: transposed, stepped, reversed, broadcast, big-endian."""
    name = draw(st.sampled_from(sorted(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=min_dims, max_size=4)))
    size = int(np.prod(shape)) * DTYPES[name].item_bytes
    raw = draw(st.binary(min_size=size, max_size=size))
    bits = np.frombuffer(bytes(b & 1 for b in raw) if name == "BOOL" else raw, np.uint8)
    array: Array = bits.view(numpy_dtype(name)).reshape(shape) if size else np.zeros(shape, numpy_dtype(name))
    how = draw(st.sampled_from(["plain", "transposed", "stepped", "reversed", "broadcast", "big-endian"]))
    if how == "transposed":
        return array.T
    if how == "stepped" and shape:
        return array[:: draw(st.integers(1, 3))]
    if how == "reversed" and shape:
        return array[::-1]
    if how == "broadcast":
        return np.broadcast_to(array, (2, *shape))
    if how == "big-endian" and not DTYPES[name].is_ml_dtype:
        return array.astype(array.dtype.newbyteorder(">"))
    return array


def as_torch(array: Array) -> torch.Tensor:
    """The same values as a torch tensor, with the same strides where torch has such."""
    name = {numpy_dtype(n): n for n in DTYPES}[array.dtype.newbyteorder("<")]
    base = np.array(array.T, dtype=array.dtype.newbyteorder("<"), order="C")
    if not base.size:
        return torch.empty(array.shape, dtype=torch_dtype(name))
    typed = torch.from_numpy(base.reshape(-1).view(np.uint8)).view(torch_dtype(name))
    return typed.reshape(base.shape).permute(tuple(reversed(range(base.ndim))))


def encode(tensors: dict[str, Any], **context: Any) -> EncodedSample:
    known: dict[str, Any] = {"run": RUN, "meta": None, "input_digest": None, "compress": "planes-zstd", **context}
    return encode_sample(SampleId("s/1"), tensors, context=SampleContext(**known))


def whole(sample: EncodedSample) -> bytes:
    return b"".join(sample.chunks())


def read(data: bytes, *, names: list[str] | None = None, rows: slice | None = None, framework: str) -> dict[str, Any]:
    header = scan_sample(data)
    selection = plan_rows(header, names, rows=rows)
    return decode_tensors(
        header, selection, buffers=[data[r.offset : r.offset + r.length] for r in selection], framework=framework
    )


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def little(array: Array) -> bytes:
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


@QUIET
@given(found=st.lists(arrays(), min_size=1, max_size=4))
def test_numpy_tensors_round_trip(found: list[Array]) -> None:
    tensors = {f"t{i}": array for i, array in enumerate(found)}
    data = whole(encode(tensors, compress="none"))  # which a plain tool reads as they are
    back = read(data, framework="numpy")
    opened = dict(deserialize(data))  # type: ignore[no-untyped-call]  # safetensors ships no types for it
    for name, array in tensors.items():
        assert back[name].shape == array.shape
        assert back[name].dtype == array.dtype.newbyteorder("<")
        assert back[name].tobytes() == little(array) == bytes(opened[name]["data"])
        assert tuple(opened[name]["shape"]) == array.shape


@QUIET
@given(array=arrays())
def test_torch_tensors_round_trip_and_agree_with_numpy(array: Array) -> None:
    tensor = as_torch(array)
    data = whole(encode({"x": tensor}))
    assert data == whole(encode({"x": array}))
    back = read(data, framework="torch")["x"]
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert as_bytes(back) == little(array)


@st.composite
def strided(draw: st.DrawFn) -> tuple[torch.Tensor, bytes]:
    """A torch tensor of any strides over a small storage (steps of any size through one element or none, repeats,
    overlaps), and its elements in order, found without torch.
    """
    name = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    strides = [draw(st.integers(0, 5)) for _ in shape]
    offset = draw(st.integers(0, 3))
    reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if all(shape) else -1
    item = DTYPES[name].item_bytes
    size = (offset + reach + 1) * item
    raw = draw(st.binary(min_size=size, max_size=size))
    base = np.frombuffer(bytes(b & 1 for b in raw) if name == "BOOL" else raw, np.uint8).copy()
    flat = torch.from_numpy(base).view(torch_dtype(name)) if size else torch.empty(0, dtype=torch_dtype(name))
    tensor = flat.as_strided(shape, strides, offset)
    places = np.asarray(offset + sum(i * s for i, s in zip(np.indices(shape), strides, strict=True)), np.int64)
    return tensor, b"".join(base[at * item : (at + 1) * item].tobytes() for at in places.reshape(-1))


@QUIET
@given(case=strided())
def test_torch_tensors_of_any_strides_round_trip(case: tuple[torch.Tensor, bytes]) -> None:
    tensor, elements = case
    staged = Staging(cuda=None, size_bytes=1 << 16).begin({"x": tensor})  # as an extraction hands it on
    assert staged is not None
    for given_tensor in (tensor, staged.wait()["x"]):
        back = read(whole(encode({"x": given_tensor})), framework="torch")["x"]
        assert back.dtype == tensor.dtype
        assert back.shape == tensor.shape
        assert as_bytes(back) == elements


@QUIET
@given(array=arrays(min_dims=1), data=st.data())
def test_row_ranges_equal_numpy_slicing(array: Array, data: st.DataObject) -> None:
    assume(array.ndim > 0)
    bound = st.none() | st.integers(-8, 8)
    rows = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 1])))
    stored = whole(encode({"x": array, "y": np.arange(3)}))
    expected = array[rows]
    for framework in ("numpy", "torch"):
        back = read(stored, names=["x"], rows=rows, framework=framework)["x"]
        assert tuple(back.shape) == expected.shape
        assert (back.tobytes() if framework == "numpy" else as_bytes(back)) == little(expected)


@QUIET
@given(rows=st.slices(6))
def test_other_steps_are_refused_never_answered_wrongly(rows: slice) -> None:
    array = np.arange(6)
    stored = whole(encode({"x": array}))
    try:
        back = read(stored, rows=rows, framework="numpy")["x"]
    except InvalidInput:
        assert rows.indices(6)[2] != 1
    else:
        assert back.tolist() == array[rows].tolist()


@QUIET
@given(array=arrays(min_dims=1), rows=st.slices(5))
def test_a_row_read_takes_no_chunk_it_does_not_need(array: Array, rows: slice) -> None:
    assume(rows.step in (None, 1) and array.ndim > 0)
    header = scan_sample(whole(encode({"x": array})))
    spec = header.tensors[0]
    wanted = set(range(array.shape[0])[rows]) if array.size else set()
    for chunk in plan_rows(header, None, rows=rows):
        assert wanted & set(range(chunk.chunk * spec.rows_per_chunk, (chunk.chunk + 1) * spec.rows_per_chunk))


@QUIET
@given(array=arrays(), at=st.integers(0), change=st.integers(1, 255), meta=st.dictionaries(texts, st.integers()))
def test_any_changed_byte_is_detected(array: Array, at: int, change: int, meta: dict[str, int]) -> None:
    damaged = bytearray(whole(encode({"x": array, "id": np.uint8(1)}, meta=meta, input_digest=Digest.of(b"x"))))
    damaged[at % len(damaged)] ^= change
    with pytest.raises(IntegrityError):
        scan_sample(damaged)


@QUIET
@given(array=arrays(min_dims=1), at=st.integers(0), change=st.integers(1, 255))
def test_no_damaged_chunk_is_handed_out(array: Array, at: int, change: int) -> None:
    assume(array.size > 0)
    stored = whole(encode({"x": array}))
    header = scan_sample(stored)
    selection = plan_rows(header, None, rows=None)
    damaged = bytearray(stored)
    damaged[header.header_length + at % (len(stored) - header.header_length)] ^= change
    with pytest.raises(IntegrityError, match="does not match its digest"):
        decode_tensors(header, selection, buffers=[damaged[r.offset : r.offset + r.length] for r in selection])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@QUIET
@given(meta=st.dictionaries(texts, json_values, max_size=4))
def test_meta_comes_back_equal(meta: dict[str, Any]) -> None:
    sample = encode({"x": np.zeros(1)}, meta=meta)
    header = scan_sample(whole(sample))
    assert header.meta == sample.meta
    assert json.loads(header.meta) == meta
