"""Object keys: exact layout, exact inverse, nothing else accepted."""

from __future__ import annotations

import pytest

from durastore.errors import InvalidInput
from durastore.formats.keys import (
    MAX_SEQ,
    PackKeyParts,
    SegmentKeyParts,
    held_listing_prefixes,
    marker_key,
    pack_key,
    pack_listing_prefix,
    parse_pack_key,
    parse_segment_key,
    segment_key,
    segment_listing_prefix,
)
from durastore.model import Digest, ObjectKey, PackKind, WriterId

WRITER = WriterId("0123456789abcdef")
DIGEST = Digest("00112233445566778899aabbccddeeff")


@pytest.mark.parametrize("prefix", ["", "data", "a/b c%2B"])
@pytest.mark.parametrize("kind", list(PackKind))
def test_pack_keys(prefix: str, kind: PackKind) -> None:
    lead = f"{prefix}/" if prefix else ""
    key = pack_key(prefix, WRITER, seq=17, digest=DIGEST, kind=kind)
    assert key.text == f"{lead}packs/0123456789abcdef/000000000017-0011223344556677.{kind.value}"
    assert parse_pack_key(prefix, key) == PackKeyParts(writer=WRITER, seq=17, short_digest=DIGEST.short, kind=kind)
    assert parse_segment_key(prefix, key) is None
    assert parse_pack_key(f"{prefix}x", key) is None
    assert key.text.startswith(pack_listing_prefix(prefix, WRITER))
    assert key.text.startswith(pack_listing_prefix(prefix))


@pytest.mark.parametrize("prefix", ["", "data", "a/b"])
def test_segment_keys(prefix: str) -> None:
    lead = f"{prefix}/" if prefix else ""
    key = segment_key(prefix, WRITER, seq=1, digest=DIGEST)
    assert key.text == f"{lead}manifest/0123456789abcdef/000000000001-0011223344556677.parquet"
    assert parse_segment_key(prefix, key) == SegmentKeyParts(writer=WRITER, seq=1, short_digest=DIGEST.short)
    assert parse_pack_key(prefix, key) is None
    assert key.text.startswith(segment_listing_prefix(prefix, WRITER))
    assert key.text.startswith(segment_listing_prefix(prefix))


def test_what_rows_may_name_lies_in_three_folders() -> None:
    assert held_listing_prefixes("") == ("packs/", "files/", "artifacts/")
    assert held_listing_prefixes("a/b") == ("a/b/packs/", "a/b/files/", "a/b/artifacts/")


def test_marker_key() -> None:
    assert marker_key("").text == "durastore.json"
    assert marker_key("a/b").text == "a/b/durastore.json"


def test_keys_of_one_writer_sort_by_sequence() -> None:
    keys = [pack_key("p", WRITER, seq=n, digest=DIGEST, kind=PackKind.TAR).text for n in (0, 9, 10, 99_999, MAX_SEQ)]
    assert keys == sorted(keys)


@pytest.mark.parametrize("seq", [-1, MAX_SEQ + 1])
def test_sequence_must_fit(seq: int) -> None:
    with pytest.raises(InvalidInput):
        pack_key("", WRITER, seq=seq, digest=DIGEST, kind=PackKind.TAR)
    with pytest.raises(InvalidInput):
        segment_key("", WRITER, seq=seq, digest=DIGEST)


@pytest.mark.parametrize("prefix", ["/", "a/", "/a", "a//b", "../a", "."])
def test_prefix_no_key_could_have_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidInput):
        pack_key(prefix, WRITER, seq=1, digest=DIGEST, kind=PackKind.TAR)
    with pytest.raises(InvalidInput):
        marker_key(prefix)


GOOD = "packs/0123456789abcdef/000000000017-0011223344556677.tar"


@pytest.mark.parametrize(
    "text",
    [
        GOOD + "x",
        "x" + GOOD,
        "p/" + GOOD,
        GOOD.replace("abcdef", "ABCDEF"),
        GOOD.replace(".tar", ".TAR"),
        GOOD.replace(".tar", ".tar.gz"),
        GOOD.replace("000000000017", "17"),
        GOOD.replace("000000000017", "\N{ARABIC-INDIC DIGIT ZERO}" * 12),
        GOOD.replace("-", "_"),
        GOOD + "\n",
        "durastore.json",
        "packs/0123456789abcdef",
    ],
)
def test_foreign_keys_are_none(text: str) -> None:
    assert parse_pack_key("", ObjectKey(GOOD)) is not None
    assert parse_pack_key("", ObjectKey(text)) is None
    assert parse_segment_key("", ObjectKey(text)) is None
