"""Any chunk comes back bit for bit, whatever it holds and however it was planned; any damage is refused or shows."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durastore.codec.columns import majority, middle, near_middle
from durastore.codec.dtypes import DTYPES, numpy_dtype
from durastore.codec.encode import COMPRESS_CHOICES, SampleContext, encode_sample
from durastore.codec.planes import PlanesFault, decode_chunk, encode_chunk, stored_bounds
from durastore.codec.words import plane_count
from durastore.model import Run, SampleId
from tests.property.test_codec_round_trip import read, whole

QUIET = settings(max_examples=200, deadline=None)
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@st.composite
def elements(draw: st.DrawFn) -> tuple[Bytes, str, int]:
    """The bytes of some rows of elements, their dtype, and the words in a row: any bits, few values, or real ones."""
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    columns, rows = draw(st.integers(1, 40)), draw(st.integers(1, 120))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = rows * columns * (DTYPES[dtype].item_bytes)
    how = draw(st.sampled_from(["any", "few", "same", "channels", "special"]))
    if how == "any":
        return rng.integers(0, 256, size).astype(np.uint8), dtype, columns
    if how == "few":
        return rng.choice(rng.integers(0, 256, 5), size).astype(np.uint8), dtype, columns
    if how == "same":
        return np.full(size, draw(st.integers(0, 255)), np.uint8), dtype, columns
    scale = np.exp2(rng.integers(-20, 20, columns))
    real = ((rng.standard_normal((rows, columns)) + rng.choice([-1, 0, 1], columns)) * scale).astype(np.float32)
    words = real.astype(ml_dtypes.bfloat16).view(np.uint16)
    if how == "special":  # zeros of both signs, infinities, NaNs with a payload, subnormals
        odd = np.array([0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 1, 0x8001], np.uint16)
        at = rng.random(words.shape) < draw(st.sampled_from([0.01, 0.5]))
        words = np.where(at, rng.choice(odd, words.shape), words)
    return np.resize(words.reshape(-1).view(np.uint8), size), dtype, columns


@st.composite
def chunks(draw: st.DrawFn) -> tuple[Bytes, str, bytes]:
    """The bytes of some elements, their dtype, and their stored form."""
    data, dtype, columns = draw(elements())
    words = data.size // plane_count(dtype)
    columns = draw(st.sampled_from([n for n in (0, 1, columns, columns, 2 * columns) if n == 0 or words % n == 0]))
    kept = bytes(data)
    stored = b"".join(encode_chunk(data.data, dtype, columns=columns, is_dense=draw(st.booleans())))
    assert bytes(data) == kept  # the caller's elements are not written into
    return data, dtype, stored


@QUIET
@given(chunk=chunks())
def test_any_chunk_comes_back_bit_for_bit(chunk: tuple[Bytes, str, bytes]) -> None:
    data, dtype, stored = chunk
    least, greatest = stored_bounds(dtype, raw_bytes=data.size)
    assert least <= len(stored) <= greatest
    out = np.full(data.size, 0xA5, np.uint8)
    decode_chunk(memoryview(stored), dtype, out=out)
    assert bytes(out) == bytes(data)


@QUIET
@given(chunk=chunks(), at=st.integers(0), change=st.integers(1, 255), cut=st.none() | st.integers(0))
def test_a_damaged_chunk_is_refused_or_gives_other_elements_of_the_same_size(
    chunk: tuple[Bytes, str, bytes], at: int, change: int, cut: int | None
) -> None:
    data, dtype, whole_chunk = chunk
    stored = bytearray(whole_chunk)
    stored[at % len(stored)] ^= change
    if cut is not None:
        del stored[cut % len(stored) :]
    with suppress(PlanesFault):
        decode_chunk(memoryview(stored), dtype, out=np.empty(data.size, np.uint8))
    with pytest.raises(PlanesFault):  # undamaged, but not all of it
        decode_chunk(memoryview(whole_chunk)[: (cut or 0) % len(whole_chunk)], dtype, out=np.empty(data.size, np.uint8))


@QUIET
@given(case=elements(), compress=st.sampled_from(COMPRESS_CHOICES), batch=st.booleans())
def test_every_level_gives_every_row_back(case: tuple[Bytes, str, int], compress: str, batch: bool) -> None:
    data, dtype, columns = case
    bits = data & 1 if dtype == "BOOL" else data
    value = bits.view(numpy_dtype(dtype)).reshape(-1, columns)
    value = value[None] if batch else value
    context = SampleContext(run=Run.of({}), meta=None, input_digest=None, compress=compress)
    stored = whole(encode_sample(SampleId("s"), {"x": value}, context=context))
    for rows in (None, slice(1, 3), slice(-1, None)):
        found = read(stored, rows=rows, framework="numpy")["x"]
        assert found.tobytes() == value[rows or slice(None)].tobytes()
        assert found.dtype == value.dtype


@QUIET
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 200), columns=st.integers(1, 30), most=st.integers(1, 255))
def test_middle_values_are_between_the_least_and_the_greatest(seed: int, rows: int, columns: int, most: int) -> None:
    data = np.random.default_rng(seed).integers(0, most, (rows, columns)).astype(np.uint8)
    near = near_middle(data)
    assert ((data.min(axis=0) <= near) & (near <= data.max(axis=0))).all()
    exact = np.sort(data, axis=0)[(rows - 1) // 2].astype(int)  # of an even number the lower of the two
    found = middle(data).astype(int)
    assert (abs(found - exact) <= np.maximum(0, abs(near - exact) - 1)).all()
    bits = np.bitwise_and(data, np.uint8(1))
    assert (majority(bits) == (bits.sum(axis=0) * 2 > rows)).all()
