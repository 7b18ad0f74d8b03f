"""Byte planes: every bit comes back, what does not shrink is kept as it is, and hostile bytes are refused in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash
import zstandard

from durastore.codec import planes
from durastore.codec.decode import decode_tensors, scan_sample
from durastore.codec.dtypes import DTYPES
from durastore.codec.encode import EncodedSample, SampleContext, encode_sample
from durastore.codec.header import SampleHeader, parse_header
from durastore.codec.planes import CODEC, PlanesFault, choose_planes, decode_chunk, encode_chunk
from durastore.codec.selection import plan_rows
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


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("count", [1, 7, 65_535, 65_537])
@pytest.mark.parametrize("is_packed", [True, False])
def test_every_bit_of_every_dtype_comes_back(dtype: str, count: int, is_packed: bool) -> None:
    size = count * DTYPES[dtype].item_bytes
    data = memoryview(np.minimum(RNG.integers(0, 256, size), RNG.integers(0, 40, size)).astype(np.uint8).data)
    stored = memoryview(b"".join(encode_chunk(data, dtype, packed=(is_packed,) * planes.plane_count(dtype))))
    least, greatest = planes.stored_bounds(dtype, raw_bytes=size)
    assert least <= len(stored) <= greatest
    out = np.empty(size, np.uint8)
    decode_chunk(stored, dtype, out=out)
    assert out.tobytes() == bytes(data)


def test_special_values_keep_their_bits() -> None:
    words = np.array([0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x0001, 0x8001, 0x3F80], np.uint16)
    value = np.tile(words, 5000).view(ml_dtypes.bfloat16)
    (found,) = read(encoded({"h": value})).values()
    assert as_bytes(found) == as_bytes(value)


def test_the_exponent_of_hidden_states_is_packed_and_the_mantissa_is_not() -> None:
    data = memoryview(as_bytes(hidden(4096)))
    assert choose_planes(data, "BF16") == (True, False)
    sample = encoded({"h": hidden(4096)})
    assert parsed(sample)[0].tensors[0].codec == CODEC
    assert sample.length < 0.75 * 4096 * 64 * 2


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


@pytest.mark.parametrize("rows", [slice(0, 1), slice(10_000, 30_000), slice(8_190, 8_194), slice(0, 0), None])
def test_any_rows_are_read_from_their_chunks_alone(rows: slice | None) -> None:
    value = hidden(40_000)
    sample = encoded({"h": value})
    header, _ = parsed(sample)
    assert len(header.tensors[0].chunk_sizes) == 5
    assert len(plan_rows(header, None, rows=slice(0, 1))) == 1
    assert as_bytes(read(sample, rows=rows)["h"]) == as_bytes(value[rows or slice(None)])


def test_plain_safetensors_tools_open_the_file() -> None:
    import safetensors.numpy

    tensors = {"h": hidden(4096), "x": np.arange(3)}
    _, data = parsed(encoded(tensors, compress="auto"))
    found = safetensors.numpy.load(data)
    assert found["h"].dtype == np.uint8
    assert np.array_equal(found["x"], tensors["x"])


def test_equal_content_has_one_digest_under_every_codec() -> None:
    tensors = {"h": hidden(4096), "x": np.arange(3)}
    found = [encoded(tensors, compress=how) for how in ("none", "auto", CODEC)]
    assert len({sample.content_digest for sample in found}) == 1
    assert len({sample.header_digest for sample in found}) == 2
    other = encoded({**tensors, "x": np.arange(3) + 1})
    assert other.content_digest != found[0].content_digest
    assert encoded({"h": tensors["h"].view(np.uint16), "x": tensors["x"]}).content_digest != found[0].content_digest


# --- bytes that nothing vouches for ---------------------------------------------------------------------------------


def stored_chunk(count: int = 1000) -> bytes:
    return b"".join(encode_chunk(memoryview(as_bytes(hidden(count, 1))), "BF16", packed=(True, False)))


def entry(length: int, *, is_packed: bool) -> bytes:
    return (length << 1 | is_packed).to_bytes(8, "little")


def refused(stored: bytes, *, match: str, count: int = 1000) -> None:
    with pytest.raises(PlanesFault, match=match):
        decode_chunk(memoryview(stored), "BF16", out=np.empty(2 * count, np.uint8))


def test_lengths_that_cannot_be_are_refused() -> None:
    good = stored_chunk()
    refused(b"", match="no list")
    refused(good[:-1], match="claims")
    refused(good + b"x", match="follow")
    refused(entry(1 << 62, is_packed=False) + good[8:], match="claims")
    refused(good, count=999, match="another size")
    refused(entry(3, is_packed=False) + entry(1000, is_packed=False) + bytes(1003), match="has 3 bytes")


def test_a_frame_that_claims_more_than_its_plane_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    refused(entry(len(bomb), is_packed=True) + entry(1000, is_packed=False) + bomb + bytes(1000), match="another size")
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
    refused(entry(len(silent), is_packed=True) + entry(1000, is_packed=False) + silent + bytes(1000), match="another")


def test_frames_that_are_damaged_or_followed_by_others_are_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(range(250)) * 4)
    for odd, match in ((frame[:-1], "decompressed"), (frame + frame, "decompressed"), (b"\0" * 20, "decompressed")):
        refused(entry(len(odd), is_packed=True) + entry(1000, is_packed=False) + odd + bytes(1000), match=match)


def test_a_fault_of_the_codec_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = encoded({"h": hidden(4096)})
    plain = planes._join

    def wrong(parts: Any, dtype: str, *, out: Any) -> None:
        plain(parts, dtype, out=out)
        out[100] ^= 1

    monkeypatch.setattr(planes, "_join", wrong)
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
