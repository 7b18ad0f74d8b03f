"""Byte planes: every bit comes back, what does not shrink is kept as it is, and hostile bytes are refused in time."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import xxhash
import zstandard

from durastore.codec import planes
from durastore.codec.columns import columns_of
from durastore.codec.decode import decode_tensors, scan_sample
from durastore.codec.dtypes import DTYPES
from durastore.codec.encode import DENSE, EncodedSample, SampleContext, encode_sample
from durastore.codec.header import SampleHeader, parse_header
from durastore.codec.planes import CODEC, PlanesFault, decode_chunk, encode_chunk
from durastore.codec.selection import plan_rows
from durastore.codec.words import join_words, plane_count
from durastore.errors import IntegrityError
from durastore.model import Run, SampleId

CONTEXT = SampleContext(run=Run.of({"a": 1}), meta=None, input_digest=None, compress=CODEC)
RNG = np.random.default_rng(7)


def hidden(rows: int, columns: int = 64) -> np.ndarray[Any, Any]:
    return RNG.standard_normal((rows, columns)).astype(ml_dtypes.bfloat16)


def encoded(tensors: dict[str, Any], **changes: Any) -> EncodedSample:
    return encode_sample(SampleId("s"), tensors, context=replace(CONTEXT, **changes))


def parsed(sample: EncodedSample) -> tuple[SampleHeader, bytes]:
    data = b"".join(sample.chunks())
    return parse_header(data, total_length=len(data)), data


def read(sample: EncodedSample, *, rows: slice | None = None) -> dict[str, Any]:
    header, data = parsed(sample)
    selection = plan_rows(header, None, rows=rows)
    buffers = [data[part.offset : part.offset + part.length] for part in selection]
    return decode_tensors(header, selection, buffers=buffers, framework="numpy")


def as_bytes(value: Any) -> bytes:
    return np.ascontiguousarray(value).tobytes()


def channels(rows: int, columns: int = 64) -> np.ndarray[Any, Any]:
    """Like hidden states: each channel has a scale of its own, and most lean to one side."""
    scale, lean = np.exp2(RNG.integers(-6, 6, columns)), RNG.choice([-1.0, 0.0, 1.0], columns)
    return np.asarray((RNG.standard_normal((rows, columns)) + lean) * scale).astype(ml_dtypes.bfloat16)


def stored(value: np.ndarray[Any, Any], dtype: str = "BF16", *, columns: int = 0, is_dense: bool = False) -> bytes:
    return b"".join(encode_chunk(memoryview(as_bytes(value)), dtype, columns=columns, is_dense=is_dense))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("count", [1, 7, 56, 65_536, 65_537, 280_000])
@pytest.mark.parametrize("is_dense", [False, True])
def test_every_bit_of_every_dtype_comes_back(dtype: str, count: int, is_dense: bool) -> None:
    size = count * DTYPES[dtype].item_bytes
    data = np.minimum(RNG.integers(0, 256, size), RNG.integers(0, 40, size)).astype(np.uint8)
    least, greatest = planes.stored_bounds(dtype, raw_bytes=size)
    words = size // plane_count(dtype)
    for columns in {0, 1, 7, words // 8} - {n for n in (7, words // 8) if n == 0 or words % n}:
        chunk = stored(data, dtype, columns=columns, is_dense=is_dense)
        assert least <= len(chunk) <= greatest
        out = np.empty(size, np.uint8)
        decode_chunk(memoryview(chunk), dtype, out=out)
        assert out.tobytes() == data.tobytes(), columns


@pytest.mark.parametrize("compress", [CODEC, DENSE])
@pytest.mark.parametrize("shape", [(-1,), (-1, 9), (-1, 3, 3)])
def test_special_values_keep_their_bits(compress: str, shape: tuple[int, ...]) -> None:
    words = np.array([0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x0001, 0x8001, 0x3F80], np.uint16)
    value = np.tile(words, 5000).view(ml_dtypes.bfloat16).reshape(shape)
    (found,) = read(encoded({"h": value}, compress=compress)).values()
    assert as_bytes(found) == as_bytes(value)


def test_the_exponent_of_hidden_states_is_packed_and_the_mantissa_is_not() -> None:
    value = hidden(4096)
    chunk = stored(value, columns=64)
    assert chunk[0] == 0  # all columns are alike
    bits = value.reshape(-1).view(np.uint16)
    lowest = (bits & 0x7F | bits >> 8 & 0x80).astype(np.uint8)
    assert chunk.endswith(b"\0" + lowest.tobytes())
    sample = encoded({"h": value})
    assert parsed(sample)[0].tensors[0].codec == CODEC
    assert sample.length < 0.75 * value.nbytes


def test_channels_of_different_scale_are_told_apart() -> None:
    value = channels(4096)
    chunk = stored(value, columns=64)
    assert chunk[:2] == b"\1\x40"
    assert len(chunk) < 0.93 * len(stored(value))
    sample = encoded({"h": value})
    assert len(chunk) < sample.length < len(chunk) + 2000
    assert as_bytes(read(sample)["h"]) == as_bytes(value)


@pytest.mark.parametrize(
    "shape,dtype,words,columns",
    [
        ((256, 4, 576), "BF16", 256 * 2304, 2304),
        ((1, 256, 2304), "BF16", 256 * 2304, 2304),
        ((16, 4, 576), "F32", 16 * 2304, 2304),
        ((15, 4, 576), "F32", 15 * 2304, 576),
        ((15, 576), "BF16", 15 * 576, 0),
        ((100, 8), "C64", 1600, 16),
        ((4096,), "BF16", 4096, 0),
        ((4096, 1), "BF16", 4096, 0),
        ((), "F32", 1, 0),
        ((256, 64), "I16", 256 * 64, 0),
        ((256, 64), "F8_E4M3", 256 * 64, 0),
    ],
)
def test_columns_follow_from_the_last_dimensions(shape: tuple[int, ...], dtype: str, words: int, columns: int) -> None:
    assert columns_of(shape, dtype, words=words) == columns


def test_the_dense_level_is_smaller_and_comes_back_equal() -> None:
    value = channels(4096)
    plain, dense = encoded({"h": value}), encoded({"h": value}, compress=DENSE)
    assert dense.length < 0.99 * plain.length
    assert dense.content_digest == plain.content_digest
    assert as_bytes(read(dense)["h"]) == as_bytes(value)


def test_what_is_mostly_zero_is_not_taken_apart_by_column() -> None:
    """After a ReLU the zeros of each column would become a value of their own."""
    value = np.maximum(channels(4096).astype(np.float32), 0).astype(ml_dtypes.bfloat16)
    assert len(stored(value, columns=64)) <= len(stored(value))


def test_a_part_that_is_not_like_the_rest_costs_no_more_than_the_elements() -> None:
    """The middle, which is tried, has channels; the rest has exponents without any order."""
    value = RNG.integers(0, 1 << 16, (4096, 64)).astype(np.uint16).view(ml_dtypes.bfloat16)
    value[1900:2200] = channels(300)
    for is_dense in (False, True):
        chunk = stored(value, columns=64, is_dense=is_dense)
        assert len(chunk) <= planes.stored_bounds("BF16", raw_bytes=value.nbytes)[1]
        out = np.empty(value.nbytes, np.uint8)
        decode_chunk(memoryview(chunk), "BF16", out=out)
        assert out.tobytes() == as_bytes(value)


@pytest.mark.parametrize(
    "value",
    [
        RNG.integers(0, 256, 100_000).astype(np.uint8),
        RNG.integers(0, 1 << 16, 50_000).astype(np.uint16).view(np.float16),
        np.empty((0, 5), np.float32),
        np.empty((5, 0), np.float32),
    ],
)
def test_what_does_not_shrink_stays_raw(value: np.ndarray[Any, Any]) -> None:
    sample = encoded({"h": value})
    assert parsed(sample)[0].tensors[0].codec == "raw"
    assert as_bytes(read(sample)["h"]) == as_bytes(value)


def test_auto_leaves_small_tensors_raw() -> None:
    tensors = {"big": hidden(256), "small": hidden(64)}
    header, _ = parsed(encoded(tensors, compress="auto"))
    assert {t.name: t.codec for t in header.tensors} == {"small": "raw", "big": CODEC}
    header, _ = parsed(encoded(tensors))
    assert {t.codec for t in header.tensors} == {CODEC}


def test_compressed_tensors_come_after_the_raw_ones_which_stay_aligned() -> None:
    tensors = {"a": RNG.random(3), "b": hidden(4096), "c": np.float32(1.5), "d": np.arange(3, dtype=np.uint8)}
    header, data = parsed(encoded(tensors, compress="auto"))
    assert [t.name for t in header.tensors] == ["a", "c", "d", "b"]
    assert [at % DTYPES[t.dtype].item_bytes for t, at in zip(header.tensors, header.tensor_offsets, strict=True)][
        :3
    ] == [0] * 3
    assert scan_sample(data).tensors == header.tensors


@pytest.mark.parametrize("compress", [CODEC, DENSE])
@pytest.mark.parametrize("rows", [slice(0, 1), slice(10_000, 30_000), slice(13_330, 13_340), slice(0, 0), None])
def test_any_rows_are_read_from_their_chunks_alone(rows: slice | None, compress: str) -> None:
    value = channels(40_000)
    sample = encoded({"h": value}, compress=compress)
    header, _ = parsed(sample)
    assert header.tensors[0].codec == CODEC
    assert header.tensors[0].rows_per_chunk == 13_334  # as even as it goes
    assert len(header.tensors[0].chunk_sizes) == 3
    assert len(plan_rows(header, None, rows=slice(0, 1))) == 1
    assert as_bytes(read(sample, rows=rows)["h"]) == as_bytes(value[rows or slice(None)])


@pytest.mark.parametrize("compress", ["none", CODEC, DENSE])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_chunks_are_decoded_where_they_belong(compress: str, framework: str) -> None:
    """Of a large tensor there is never a second copy, only the planes of one chunk."""
    value = channels(100_000)
    header, data = parsed(encoded({"h": value}, compress=compress))
    selection = plan_rows(header, None, rows=None)
    assert len(selection) == 7
    buffers = [memoryview(data)[part.offset : part.offset + part.length] for part in selection]
    decode_tensors(header, selection, buffers=buffers, framework=framework)  # imports, and what threads keep
    tracemalloc.start()
    try:
        found = decode_tensors(header, selection, buffers=buffers, framework=framework)["h"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value.nbytes <= peak < value.nbytes + 2 * (2 << 20)
    assert as_bytes(found.view(torch.int16).numpy() if framework == "torch" else found) == as_bytes(value)


def test_threads_do_not_share_what_they_work_in() -> None:
    values = [channels(2000) for _ in range(6)]

    def there_and_back(number: int) -> bool:
        value = values[number % len(values)]
        return as_bytes(read(encoded({"h": value}, compress=(CODEC, DENSE)[number % 2]))["h"]) == as_bytes(value)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(there_and_back, range(48)))


def test_plain_safetensors_tools_open_the_file() -> None:
    import safetensors.numpy

    tensors = {"h": hidden(4096), "x": np.arange(3)}
    _, data = parsed(encoded(tensors, compress="auto"))
    found = safetensors.numpy.load(data)
    assert found["h"].dtype == np.uint8
    assert np.array_equal(found["x"], tensors["x"])


def test_equal_content_has_one_digest_under_every_codec() -> None:
    tensors = {"h": channels(4096), "x": np.arange(3)}
    found = [encoded(tensors, compress=how) for how in ("none", "auto", CODEC, DENSE)]
    assert len({sample.content_digest for sample in found}) == 1
    assert len({sample.header_digest for sample in found}) == 3
    other = encoded({**tensors, "x": np.arange(3) + 1})
    assert other.content_digest != found[0].content_digest
    assert encoded({"h": tensors["h"].view(np.uint16), "x": tensors["x"]}).content_digest != found[0].content_digest


# --- bytes that nothing vouches for ---------------------------------------------------------------------------------


COUNT = 4000
RANDOM = np.random.default_rng(1).integers(0, 1 << 16, COUNT).astype(np.uint16)
CHANNELS = channels(200, 20)


def number(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + number(value >> 7)


def refused(stored: bytes, *, match: str, count: int = COUNT, dtype: str = "BF16") -> None:
    with pytest.raises(PlanesFault, match=match):
        decode_chunk(memoryview(stored), dtype, out=np.empty(2 * count, np.uint8))


def test_lengths_that_cannot_be_are_refused() -> None:
    good = stored(CHANNELS)
    assert good[0] == 0
    assert good[2] < 0x80 < good[1]  # the frame's length takes two bytes
    refused(b"", match="are there")
    refused(good[:-1], match="are there")
    refused(good + b"x", match="follow")
    refused(good[:1] + number(1 << 62) + good[3:], match="shorter")
    refused(good[:1] + number(COUNT) + good[3:], match="shorter")
    refused(good[:1] + number(999) + good[3:], match="decompressed")
    refused(good, count=COUNT - 1, match="another size")
    refused(good, count=COUNT + 1, match="another size")


def test_numbers_are_as_short_as_they_can_be() -> None:
    good = stored(RANDOM)
    assert good[:2] == b"\0\0"
    refused(good[:1] + b"\x80\0" + good[2:], match="longer than")
    refused(good[:1] + b"\x80" * 9 + b"\1" + good[2:], match="longer than")
    refused(good[:1] + b"\x80", match="are there")


def test_forms_that_cannot_be_are_refused() -> None:
    good = stored(RANDOM)
    for form in (4, 5, 6, 8, 16, 128, 255):
        refused(bytes([form]) + good[1:], match="form")
    for form in (2, 3, 7):  # integers have no sign to set apart
        refused(bytes([form]) + good[1:], match="form", dtype="I16")


def test_columns_that_do_not_divide_the_words_are_refused() -> None:
    good = stored(CHANNELS, columns=20)
    assert good[:2] == b"\1" + number(20)
    decode_chunk(memoryview(good), "BF16", out=np.empty(2 * COUNT, np.uint8))
    for columns in (0, 3, COUNT - 1, COUNT, COUNT + 1, 1 << 40):
        refused(b"\1" + number(columns) + good[2:], match="columns")
    refused(b"\1" + number(10) + good[2:], match=".")
    refused(good, match="columns", count=0)


def test_signs_of_another_length_are_refused() -> None:
    good = stored(CHANNELS, columns=20, is_dense=True)
    assert good[0] == 7
    decode_chunk(memoryview(good), "BF16", out=np.empty(2 * COUNT, np.uint8))
    refused(good[:-1], match="are there")
    refused(good + b"\0", match="follow")
    refused(b"\3" + good[1:], match=".")
    refused(b"\1" + good[1:], match="follow")


def test_a_frame_that_claims_more_than_its_plane_is_refused_before_it_is_unpacked() -> None:
    def chunk(frame: bytes) -> bytes:
        return b"\0" + number(len(frame)) + frame + b"\0" + bytes(COUNT)

    bomb = zstandard.ZstdCompressor().compress(bytes(8 << 20))
    assert len(bomb) < COUNT
    refused(chunk(bomb), match="another size")
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(COUNT))
    refused(chunk(silent), match="another size")


def test_frames_that_are_damaged_or_followed_by_others_are_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(range(250)) * 16)
    for odd in (frame[:-1], frame + frame, bytes(20)):
        refused(b"\0" + number(len(odd)) + odd + b"\0" + bytes(COUNT), match="decompressed")


def test_a_fault_of_the_codec_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = encoded({"h": hidden(4096)})
    plain = join_words

    def wrong(parts: Any, dtype: str, *, row: Any, out: Any) -> None:
        plain(parts, dtype, row=row, out=out)
        out[100] ^= 1

    monkeypatch.setattr(planes, "join_words", wrong)
    with pytest.raises(IntegrityError, match="elements that were put"):
        read(sample)


def test_a_chunk_that_matches_its_digest_and_cannot_be_unpacked_is_named() -> None:
    header, _ = parsed(encoded({"h": hidden(4096)}))
    selection = plan_rows(header, None, rows=None)
    odd = bytes(selection[0].length)
    spec = replace(header.tensors[0], chunk_digests=(xxhash.xxh3_128_hexdigest(odd),))
    lied = replace(header, tensors=(spec,))
    with pytest.raises(IntegrityError, match=r"tensor 'h', chunk 0 cannot be unpacked"):
        decode_tensors(lied, plan_rows(lied, None, rows=None), buffers=[odd], framework="numpy")
