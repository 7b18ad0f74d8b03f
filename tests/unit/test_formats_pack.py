"""Tar packs: standard tools read them, WebDataset's naming rule gives the id, the walker is strict."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durastore.errors import IntegrityError, InvalidInput
from durastore.formats.pack import (
    RUN_MEMBER,
    TRAILER,
    PackMember,
    _header,
    iter_pack,
    member_header,
    member_name,
    member_padding,
    run_member,
)
from durastore.formats.runs import parse_run
from durastore.model import MAX_RUN_BYTES, Digest, Run, SampleId

RUN = Run.of({"model": "m"})
IDS = [
    "plain",
    "a/b.c/d.e.f",
    "100%",
    "%2E/%2E.x",
    "é/ü/" + "x" * 200,
    "n" * 101,
    "__meta__/x",
    "__a__b__/y",
    "__plain__",
    "a/__b__/c",
    ".hidden",
    "space and 'quote'",
    "-dash",
    "HumanEval/12",
]

# How WebDataset splits a member's path into key and extension, and which members it skips.
WDS_SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
WDS_SKIP = re.compile(r"__[^/]*__($|/)")


def pack(ids: list[str], *, bodies: Callable[[str], bytes] = str.encode, trailer: bytes = TRAILER) -> bytes:
    parts = [run_member(RUN)]
    for text in ids:
        body = bodies(text)
        parts += [member_header(SampleId(text), len(body)), body, member_padding(len(body))]
    return b"".join(parts) + trailer


def walk(data: bytes) -> list[PackMember]:
    return list(iter_pack(lambda offset, length: data[offset : offset + length], len(data)))


@pytest.mark.parametrize("trailer", [TRAILER, b"", bytes(512), bytes(10_240)])
def test_walker_and_tarfile_see_the_same(trailer: bytes) -> None:
    data = pack(IDS, trailer=trailer)
    members = walk(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        infos = opened.getmembers()
    assert [(m.name, m.offset, m.length) for m in members] == [(i.name, i.offset_data, i.size) for i in infos]
    assert members[0].name == RUN_MEMBER
    assert parse_run(data[members[0].offset : members[0].offset + members[0].length]) == RUN
    for text, member, info in zip(IDS, members[1:], infos[1:], strict=True):
        assert data[member.offset : member.offset + member.length] == text.encode()
        assert unquote(member.name.removesuffix(".safetensors")) == text
        assert (info.mode, info.mtime, info.uid, info.gid, info.uname, info.isreg()) == (0o600, 0, 0, 0, "", True)


def test_gnu_tar_extracts_a_pack(tmp_path: Path) -> None:
    source = tmp_path / "p.tar"
    source.write_bytes(pack(IDS))
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-xf", source, "-C", out], check=True, timeout=60)
    for text in IDS:
        assert (out / member_name(SampleId(text))).read_bytes() == text.encode()


@pytest.mark.parametrize("text", IDS)
def test_webdataset_takes_every_sample_once_under_its_own_key(text: str) -> None:
    name = member_name(SampleId(text))
    split = WDS_SPLIT.match(name)
    assert split
    assert split[2] == "safetensors"
    assert unquote(split[1]) == text
    assert not WDS_SKIP.match(name)
    assert WDS_SKIP.match(RUN_MEMBER)


def test_names_are_distinct() -> None:
    ids = [*IDS, "__meta__", "%5F_meta__/x", "%255F_meta__/x", "a.b", "a%2Eb", "a%252Eb"]
    assert len({member_name(SampleId(i)) for i in ids}) == len(ids)


def test_huge_member_uses_a_pax_size() -> None:
    header = member_header(SampleId("big"), 9 << 30)
    sizes: list[PackMember] = []

    def read_at(offset: int, length: int) -> bytes:
        return (header[offset : offset + length] + bytes(length))[:length]

    sizes.extend(iter_pack(read_at, len(header) + (9 << 30)))
    assert [(m.name, m.length) for m in sizes] == [("big.safetensors", 9 << 30)]
    with pytest.raises(InvalidInput):
        member_header(SampleId("big"), 1 << 63)


@given(
    st.text(
        st.characters(min_codepoint=0x20, max_codepoint=0x17F, exclude_characters="\x7f"), min_size=1, max_size=130
    ),
    st.one_of(st.integers(0, 1 << 40), st.sampled_from([0, 1, 511, 512, 8**11 - 1, 8**11])),
)
def test_every_header_is_the_one_that_tarfile_writes(name: str, length: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = length, 0o600, 0
    assert _header(name, length) == info.tobuf(tarfile.PAX_FORMAT, encoding="utf-8", errors="strict")


def test_walker_reads_headers_only() -> None:
    data = pack(["a", "b"], bodies=lambda text: bytes(1 << 20))
    seen = 0

    def read_at(offset: int, length: int) -> bytes:
        nonlocal seen
        seen += length
        return data[offset : offset + length]

    assert len(list(iter_pack(read_at, len(data)))) == 3
    assert seen < 8192


def test_every_truncation_is_seen_or_ends_at_a_member() -> None:
    data = pack(["a", "b" * 200])
    ends = {m.offset + m.length + len(member_padding(m.length)) for m in walk(data)}
    for size in range(len(data)):
        if size in (0, *ends) or (size > max(ends) and size % 512 == 0):
            walk(data[:size])
        else:
            with pytest.raises(IntegrityError):
                walk(data[:size])


def test_every_flipped_header_bit_is_seen() -> None:
    data = pack(["a", "b" * 120])
    bodies = {at for m in walk(data) for at in range(m.offset, m.offset + m.length)}
    for at in range(len(data) - len(TRAILER)):
        if at in bodies:
            continue
        damaged = bytearray(data)
        damaged[at] ^= 0x41
        try:
            found = walk(bytes(damaged))
        except IntegrityError:
            continue
        assert [(m.offset, m.length) for m in found] == [(m.offset, m.length) for m in walk(data)], at
        assert [m.name for m in found] != [m.name for m in walk(data)], (
            at
        )  # the name inside a PAX record has no checksum


def block(name: bytes = b"a", *, size: bytes = b"00000000000\0", kind: bytes = b"0", prefix: bytes = b"") -> bytes:
    """A hand-made ustar header with a right checksum."""
    raw = name.ljust(100, b"\0") + b"0000600\0" + b"0000000\0" * 2 + size + b"00000000000\0" + b" " * 8 + kind
    raw = (raw.ljust(257, b"\0") + b"ustar\x0000").ljust(345, b"\0") + prefix.ljust(155, b"\0")
    raw = raw.ljust(512, b"\0")
    return raw[:148] + b"%06o\0 " % sum(raw) + raw[156:]


def pax(body: bytes, *, then: bytes = block()) -> bytes:
    return block(b"pax", size=b"%011o\0" % len(body), kind=b"x") + body + member_padding(len(body)) + then


def test_hand_made_blocks_are_sound() -> None:
    assert [m.name for m in walk(block())] == ["a"]
    assert [m.name for m in walk(block(b"b", prefix=b"a/x"))] == ["a/x/b"]
    assert [m.name for m in walk(pax(b"9 path=z\n"))] == ["z"]


ODD = {
    "symlink": block(kind=b"2"),
    "hard link": block(kind=b"1"),
    "directory": block(kind=b"5"),
    "device": block(kind=b"3"),
    "gnu long name": block(kind=b"L"),
    "sparse": block(kind=b"S"),
    "global pax": block(kind=b"g"),
    "base-256 size": block(size=b"\x80" + bytes(10) + b"\x01"),
    "negative size": block(size=b"-0000000001\0"),
    "size of blanks": block(size=b" " * 12),
    "size past the end": block(size=b"77777777777\0"),
    "absolute name": block(b"/etc/passwd"),
    "parent name": block(b"a/../../b"),
    "empty name": block(b""),
    "name not utf-8": block(b"\xff\xfe"),
    "wrong magic": block().replace(b"ustar\x0000", b"ustar  \0"),
    "wrong checksum": block().replace(b"0000600", b"0000644"),
    "pax without member": block(b"pax", size=b"%011o\0" % 9, kind=b"x") + b"9 path=z\n" + member_padding(9),
    "pax too long": block(b"pax", size=b"%011o\0" % (1 << 20), kind=b"x") + bytes(2 << 20),
    "pax twice": pax(b"9 path=z\n", then=pax(b"9 path=y\n")),
    "pax unknown record": pax(b"11 mtime=1\n"),
    "pax doubled record": pax(b"9 path=z\n9 path=y\n"),
    "pax wrong length": pax(b"8 path=z\n"),
    "pax length past end": pax(b"99 path=z\n"),
    "pax zero length": pax(b"0 path=z\n"),
    "pax no length": pax(b"path=z\n"),
    "pax huge length": pax(b"9" * 40 + b" path=z\n"),
    "pax no equals": pax(b"7 path\n"),
    "pax bad utf-8": pax(b"9 path=\xff\n"),
    "pax nul in path": pax(b"11 path=z\0y\n"),
    "pax negative size": pax(b"11 size=-1\n"),
    "pax size past end": pax(b"12 size=600\n"),
    "pax enormous size": pax(b"29 size=99999999999999999999\n"),
    "pax unclean padding": block(b"pax", size=b"%011o\0" % 9, kind=b"x") + b"9 path=z\n" + b"x" * 503 + block(),
    "unclean padding": block(size=b"00000000001\0") + b"a" * 512,
    "unclean trailer": block() + bytes(512) + b"\0" * 511 + b"x",
    "member after trailer": block() + bytes(512) + block(),
    "long trailer": block() + bytes(20_480),
    "not whole blocks": block() + b"\0",
}


@pytest.mark.parametrize("case", sorted(ODD))
def test_what_no_pack_writer_writes_is_refused(case: str) -> None:
    with pytest.raises(IntegrityError):
        walk(ODD[case])


def test_short_reads_are_faults() -> None:
    data = pack(["a"])
    with pytest.raises(IntegrityError, match="ends at byte"):
        list(iter_pack(lambda offset, length: data[offset : offset + length][:100], len(data)))


def test_run_text_is_kept_byte_for_byte() -> None:
    text = '{"b":1, "a":2}'
    assert parse_run(text) == Run(text=text, digest=Digest.of(text.encode()))
    for bad in (b"", b"[]", b"{", b'{"a":1,"a":2}', b"\xff", "\ud800", b'{"a":"' + b"x" * MAX_RUN_BYTES + b'"}'):
        with pytest.raises(IntegrityError):
            parse_run(bad)
