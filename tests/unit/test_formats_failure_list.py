"""Failure lists as bytes: what is written is read, and nothing else is."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from durastore.errors import FormatUnsupported, IntegrityError, InvalidInput
from durastore.formats.failure_list import (
    FAILURE_COLUMNS,
    MAX_LIST_ROWS,
    TEXT_LIMITS,
    failure_schema,
    failure_table,
    parse_failure_table,
    plain_text,
)
from durastore.formats.keys import failures_key, parse_failures_key, parse_segment_key
from durastore.model import Digest, ObjectKey, Run, WriterId
from tests.unit.failure_lab import failed, rendered, settled
from tests.unit.manifest_bucket import RUN

OTHER = Run.of({"model": "other"})
ROWS = (
    failed("a/1", input_digest=Digest.of(b"tokens"), runs=3, attempts=7),
    failed(None, line=9, stage="read", reason="is not JSON: Expecting value at character 0"),
    settled("b", stored="b"),
    settled(None, stored="c", line=4),
)


def _file(table: pa.Table, **metadata: str) -> bytes:
    sink = pa.BufferOutputStream()
    known = {"durastore.failures": "1", "durastore.run": RUN.digest.hex}
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({**known, **metadata})
    return bytes(sink.getvalue())


def _changed(row: int = 0, **values: Any) -> bytes:
    """A list with other values in one row, as nobody of ours would write it."""
    records = failure_table(ROWS).to_pylist()
    records[row] |= values
    return _file(pa.Table.from_pylist(records, schema=failure_schema()))


def test_what_is_written_is_read() -> None:
    data = rendered(*ROWS)
    assert parse_failure_table(data, run=RUN.digest).equals(failure_table(ROWS))
    assert rendered(*ROWS) == data


def test_columns_of_a_later_minor_are_ignored() -> None:
    table = failure_table(ROWS).append_column("mood", pa.array(["sad"] * len(ROWS)))
    assert parse_failure_table(_file(table), run=RUN.digest).equals(failure_table(ROWS))


def test_the_list_of_another_run_is_refused() -> None:
    with pytest.raises(IntegrityError, match="another run"):
        parse_failure_table(rendered(*ROWS, run=OTHER), run=RUN.digest)


def test_a_newer_format_is_refused_as_such() -> None:
    data = _file(failure_table(ROWS), **{"durastore.failures": "2"})
    with pytest.raises(FormatUnsupported, match="newer format 2"):
        parse_failure_table(data, run=RUN.digest)
    with pytest.raises(IntegrityError, match="missing or odd"):
        parse_failure_table(_file(failure_table(ROWS), **{"durastore.failures": "one"}), run=RUN.digest)


@pytest.mark.parametrize(
    "values",
    [
        {"sample_id": "../../etc/passwd"},
        {"sample_id": "a\x1b[2J"},
        {"sample_id": "x" * 513},
        {"sample_id": ""},
        {"reason": "\x1b]0;owned\x07"},
        {"reason": "two\nlines"},
        {"reason": "turned \u202e round"},
        {"reason": "x" * (TEXT_LIMITS["reason"] + 1)},
        {"stage": "s" * 41},
        {"worker": "\x9b31m"},
        {"host": "h" * 101},
        {"line": -1},
        {"attempts": -1},
        {"runs": 1 << 62},
        {"time_ns": -5},
        {"kind": "done"},
        {"kind": None},
        {"reason": None},
        {"host": None},
    ],
)
def test_what_no_writer_writes_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        parse_failure_table(_changed(**values), run=RUN.digest)


def test_a_settlement_names_its_sample_and_no_other() -> None:
    with pytest.raises(IntegrityError, match="by another sample"):
        parse_failure_table(_changed(2, stored_id="a/1"), run=RUN.digest)
    with pytest.raises(IntegrityError, match="without stored_id"):
        parse_failure_table(_changed(2, stored_id=None), run=RUN.digest)


def test_one_text_for_many_rows_is_not_unpacked_for_each() -> None:
    """A file of some KB whose rows would be 1.6 GB of texts."""
    count = MAX_LIST_ROWS
    columns: dict[str, Any] = {name: [None] * count for name in FAILURE_COLUMNS}
    columns |= {name: [value] * count for name, value in failed("a").record().items()}
    columns["worker"] = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), ["w" * 16_000])
    arrays = [
        pa.array(columns[name], None if name == "worker" else failure_schema().field(name).type) for name in columns
    ]
    data = _file(pa.table(arrays, names=list(columns)))
    assert len(data) < 200_000
    before = pa.default_memory_pool().max_memory() or 0
    with pytest.raises(IntegrityError, match="column worker is too long"):
        parse_failure_table(data, run=RUN.digest)
    assert (pa.default_memory_pool().max_memory() or 0) - before < 1 << 28


def test_too_many_rows_missing_columns_other_types_and_garbage_are_refused() -> None:
    table = failure_table(ROWS)
    many = pa.concat_tables([failure_table([failed("a")] * 1000)] * (MAX_LIST_ROWS // 1000 + 1))
    for data in (
        _file(many),
        _file(table.drop_columns(["stage"])),
        _file(table.set_column(2, "line", table.column("line").cast(pa.int32()))),
        b"",
        b"PAR1" * 9,
        rendered(*ROWS)[:-9],
    ):
        with pytest.raises(IntegrityError):
            parse_failure_table(data, run=RUN.digest)


def test_every_cut_and_flipped_byte_is_refused_or_read_as_sound_values() -> None:
    """Whoever forges the digest in the name too can say what he likes, in these forms only."""
    data = rendered(*ROWS)
    for at in range(0, len(data), 3):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]):
            try:
                table = parse_failure_table(changed, run=RUN.digest)
            except (IntegrityError, FormatUnsupported):
                continue
            assert set(table.column("kind").to_pylist()) <= {"failed", "settled"}


def test_a_writer_cannot_make_a_list_that_nobody_reads() -> None:
    with pytest.raises(InvalidInput, match="no list"):
        rendered(failed("a", reason="\x1b[2J"))


def test_texts_are_plain_short_and_on_one_line() -> None:
    assert plain_text("a\n\tb  \x1b[31mred\x9b\u202e \u200bé", limit=40) == "a b ?[31mred?? ?é"
    assert plain_text("x" * 50, limit=40) == "x" * 37 + "..."
    assert plain_text("\ud800", limit=9) == "?"


def test_the_keys_of_lists_are_exact() -> None:
    writer, digest = WriterId("0123456789abcdef"), Digest.of(b"x")
    key = failures_key("runs/7", writer, seq=12, digest=digest)
    parts = parse_failures_key("runs/7", key)
    assert parts is not None
    assert (parts.writer, parts.seq, parts.short_digest) == (writer, 12, digest.short)
    assert key.text == f"runs/7/failures/0123456789abcdef/000000000012-{digest.short}.parquet"
    assert failures_key("", writer, seq=1, digest=digest).text.startswith("failures/")
    assert parse_segment_key("runs/7", key) is None
    for odd in (
        key.text.upper(),
        key.text + "x",
        key.text.replace("failures", "manifest"),
        key.text.replace("12-", "1-"),
    ):
        assert parse_failures_key("runs/7", ObjectKey(odd)) is None
    assert parse_failures_key("runs", key) is None
