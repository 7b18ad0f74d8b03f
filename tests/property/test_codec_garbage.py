"""No bytes make a parser raise anything but IntegrityError or FormatUnsupported."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from durastore.codec import SampleContext, encode_sample, header_size, parse_header, plan_rows, scan_sample
from durastore.codec.render import seal_header
from durastore.errors import FormatUnsupported, IntegrityError
from durastore.formats.marker import Marker
from durastore.formats.pack import iter_pack, member_header, member_padding, run_member
from durastore.formats.segment import SegmentContent, parse_segment, render_segment
from durastore.model import Digest, ManifestRow, ObjectFacts, ObjectKey, Run, SampleId, Tombstone, WriterId

RUN = Run.of({"model": "m"})
KEY = ObjectKey("packs/0123456789abcdef/000000000001-0011223344556677.tar")
ENCODED = encode_sample(
    SampleId("a/b"),
    {"h": np.arange(12, dtype=np.float32).reshape(6, 2), "z": np.zeros((0, 2), np.int8), "s": np.uint8(3)},
    context=SampleContext(run=RUN, meta={"k": 1}, input_digest=Digest.of(b"i"), embed_run_above_bytes=0),
)
SAMPLE = b"".join(ENCODED.chunks())
PACK = run_member(RUN) + b"".join(
    member_header(SampleId(name), len(SAMPLE)) + SAMPLE + member_padding(len(SAMPLE)) for name in ("a", "b" * 150)
)
SEGMENT = render_segment(
    SegmentContent(
        rows=tuple(
            ManifestRow(
                entry=ENCODED.entry(offset=512 * i, time_ns=i),
                object=ObjectFacts(
                    key=KEY,
                    size_bytes=1 << 30,
                    digest=Digest.of(b"o"),
                    crc64nvme="AAAAAAAAAAA=",
                    etag="e",
                    version_id=None,
                    writer=WriterId("0" * 16),
                ),
            )
            for i in range(3)
        ),
        tombstones=(Tombstone(sample_id=SampleId("t"), key=KEY, offset=0),),
        covers=(KEY,),
        runs=(RUN,),
    )
)
MARKER = Marker(store_id="0" * 32, format=1, run=RUN, created_ns=1).render()
SETTINGS = settings(max_examples=250, deadline=None)


def walk(data: bytes) -> None:
    for member in iter_pack(lambda offset, length: data[offset : offset + length], len(data)):
        assert 0 <= member.offset <= member.offset + member.length <= len(data)


def check(parse: Callable[[bytes], object], data: bytes) -> None:
    """Parse; the two faults a parser may raise pass, anything else fails the test."""
    with suppress(IntegrityError, FormatUnsupported):
        parse(data)


def parse_and_plan(data: bytes) -> None:
    header = parse_header(data, total_length=None)
    for read in plan_rows(header, None, rows=None):
        assert header.header_length <= read.offset < read.offset + read.length <= header.length


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """`good` with a few spots overwritten, cut out, doubled or cut off."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.sampled_from([1, 1, 1, 8, 100, 512]))
        how = draw(st.sampled_from(["write", "write", "cut", "double", "end"]))
        if how == "write":
            new = draw(st.binary(min_size=length, max_size=length))
            data[at : at + length] = new
        elif how == "cut":
            del data[at : at + length]
        elif how == "double":
            data[at:at] = data[at : at + length]
        else:
            del data[at:]
    return bytes(data)


@SETTINGS
@given(data=st.binary(max_size=2000))
@example(data=b"\x00" * 1024)
@example(data=b"\xff" * 600)
def test_random_bytes(data: bytes) -> None:
    check(lambda d: parse_header(d, total_length=len(d)), data)
    check(header_size, data)
    check(scan_sample, data)
    check(walk, data)
    check(parse_segment, data)
    check(parse_segment, b"PAR1" + data + b"PAR1")
    check(Marker.parse, data)


@SETTINGS
@given(data=damaged(SAMPLE))
def test_damaged_samples(data: bytes) -> None:
    check(scan_sample, data)
    check(parse_and_plan, data)


@SETTINGS
@given(text=damaged(SAMPLE[8 : header_size(SAMPLE)]))
def test_damaged_headers_with_a_right_check(text: bytes) -> None:
    check(parse_and_plan, seal_header(_without_check(text.decode(errors="replace"))))


def _without_check(text: str) -> str:
    lead = '{"__metadata__":{"durastore.check":"'
    return lead + "0" * 32 + text[len(lead) + 32 :]


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**62, 2**63, 2**64, -1, 10**30]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.lists(st.integers(-2, 50), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.lists(st.sampled_from([0, 1, 2**40, 2**61, 2**62]), max_size=40),
)


@SETTINGS
@given(data=st.data())
def test_odd_values_in_an_otherwise_sound_header(data: st.DataObject) -> None:
    top: dict[str, Any] = json.loads(SAMPLE[8 : header_size(SAMPLE)])
    facts: dict[str, Any] = json.loads(top["__metadata__"]["durastore.sample"])
    places: list[dict[str, Any]] = [top, facts, facts["tensors"], *facts["tensors"].values(), *top.values()]
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(places))
        place[data.draw(st.sampled_from(sorted(place)))] = data.draw(odd)
    metadata = top.get("__metadata__")
    if isinstance(metadata, dict) and isinstance(metadata.get("durastore.sample"), str):
        top["__metadata__"] = {**metadata, "durastore.check": "0" * 32, "durastore.sample": json.dumps(facts)}
    check(parse_and_plan, seal_header(json.dumps(top, separators=(",", ":"))))


@SETTINGS
@given(data=damaged(PACK))
def test_damaged_packs(data: bytes) -> None:
    check(walk, data)
    check(walk, data[: len(data) // 512 * 512])


@SETTINGS
@given(data=damaged(SEGMENT))
def test_damaged_segments(data: bytes) -> None:
    check(parse_segment, data)


@SETTINGS
@given(data=damaged(MARKER))
def test_damaged_markers(data: bytes) -> None:
    check(Marker.parse, data)
