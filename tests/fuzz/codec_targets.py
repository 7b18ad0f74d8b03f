"""Fuzz targets of the sample format and of packs.

Header checks, tar checksums and chunk digests would stop nearly every mutation at the door, so each target also tries
the input with these put right: that is what somebody who writes hostile bytes on purpose would do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import xxhash

from durastore.codec.decode import decode_tensors, scan_sample
from durastore.codec.dtypes import DTYPES
from durastore.codec.header import (
    CHECK_AT,
    CHECK_END,
    SampleHeader,
    header_check,
    header_size,
    parse_header,
    row_bytes,
    row_count,
)
from durastore.codec.planes import PlanesFault, decode_chunk, stored_bounds
from durastore.codec.selection import plan_rows
from durastore.errors import FormatUnsupported, IntegrityError, InvalidInput
from durastore.formats.pack import iter_pack
from durastore.model import Digest
from tests.fuzz.mutate import mutate_bytes, mutate_json, mutate_tree
from tests.fuzz.target import FuzzTarget

__all__ = ["CODEC_TARGETS", "redigested", "resealed", "with_tar_checksums"]

_BLOCK = 512
_DECODED_BYTES = 1 << 20


def resealed(data: bytes) -> bytes:
    """All of `data` after its first 8 bytes as a header whose length and check are right."""
    return _sealed(data[8:])


def _sealed(text: bytes) -> bytes:
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header[:CHECK_AT] + header_check(header) + header[CHECK_END:]


def with_tar_checksums(data: bytes) -> bytes:
    """`data` cut to whole blocks, each that looks like a tar header with its checksum put right."""
    out = bytearray(data[: len(data) // _BLOCK * _BLOCK])
    for at in range(0, len(out), _BLOCK):
        if out[at + 257 : at + 262] == b"ustar":
            out[at + 148 : at + 156] = b" " * 8
            out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + _BLOCK])
    return bytes(out)


def redigested(header: SampleHeader) -> tuple[SampleHeader, bytes]:
    """`header` as that of a sample of arbitrary bytes, and the bytes after the header."""
    payload = np.arange(header.length - header.header_length, dtype=np.uint8).tobytes()
    specs = []
    at = 0
    for spec in header.tensors:
        digests = []
        for size in spec.chunk_sizes:
            digests.append(xxhash.xxh3_128_hexdigest(payload[at : at + size]))
            at += size
        specs.append(replace(spec, chunk_digests=tuple(digests)))
    return replace(header, tensors=tuple(specs)), payload


# --- checks --------------------------------------------------------------------------------------------------------


def check_header(data: bytes) -> None:
    with suppress(IntegrityError):
        assert 16 <= header_size(data) <= 16 << 20
    for form in (data, resealed(data)):
        with suppress(IntegrityError, FormatUnsupported):
            header = parse_header(form, total_length=None)
            assert header.digest == Digest.of(form[: header.header_length])
            at = header.header_length
            for read in plan_rows(header, None, rows=None):
                assert at == read.offset < read.offset + read.length
                at += read.length
            assert at == header.length
            json.loads(header.schema)
            json.loads(header.meta)


def check_decode(data: bytes) -> None:
    with suppress(IntegrityError, FormatUnsupported):
        header = parse_header(resealed(data), total_length=None)
        size = sum(row_count(spec.shape) * row_bytes(spec.dtype, spec.shape) for spec in header.tensors)
        if max(size, header.length - header.header_length) > _DECODED_BYTES:
            return
        header, payload = redigested(header)
        rng = random.Random(header.digest.hex)
        for rows in (None, slice(rng.randrange(-3, 9), rng.randrange(-3, 9)), slice(1, None)):
            with suppress(InvalidInput):  # a 0-dim tensor has no rows
                selection = plan_rows(header, None, rows=rows)
                start = header.header_length
                buffers = [payload[r.offset - start : r.offset - start + r.length] for r in selection]
                found = decode_tensors(header, selection, buffers=buffers, framework="numpy")
                for wanted in selection.tensors:
                    shape = wanted.spec.shape
                    expected = (wanted.stop - wanted.start, *shape[1:]) if shape else ()
                    assert found[wanted.spec.name].shape == expected


def check_planes(data: bytes) -> None:
    """One byte for the dtype, two for the number of elements, then a stored chunk."""
    if len(data) < 3:
        return
    dtype = sorted(DTYPES)[data[0] % len(DTYPES)]
    size = int.from_bytes(data[1:3], "little") * DTYPES[dtype].item_bytes
    out = np.zeros(size, np.uint8)
    with suppress(PlanesFault):
        decode_chunk(memoryview(data)[3:], dtype, out=out)
        least, greatest = stored_bounds(dtype, raw_bytes=size)
        assert least <= len(data) - 3
        assert least <= greatest


def check_scan(data: bytes) -> None:
    with suppress(IntegrityError, FormatUnsupported):
        scan_sample(data)
    with suppress(IntegrityError, FormatUnsupported):
        size = min(header_size(data), len(data))
        scan_sample(_sealed(data[8:size]) + data[size:])


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length]


def check_pack(data: bytes) -> None:
    for form in (data, with_tar_checksums(data)):
        end = 0
        with suppress(IntegrityError):
            for member in iter_pack(_reader(form), len(form)):
                assert end < member.offset <= member.offset + member.length <= len(form)
                assert all(part not in ("", ".", "..") for part in member.name.split("/"))
                end = member.offset + member.length


# --- reshaping -----------------------------------------------------------------------------------------------------


def reshape_header(data: bytes, rng: random.Random) -> bytes | None:
    """Changes the outer JSON of a header, or the description of the sample that it carries as text."""
    if rng.randrange(3) == 0:
        shaped = mutate_json(data[8:], rng)
        return None if shaped is None else data[:8] + shaped
    try:
        top = json.loads(data[8:])
        facts = json.loads(top["__metadata__"]["durastore.sample"])
        for _ in range(1 + rng.randrange(3)):
            facts = mutate_tree(facts, rng)
        top["__metadata__"]["durastore.sample"] = json.dumps(facts)
        if rng.randrange(2) and isinstance(facts, dict):
            _follow(top, facts)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return data[:8] + json.dumps(top, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _follow(top: dict[str, object], facts: dict[str, object]) -> None:
    """Make the safetensors entries say what the changed description says, so that it alone is judged."""
    tensors = facts["tensors"]
    if not isinstance(tensors, dict):
        raise TypeError("no tensors are described any more")
    at = 0
    for name, told in tensors.items():
        stop = at + sum(told["sizes"])
        top[name] = {"dtype": told["dtype"], "shape": told["shape"], "data_offsets": [at, stop]}
        at = stop


def reshape_blocks(data: bytes, rng: random.Random) -> bytes:
    """Moves, doubles or drops whole tar blocks, or changes a field of a header or the body after it."""
    blocks = [data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK)] or [bytes(_BLOCK)]
    for _ in range(1 + rng.randrange(3)):
        heads = [n for n, block in enumerate(blocks) if block[257:262] == b"ustar"] or [0]
        at = rng.choice(heads)
        how = rng.randrange(8)
        if how == 0:
            blocks.insert(at, rng.choice(blocks))
        elif how == 1 and len(blocks) > 1:
            del blocks[rng.choice((at, rng.randrange(len(blocks))))]
        elif how == 2 and at + 1 < len(blocks):
            blocks[at + 1] = _of_block_size(mutate_bytes(blocks[at + 1].rstrip(b"\0"), rng, max_bytes=_BLOCK))
        elif how == 3:
            start = min(at + 1, len(blocks) - 1)
            blocks[start] = _of_block_size(b"".join(rng.choice(_PAX) for _ in range(1 + rng.randrange(3))))
        else:
            start, values = rng.choice(_TAR_FIELDS)
            value = rng.choice(values)
            blocks[at] = blocks[at][:start] + value + blocks[at][start + len(value) :]
    return b"".join(blocks)


def _of_block_size(data: bytes) -> bytes:
    return data[:_BLOCK].ljust(_BLOCK, b"\0")


_PAX = (
    b"11 path=ab\n",
    b"13 path=../a\n",
    b"8 path=\n",
    b"10 size=9\n",
    b"12 size=-99\n",
    b"28 size=9223372036854775807\n",
    b"11 path=a\0\n",
    b"11 path=\xff\xff\n",
    b"99999 path=a\n",
    b"0 path=a\n",
    b"18 linkpath=/etc/a\n",
    b"\n",
    b"12 path=/etc\n",
    b"28 size=00000000000000000001\n",
    b"11 size=1.5\n",
    b"15 size=\xd9\xa1\xd9\xa1\n",
)
_TAR_FIELDS = (
    (0, (b"../x\0", b"/etc\0", b"a//b\0", b"\0", b"\xff\xfe\0", b"n" * 100, b".\0")),
    (
        124,
        (
            b"77777777777\0",
            b"00000000000\0",
            b"00000000001\0",
            b"-0000000001\0",
            b"\x80" + b"\xff" * 11,
            b"9",
            b" ",
            b"\0",
        ),
    ),
    (156, (b"x", b"0", b"\0", b"1", b"2", b"5", b"g", b"L", b"S")),
    (257, (b"ustar  \0", b"ustar\x0000", b"USTAR\0")),
    (345, (b"..\0", b"a/b\0", b"/\0", b"p" * 155, b"\xff\0")),
)


CODEC_TARGETS = (
    FuzzTarget(name="sample_header", check=check_header, reshape=reshape_header),
    FuzzTarget(name="sample_decode", check=check_decode, reshape=reshape_header),
    FuzzTarget(name="planes_chunk", check=check_planes, reshape=lambda data, rng: None),
    FuzzTarget(name="sample_scan", check=check_scan, reshape=lambda data, rng: None),
    FuzzTarget(name="pack_walk", check=check_pack, max_bytes=16_384, reshape=reshape_blocks),
)
