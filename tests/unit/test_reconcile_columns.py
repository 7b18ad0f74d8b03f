"""Joins of names, small and large, against a dictionary; pages of keys against the listing of objects."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from durastore.errors import InventoryIncomplete, UnknownAnswer
from durastore.model import ObjectKey
from durastore.objectstore.columns import ColumnListing, ColumnPage
from durastore.objectstore.listing import Listing, RawPage
from durastore.objectstore.port import ObjectStat
from durastore.objectstore.s3_list import parse_columns, parse_page
from durastore.reconcile import columns
from durastore.reconcile.columns import NONE, TextBuilder, array_of, hex_of, joined, names_of, pairs, positions
from durastore.reconcile.local import texts


@pytest.mark.parametrize("large", [10, 10**9])
@pytest.mark.parametrize("has_equal", [True, False])
def test_positions_are_those_of_the_first_equal(monkeypatch: pytest.MonkeyPatch, large: int, has_equal: bool) -> None:
    monkeypatch.setattr(columns, "_LARGE", large)
    monkeypatch.setattr(columns, "_CHUNK", 7)
    chance = random.Random(5)
    pool = [f"n\u00e9{number}" for number in range(300)]
    for _ in range(30):
        among = chance.choices(pool, k=60) if has_equal else chance.sample(pool, 60)
        names = chance.choices(pool, k=chance.choice([0, 5, 40, 200]))
        expected = [among.index(name) if name in among else NONE for name in names]
        assert positions(texts(names), texts(among)).tolist() == expected


def test_pairs_join_only_where_both_agree() -> None:
    names, sizes = texts(["a", "b", "a\u0301"]), np.array([1, 2, 11], dtype=np.int64)
    assert positions(pairs(names, sizes), pairs(texts(["a", "b", "a"]), np.array([11, 2, 1]))).tolist() == [2, 1, NONE]
    assert names_of(joined([names, sizes])) == ["a\x001", "b\x002", "a\u0301\x0011"]


def test_a_column_grows_in_place() -> None:
    builder = TextBuilder()
    for part in ([b"a", b""], [], ["\u00e9".encode()]):
        builder.add(part)
    assert names_of(builder.finish()) == ["a", "", "\u00e9"]
    assert names_of(TextBuilder().finish()) == []


def _listing(*pages: list[str], prefix: str = "") -> ColumnListing:
    left = [
        ColumnPage(keys=keys, sizes=[1] * len(keys), next_token=None if at == len(pages) else str(at))
        for at, keys in enumerate(pages, start=1)
    ]
    return ColumnListing(lambda token: left[int(token or 0)], prefix=prefix)


@pytest.mark.parametrize(
    "pages",
    [
        (["a", "b"], ["a", "b"]),
        (["a", "b"], ["b", "c"]),
        (["b", "a"],),
        (["a", "a"],),
        (["a/b", "a-b"], ["a/c"]),
        (["a-b", "a/b"], ["a-c"]),
        (["p/a", "q/a"],),
        (["a//b"],),
        (["a/./b"],),
        (["/a"],),
        (["a/.."],),
        (["a\0b"],),
        (["x" * 1_100],),
    ],
)
def test_pages_that_cannot_be_one_listing(pages: tuple[list[str], ...]) -> None:
    # case B140
    prefix = "p/" if pages[0][0].startswith("p/") else ""
    listing = _listing(*pages, prefix=prefix)
    with pytest.raises(InventoryIncomplete):
        list(listing)
    with pytest.raises(InventoryIncomplete):
        next(listing)


def test_both_orders_are_taken_and_folder_markers_are_no_objects() -> None:
    assert [page.keys for page in _listing(["a-b", "a/b"], ["b"])] == [["a-b", "a/b"], ["b"]]
    assert [page.keys for page in _listing(["a/b", "a-b"], ["b"])] == [["a/b", "a-b"], ["b"]]
    page = ColumnPage(keys=["a/", "a/b"], sizes=[0, 3])
    assert [found.keys for found in ColumnListing(lambda _: page, prefix="")] == [["a/b"]]


_ENTRY = (
    "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
    "<ETag>&quot;x&quot;</ETag>{rest}</Contents>"
)


def _body(*entries: str, more: str = "") -> bytes:
    head = '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    return f"{head}<IsTruncated>false</IsTruncated>{more}{''.join(entries)}</ListBucketResult>".encode()


@pytest.mark.parametrize(
    "entries",
    [
        [_ENTRY.format(key="a", rest="<Size>5</Size><StorageClass>STANDARD</StorageClass>")],
        [_ENTRY.format(key="a&amp;b", rest="<Size>5</Size>"), _ENTRY.format(key="c", rest="<Size>0</Size>")],
        ["<Contents><Size>7</Size><Key>z</Key></Contents>"],
        [_ENTRY.format(key="a", rest="<Size>5</Size><Owner><ID>1</ID><DisplayName>d</DisplayName></Owner>")],
        ["<Contents><Key><![CDATA[x<y]]></Key><Size>3</Size></Contents>"],
        ["<!-- <Contents><Key>no</Key><Size>1</Size></Contents> -->", _ENTRY.format(key="a", rest="<Size>5</Size>")],
        [],
    ],
)
def test_the_quick_parser_and_the_other_one_see_the_same_page(entries: list[str]) -> None:
    body = _body(*entries)
    rows = parse_page(body, "").rows
    page = parse_columns(body, "")
    assert list(zip(page.keys, page.sizes, strict=True)) == [(row.key.text, row.size_bytes) for row in rows]


@pytest.mark.parametrize(
    "body",
    [
        _body("<Contents><Key>a</Key></Contents>"),
        _body("<Contents><Key>a</Key><Size>-1</Size></Contents>"),
        _body("<Contents><Key>a</Key><Size>5</Size></Contents>")[:-30],
        b"<html><Contents><Key>a</Key><Size>5</Size></Contents></html>",
        b"",
    ],
)
def test_what_is_no_page_is_refused(body: bytes) -> None:
    with pytest.raises(UnknownAnswer):
        parse_columns(body, "")


def test_digests_as_text() -> None:
    values = [bytes(range(at, at + 16)) for at in range(40)]
    column: Any = pa.array(values, pa.binary(16))
    expected = [value.hex() for value in values]
    assert names_of(hex_of(column)) == expected
    assert names_of(hex_of(column[7:21])) == expected[7:21]
    assert names_of(hex_of(column.take(pa.array([30, 3, 3])))) == [expected[30], expected[3], expected[3]]
    assert names_of(hex_of(column[:0])) == names_of(hex_of(pa.array([], pa.binary(16)))) == []
    for other in (pa.array([values[0], None], pa.binary(16)), pa.array(values, pa.binary())):
        with pytest.raises(ValueError, match="no digest"):
            hex_of(other)


def test_a_column_grows_by_texts_and_columns_alike() -> None:
    pieces = [["a", "n\u00e9"], [], ["", "x\ny"], ["\U0001f600", "z"], [""]]
    expected = [each for piece in pieces for each in piece]
    by_bytes, by_texts, by_columns = TextBuilder(), TextBuilder(), TextBuilder()
    for piece in pieces:
        by_bytes.add([each.encode() for each in piece])
        by_texts.add_texts(piece)
        padded: Any = pa.array(["before", *piece, "behind"])
        by_columns.add_column(padded.slice(1, len(piece)))
    for builder in (by_bytes, by_texts, by_columns):
        assert names_of(builder.finish()) == expected


def test_a_column_with_a_null_does_not_grow_another_one() -> None:
    nothing: Any = pa.array(["a", None])
    with pytest.raises(TypeError):
        TextBuilder().add_column(nothing)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_numbers_and_truths_are_those_of_arrow(count: int) -> None:
    chance = np.random.default_rng(count)
    numbers = chance.integers(-(2**62), 2**62, 2 * count)[::2]  # not contiguous
    truths = numbers > 0
    assert array_of(numbers).equals(pa.array(numbers))
    assert array_of(truths).equals(pa.array(truths))
    array_of(truths).validate(full=True)


def _objects(*pages: list[str], prefix: str) -> Listing:
    left = [
        RawPage(
            rows=[ObjectStat(key=ObjectKey(key), size_bytes=1, etag="") for key in page],
            next_token=str(number + 1) if number + 1 < len(pages) else None,
        )
        for number, page in enumerate(pages)
    ]
    return Listing(lambda token: left[int(token or 0)], prefix=prefix)


def _verdict(listing: Any) -> list[str] | str:
    try:
        return [key for page in listing for key in page]
    except InventoryIncomplete as exc:
        return exc.code


def test_columns_are_judged_as_objects_are() -> None:
    # never laxer, and never stricter, whatever a store answers with
    chance = random.Random(11)
    parts = ["p/", "p/a", "p/b", "p-", "p/a/", "p/a-", "q/", "o", "\n", "p/\n", "\u00e9", "p/\u00e9", "!", "0"]
    agreed = set()
    for _ in range(3000):
        keys = ["".join(chance.choices(parts, k=chance.choice([1, 2]))) + "x" for _ in range(chance.choice([1, 2, 4]))]
        order = chance.choice([sorted(keys), sorted(keys, key=lambda key: key.split("/")), keys])
        cut = chance.randrange(len(order) + 1)
        pages, prefix = [order[:cut], order[cut:]], chance.choice(["", "p/", "p"])
        columned = ([*page.keys] for page in _listing(*pages, prefix=prefix))
        objects = ([stat.key.text for stat in rows] for rows in _objects(*pages, prefix=prefix))
        verdict = _verdict(columned)
        assert verdict == _verdict(objects), (pages, prefix)
        agreed.add(verdict if isinstance(verdict, str) else "whole")
    assert len(agreed) == 2
