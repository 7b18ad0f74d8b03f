"""The strict header parser: what a hostile or damaged header may claim, and that it is refused as IntegrityError."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from durastore.codec import SampleContext, encode_sample, header_size, parse_header, scan_sample
from durastore.codec.header import MAX_HEADER_BYTES
from durastore.codec.render import seal_header
from durastore.errors import DurastoreError, FormatUnsupported, IntegrityError, InvalidInput
from durastore.model import Digest, Run, SampleId

RUN = Run.of({"model": "m"})


def sample_bytes() -> bytes:
    sample = encode_sample(
        SampleId("a/b"),
        {
            "h": np.arange(12, dtype=np.float32).reshape(6, 2),
            "ids": np.arange(3),
            "s": np.uint8(7),
            "z": np.zeros((0, 2), np.int8),
        },
        context=SampleContext(run=RUN, meta={"k": [1, "é"]}, input_digest=Digest.of(b"i"), embed_run_above_bytes=0),
    )
    return b"".join(sample.chunks())


DATA = sample_bytes()
TOP: dict[str, Any] = json.loads(DATA[8 : header_size(DATA)])
FACTS: dict[str, Any] = json.loads(TOP["__metadata__"]["durastore.sample"])


def resealed(top: dict[str, Any], facts: dict[str, Any] | str) -> bytes:
    """A header with a right length, padding and check around any content, so that only the content can be refused."""
    metadata = {**top["__metadata__"], "durastore.check": "0" * 32}
    if isinstance(facts, str) or json.dumps(facts) != json.dumps(FACTS):  # 6.0 == 6 in Python
        metadata["durastore.sample"] = facts if isinstance(facts, str) else json.dumps(facts)
    return seal_header(json.dumps({**top, "__metadata__": metadata}, separators=(",", ":")))


def edited(edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    top, facts = copy.deepcopy(TOP), copy.deepcopy(FACTS)
    edit(top, facts)
    return resealed(top, facts)


def test_resealing_alone_changes_nothing_that_is_parsed() -> None:
    header = parse_header(edited(lambda top, facts: None), total_length=None)
    assert header.sample_id == SampleId("a/b")
    assert header.run_text == RUN.text
    assert [t.name for t in header.tensors] == ["ids", "h", "s", "z"]


def test_unknown_fields_are_ignored() -> None:
    def edit(top: dict[str, Any], facts: dict[str, Any]) -> None:
        top["__metadata__"]["another.tool"] = "x"
        facts["later"] = {"minor": [1]}
        facts["tensors"]["h"]["scale"] = 2

    assert parse_header(edited(edit), total_length=None).meta == '{"k":[1,"é"]}'


def set_at(path: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    def edit(top: dict[str, Any], facts: dict[str, Any]) -> None:
        *folders, last = path.split("/")
        place: Any = {"top": top, "facts": facts}
        for folder in folders:
            place = place[folder]
        place[last] = value

    return edit


DIGEST = "0" * 32
ODD = [
    ("facts/id", ""),
    ("facts/id", "a//b"),
    ("facts/id", 3),
    ("facts/id", "\ud800"),
    ("facts/id", None),
    ("facts/meta", []),
    ("facts/meta", "text"),
    ("facts/meta", {"a": "\ud800"}),
    ("facts/meta", None),
    ("facts/run", "0" * 31),
    ("facts/run", "G" * 32),
    ("facts/run", DIGEST),
    ("facts/run", None),
    ("facts/input", 3),
    ("facts/input", "abc"),
    ("facts/provenance", "guessed"),
    ("facts/provenance", 1),
    ("facts/tensors", []),
    ("facts/tensors", {}),
    ("facts/tensors/h", []),
    ("facts/tensors/extra", FACTS["tensors"]["h"]),
    ("facts/tensors/h/codec", None),
    ("facts/tensors/h/dtype", "F33"),
    ("facts/tensors/h/dtype", "I32"),
    ("facts/tensors/h/dtype", []),
    ("facts/tensors/h/shape", [6, 3]),
    ("facts/tensors/h/shape", [6.0, 2]),
    ("facts/tensors/h/shape", [True, 2]),
    ("facts/tensors/h/shape", [-6, -2]),
    ("facts/tensors/h/shape", [2**63, 2]),
    ("facts/tensors/h/shape", [1] * 33),
    ("facts/tensors/h/shape", "62"),
    ("facts/tensors/h/shape", {"0": 6}),
    ("facts/tensors/h/shape", [2**61, 2**61, 0, 2]),
    ("facts/tensors/h/rows_per_chunk", 0),
    ("facts/tensors/h/rows_per_chunk", 5),
    ("facts/tensors/h/rows_per_chunk", -1),
    ("facts/tensors/h/rows_per_chunk", 1.0),
    ("facts/tensors/h/rows_per_chunk", None),
    ("facts/tensors/h/rows_per_chunk", 2**70),
    ("facts/tensors/h/sizes", [47]),
    ("facts/tensors/h/sizes", [24, 24]),
    ("facts/tensors/h/sizes", []),
    ("facts/tensors/h/sizes", [48.0]),
    ("facts/tensors/h/sizes", [-48]),
    ("facts/tensors/h/sizes", None),
    ("facts/tensors/z/sizes", [0]),
    ("facts/tensors/h/digests", ""),
    ("facts/tensors/h/digests", "0" * 33),
    ("facts/tensors/h/digests", "Z" * 32),
    ("facts/tensors/h/digests", 0),
    ("facts/tensors/z/digests", DIGEST),
    ("top/h/data_offsets", [0, 48]),
    ("top/h/data_offsets", [24, 71]),
    ("top/h/data_offsets", [24.0, 72]),
    ("top/h/data_offsets", [72, 24]),
    ("top/h/data_offsets", [32, 80]),
    ("top/h/data_offsets", [24]),
    ("top/h/data_offsets", None),
    ("top/h/data_offsets", [-24, 72]),
    ("top/h/dtype", "F16"),
    ("top/h/shape", [2, 6]),
    ("top/h/shape", [6, 2.0]),
    ("top/h/extra", 1),
    ("top/h", []),
    ("top/new", {}),
    ("top/__metadata__/durastore.run", "{}"),
    ("top/__metadata__/durastore.run", 5),
    ("top/__metadata__/durastore.run", "\ud800"),
    ("top/__metadata__/durastore.format", "x"),
    ("top/__metadata__/durastore.format", 1),
    ("top/__metadata__/durastore.format", ""),
    ("top/__metadata__/durastore.sample", "[]"),
    ("top/__metadata__/durastore.sample", "{"),
    ("top/__metadata__/durastore.sample", 1),
]


@pytest.mark.parametrize("path, value", ODD, ids=[f"{i}-{path}" for i, (path, _) in enumerate(ODD)])
def test_odd_content_is_refused(path: str, value: Any) -> None:
    with pytest.raises(IntegrityError):
        parse_header(edited(set_at(path, value)), total_length=None)


def test_out_of_order_entries_are_refused() -> None:
    def swap(top: dict[str, Any], facts: dict[str, Any]) -> None:
        top["ids"] = top.pop("ids")

    with pytest.raises(IntegrityError, match="gap"):
        parse_header(edited(swap), total_length=None)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257, "\ud800"])
def test_bad_tensor_names_are_refused(name: str) -> None:
    def rename(top: dict[str, Any], facts: dict[str, Any]) -> None:
        top[name] = top.pop("z")
        facts["tensors"][name] = facts["tensors"].pop("z")

    with pytest.raises(IntegrityError, match=r"tensor name|not valid JSON"):
        parse_header(edited(rename), total_length=None)


@pytest.mark.parametrize(
    "path, value",
    [
        ("top/__metadata__/durastore.format", "2"),
        ("top/__metadata__/durastore.format", "1.1"),
        ("facts/tensors/h/codec", "planes-zstd-2"),
    ],
)
def test_what_a_newer_version_wrote_is_refused_as_such(path: str, value: str) -> None:
    with pytest.raises(FormatUnsupported):
        parse_header(edited(set_at(path, value)), total_length=None)


def test_newer_major_is_told_even_without_this_versions_check() -> None:
    text = b'{"__metadata__":{"durastore.format":"7"}}' + b" " * 7
    with pytest.raises(FormatUnsupported, match="7"):
        parse_header(len(text).to_bytes(8, "little") + text, total_length=None)


@pytest.mark.parametrize("doubled", ['"h":{},"h":{}', '"__metadata__":{}', '"q":{"dtype":"U8","dtype":"U8"}'])
def test_doubled_keys_are_refused(doubled: str) -> None:
    text = json.dumps({"__metadata__": {**TOP["__metadata__"], "durastore.check": "0" * 32}}, separators=(",", ":"))
    with pytest.raises(IntegrityError, match="twice"):
        parse_header(seal_header(f"{text[:-1]},{doubled}}}"), total_length=None)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_refused_without_exhausting_the_stack(opening: str) -> None:
    close = {"[": "]", '{"a":': "}"}[opening]
    for depth in (70, 100_000):
        nested = f"{opening * depth}1{close * depth}"
        with pytest.raises(IntegrityError):
            parse_header(resealed(TOP, f'{{"id":"a","meta":{nested}}}'), total_length=None)
        raw = f'{{"__metadata__":{nested}}}'.encode()
        raw += b" " * (-len(raw) % 8)
        with pytest.raises(IntegrityError):
            parse_header(len(raw).to_bytes(8, "little") + raw, total_length=None)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_that_are_none_are_refused(literal: str) -> None:
    with pytest.raises(IntegrityError, match=r"durastore\.sample"):
        parse_header(resealed(TOP, f'{{"id":"a","meta":{{"x":{literal}}}}}'), total_length=None)


@pytest.mark.parametrize("size", [0, 1, 7, 9, 15, MAX_HEADER_BYTES, 2**62, 2**64 - 1, 2**63])
def test_impossible_header_lengths_are_refused_before_anything_is_read(size: int) -> None:
    with pytest.raises(IntegrityError):
        header_size(size.to_bytes(8, "little"))
    with pytest.raises(IntegrityError):
        parse_header(size.to_bytes(8, "little") + b"{}      ", total_length=None)


def test_largest_header_size_is_16_mib() -> None:
    assert header_size((MAX_HEADER_BYTES - 8).to_bytes(8, "little")) == MAX_HEADER_BYTES


def test_header_over_16_mib_is_refused_when_written() -> None:
    with pytest.raises(InvalidInput, match="16 MiB"):
        seal_header(" " * MAX_HEADER_BYTES)


def test_every_truncation_is_refused() -> None:
    for length in range(len(DATA)):
        with pytest.raises(IntegrityError):
            scan_sample(DATA[:length])


@pytest.mark.parametrize("tail", [b"\0", b"x" * 512])
def test_bytes_after_the_sample_are_refused(tail: bytes) -> None:
    assert parse_header(DATA + tail, total_length=None).length == len(DATA)
    with pytest.raises(IntegrityError, match="describes"):
        scan_sample(DATA + tail)


def test_every_flipped_bit_is_detected() -> None:
    for at in range(len(DATA)):
        for bit in range(8):
            damaged = bytearray(DATA)
            damaged[at] ^= 1 << bit
            with pytest.raises(IntegrityError):
                scan_sample(damaged)


def test_header_without_its_check_is_refused() -> None:
    top = copy.deepcopy(TOP)
    del top["__metadata__"]["durastore.check"]
    raw = json.dumps(top, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with pytest.raises(IntegrityError, match="no check"):
        parse_header(len(raw).to_bytes(8, "little") + raw, total_length=None)


@pytest.mark.parametrize("end", [99_990, 100_000, 100_010])
def test_large_headers_parse(end: int) -> None:
    # case B85
    sample = encode_sample(
        SampleId("a"), {"x": np.zeros(3)}, context=SampleContext(run=RUN, meta={"t": "x" * end}, input_digest=None)
    )
    header = scan_sample(b"".join(sample.chunks()))
    assert len(header.meta) == end + len('{"t":""}')


def test_faults_name_the_sample() -> None:
    damaged = bytearray(DATA)
    damaged[-1] ^= 1
    with pytest.raises(DurastoreError, match=r"sample 'a/b', tensor 's', chunk 0") as caught:
        scan_sample(damaged)
    assert caught.value.facts == {"sample_id": "a/b", "tensor": "s", "chunk": 0}
