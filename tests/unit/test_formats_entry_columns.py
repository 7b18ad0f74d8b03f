"""The samples of a pack as columns: the same rows, bytes and refusals as value by value."""

from __future__ import annotations

from typing import Any

import pytest

from durastore.errors import IntegrityError
from durastore.formats.entry_columns import EntryColumns, PackRows, parse_entry_columns, render_segment_of
from durastore.formats.journal import parse_entry, render_entry
from durastore.formats.segment import SegmentContent, parse_segment, render_segment
from durastore.model import (
    Digest,
    ManifestRow,
    ObjectFacts,
    ObjectKey,
    Run,
    SampleEntry,
    SampleId,
    Tombstone,
    WriterId,
)

RUNS = (Run.of({"model": "m"}), Run.of({"model": "n"}))


def entry(number: int, **changes: Any) -> SampleEntry:
    known: dict[str, Any] = {
        "sample_id": SampleId(f"s/{number}ü"),
        "offset": 512 * number,
        "length": 300 + number % 3,
        "header_length": 200,
        "header_digest": Digest.of(b"h%d" % number),
        "schema": '[["x","F32",[3],"raw"]]',
        "meta": f'{{"n":{number % 5}}}',
        "run": RUNS[number % 2].digest,
        "input_digest": Digest.of(b"i%d" % number),
        "provenance": "computed",
        "time_ns": 1_700_000_000_000_000_000 + number,
    }
    return SampleEntry(**{**known, **changes})


def facts(number: int) -> ObjectFacts:
    return ObjectFacts(
        key=ObjectKey(f"p/packs/0123456789abcdef/{number:012d}-0011223344556677.tar"),
        size_bytes=1 << 20,
        digest=Digest.of(b"object%d" % number),
        crc64nvme="AAAAAAAAAAA=",
        etag=f'"{number}"',
        version_id="v" if number % 2 else None,
        writer=WriterId("0123456789abcdef"),
    )


def columns(entries: list[SampleEntry]) -> EntryColumns:
    return parse_entry_columns([render_entry(1, each)[1:] for each in entries])


PACKS = {
    "one pack": [[entry(n) for n in range(1_500)]],
    "several": [[entry(n) for n in range(700)], [], [entry(n, input_digest=None) for n in range(700, 703)]],
    "some without input": [[entry(n, input_digest=None if n % 3 else Digest.of(b"i")) for n in range(40)]],
    "none": [[]],
}


@pytest.mark.parametrize("packs", PACKS.values(), ids=list(PACKS))
@pytest.mark.parametrize("stone_count", [0, 3])
def test_a_segment_has_the_same_bytes_as_one_made_row_by_row(packs: list[list[SampleEntry]], stone_count: int) -> None:
    objects = [facts(number) for number in range(len(packs))]
    stones = tuple(
        Tombstone(sample_id=SampleId(f"t/{n}"), key=objects[0].key, offset=n, reason="moved")
        for n in range(stone_count)
    )
    rows = [ManifestRow(entry=each, object=held) for held, pack in zip(objects, packs, strict=True) for each in pack]
    data = render_segment_of(
        [PackRows(held, columns(pack)) for held, pack in zip(objects, packs, strict=True)], tombstones=stones, runs=RUNS
    )
    content = SegmentContent(rows=tuple(rows), tombstones=stones, runs=RUNS)
    assert data == render_segment(content)
    assert parse_segment(data) == content


def test_columns_hold_what_the_rows_hold() -> None:
    entries = [entry(number) for number in range(5)]
    found = columns(entries)
    assert [parse_entry(row) for row in zip(*found, strict=True)] == entries
    assert parse_entry_columns([]) == EntryColumns(*([] for _ in EntryColumns._fields))


HEX = "0" * 32
ODD: list[tuple[str, Any]] = [
    *(
        (name, value)
        for name in ("offset", "length", "header_length", "time_ns")
        for value in (-1, "1", 1.5, None, True)
    ),
    *((name, 5) for name in ("sample_id", "header_digest", "schema", "meta", "run", "provenance", "input_digest")),
    *((name, None) for name in ("sample_id", "header_digest", "schema", "meta", "run", "provenance")),
    *((name, HEX[:-1]) for name in ("header_digest", "run", "input_digest")),
    *((name, HEX[:-1] + "A") for name in ("header_digest", "run", "input_digest")),
    *(("header_digest", text) for text in (HEX[:-2] + "\n0", " " * 32, b"0" * 32)),
    *(("sample_id", text) for text in ("", "a//b", "../a", "a\n", "u\u0308", "x" * 513)),
]


@pytest.mark.parametrize("name, value", ODD)
def test_a_value_that_is_refused_by_itself_is_refused_among_others(name: str, value: Any) -> None:
    row = dict(zip(EntryColumns._fields, render_entry(1, entry(1))[1:], strict=True))
    odd = list({**row, name: value}.values())
    with pytest.raises(IntegrityError) as alone:
        parse_entry(odd)
    with pytest.raises(IntegrityError) as among:
        parse_entry_columns([list(row.values()), odd, list(row.values())])
    assert among.value.message == alone.value.message
