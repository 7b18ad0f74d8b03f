"""Keys of files that are kept as they were: two layouts, one key a file, an exact inverse, nothing else accepted."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durastore.errors import InvalidInput, InvalidSampleId
from durastore.formats.file_keys import (
    MAX_BESIDE_BYTES,
    FileKeyParts,
    carries_file,
    file_key,
    file_key_pattern,
    first_file_key,
    parse_file_key,
)
from durastore.formats.keys import carries_pack
from durastore.model import Digest, ObjectKey, SampleId

DIGEST = Digest("00112233445566778899aabbccddeeff")
OTHER = Digest("ffeeddccbbaa99887766554433221100")
HEX = DIGEST.short
FOLDER = "0123456789abcdef"


def _key(path: str, prefix: str = "p") -> str:
    return file_key(prefix, SampleId(path), digest=DIGEST).text


def _parsed(text: str, prefix: str = "p") -> FileKeyParts | None:
    return parse_file_key(prefix, ObjectKey(text))


@pytest.mark.parametrize("prefix", ["", "p", "a/b c+(x)"])
def test_the_digest_stands_beside_the_name(prefix: str) -> None:
    lead = f"{prefix}/" if prefix else ""
    assert _key("rows_0-50/data_7.pt", prefix) == f"{lead}files/rows_0-50/{HEX}-data_7.pt"
    assert _key("a/b/c.npy", prefix) == f"{lead}files/a/b/{HEX}-c.npy"
    assert _key("top.npy", prefix) == f"{lead}files/{HEX}-top.npy"
    assert _parsed(f"{lead}files/a/b/{HEX}-c.npy", prefix) == FileKeyParts(short_digest=HEX, path=SampleId("a/b/c.npy"))
    first = first_file_key(prefix, SampleId("a/b/c.npy"), digest=DIGEST)
    assert first.text == f"{lead}files/{HEX}/a/b/c.npy"
    assert parse_file_key(prefix, first) == FileKeyParts(short_digest=HEX, path=SampleId("a/b/c.npy"))


@pytest.mark.parametrize(
    "path, is_beside",
    [
        ("a/" + "n" * MAX_BESIDE_BYTES, True),
        ("a/" + "n" * (MAX_BESIDE_BYTES + 1), False),
        ("a/" + "\u00e9" * (MAX_BESIDE_BYTES // 2), True),
        ("a/" + "\u00e9" * (MAX_BESIDE_BYTES // 2) + "n", False),
        ("n" * 255, False),
        ("n" * 255 + "/x.pt", True),
        (f"{FOLDER}/x.pt", False),  # would be read as the digest of x.pt
        (f"{FOLDER}/a/x.pt", False),
        (f"a/{FOLDER}/x.pt", True),
        (f"{FOLDER}0/x.pt", True),
        (f"{FOLDER.upper()}/x.pt", True),
        (FOLDER, True),
        (f"{HEX}-x.pt", True),  # a copy of a bucket, adopted: its names begin with digests
        (f"{HEX}-x.pt/y.pt", True),
    ],
)
def test_no_segment_grows_too_long_and_no_key_reads_two_ways(path: str, is_beside: bool) -> None:
    key = file_key("p", SampleId(path), digest=DIGEST)
    first = first_file_key("p", SampleId(path), digest=DIGEST)
    assert (key != first) == is_beside
    assert max(len(segment.encode()) for segment in key.text.split("/")) <= 255
    wanted = FileKeyParts(short_digest=HEX, path=SampleId(path))
    for each in (key, first):
        assert parse_file_key("p", each) == wanted
        assert carries_file(each, name=path, digest=DIGEST)
        assert not carries_file(each, name=path, digest=OTHER)
        assert not carries_file(each, name=f"{path}x", digest=DIGEST)
        assert not carries_pack(each, digest=DIGEST)


def test_a_file_and_a_folder_of_one_name_do_not_meet() -> None:
    # of equal content too: where the digest led they did, as a file and a folder of one server's disk
    above, below = _key("a"), _key("a/c")
    assert not below.startswith(f"{above}/")
    assert first_file_key("", SampleId("a/c"), digest=DIGEST).text.startswith(
        first_file_key("", SampleId("a"), digest=DIGEST).text + "/"
    )


@pytest.mark.parametrize(
    "text",
    [
        "p/files/stranger",
        f"p/files/{HEX}",
        f"p/files/{HEX}-",
        f"p/files/a/{HEX}-",
        f"p/files/a/{HEX}x.pt",
        f"p/files/a/{HEX.upper().replace('0', 'A')}-x.pt",
        f"p/files/a/{HEX[:-1]}-x.pt",
        f"p/files/a/-{HEX}-x.pt",
        f"p/files/a/{HEX}-" + "n" * (MAX_BESIDE_BYTES + 1),  # no version makes it
        f"p/files/a/{HEX}-e\u0301.pt",  # not NFC
        f"p/files/{HEX}/line\nbreak",
        f"p/files/a/{HEX}-line\nbreak",
        f"q/files/a/{HEX}-x.pt",
        f"p/file/a/{HEX}-x.pt",
        f"p/packs/a/{HEX}-x.pt",
    ],
)
def test_foreign_keys_are_none(text: str) -> None:
    assert _parsed(text) is None


@pytest.mark.parametrize("path", ["../x", "a/../x", "a//x", "/x", "a/", ".", "a/.", "a\0b", "\ud800"])
def test_no_path_leads_out_of_the_folder(path: str) -> None:
    with pytest.raises(InvalidSampleId):
        SampleId(path)  # the only thing that keys are made of


def test_a_key_that_is_too_long_is_refused() -> None:
    prefix = "p" * 600
    with pytest.raises(InvalidInput):
        file_key(prefix, SampleId("a/" * 200 + "x" * 100), digest=DIGEST)


_SEGMENT = st.sampled_from(
    ["a", "A", "data_7.pt", FOLDER, f"{FOLDER}-x", HEX, f"{HEX}-a", "\u00e9", "-", "x" * 201, " "]
)
_PATHS = st.lists(_SEGMENT, min_size=1, max_size=4).map("/".join).filter(lambda path: len(path.encode()) <= 512)
_DIGESTS = st.sampled_from([DIGEST, OTHER, Digest(FOLDER * 2)])


@given(path=_PATHS, digest=_DIGESTS, prefix=st.sampled_from(["", "p", f"files/{FOLDER}"]))
def test_every_key_tells_its_file_and_digest(path: str, digest: Digest, prefix: str) -> None:
    """So two files never share a key: the parser is a function."""
    pattern = file_key_pattern(prefix)
    wanted = FileKeyParts(short_digest=digest.short, path=SampleId(path))
    for make in (file_key, first_file_key):
        key = make(prefix, SampleId(path), digest=digest)
        assert parse_file_key(prefix, key) == wanted
        assert carries_file(key, name=path, digest=digest)
        is_like = pyarrow.compute.match_substring_regex(pa.array([key.text, f"x{key}"]), pattern=pattern)
        assert is_like.to_pylist() == [True, False]
        assert re.search(pattern.replace(r"\z", r"\Z").replace("(?s)", ""), key.text, re.DOTALL)
