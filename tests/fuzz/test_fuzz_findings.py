"""What fuzzing found, one test each, so that it is never found again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.codec.encode import SampleContext, encode_sample
from durastore.codec.header import MAX_HEADER_BYTES, parse_header
from durastore.codec.render import seal_header
from durastore.errors import (
    ConfigError,
    IntegrityError,
    InvalidInput,
    InventoryIncomplete,
    JournalFailed,
    UnknownAnswer,
    UnsupportedTensor,
)
from durastore.formats.journal import parse_evidence
from durastore.formats.segment import parse_segment_table
from durastore.fsio.folder import Folder
from durastore.manifest.snapshot import Snapshot
from durastore.model import MAX_JSON_ITEMS, ObjectKey, Run, SampleId, parse_json
from durastore.objectstore.location import BucketUrl
from durastore.objectstore.probe.result import ProbeResult
from durastore.objectstore.s3_list import parse_page
from durastore.spool.journal import Journal
from durastore.spool.journal_rows import parse_pack
from tests.fuzz.seeds import RUN, evidence, probe
from tests.fuzz.sqlite_files import NAME, WRITER, SqliteFiles, edited_journal
from tests.fuzz.target import load_corpus

CONTEXT = SampleContext(run=RUN, meta=None, input_digest=None)
REPO = Path(__file__).resolve().parents[2]


# --- sample headers and JSON ---------------------------------------------------------------------------------------


def test_empty_tensor_of_an_impossible_shape_is_refused_when_read() -> None:
    """numpy and torch cannot make it: it came out of `decode_tensors` as ValueError."""
    sound = encode_sample(SampleId("a"), {"z": np.zeros((0, 2, 3), np.float32)}, context=CONTEXT).header
    header = sound.replace(b'"durastore.check":"' + sound[44:76], b'"durastore.check":"' + b"0" * 32)
    huge = header[8:].decode().replace("[0,2,3]", f"[0,{2**62},{2**62}]")
    with pytest.raises(IntegrityError, match="impossible shape"):
        parse_header(seal_header(huge), total_length=None)


def test_empty_tensor_of_an_impossible_shape_is_refused_when_written() -> None:
    array = np.zeros((0, 3 << 30, 1 << 30), np.float16)
    with pytest.raises(UnsupportedTensor, match="impossible shape"):
        encode_sample(SampleId("a"), {"z": array}, context=CONTEXT)


PEAK_PROGRAM = """
import re, sys
from pathlib import Path
from durastore.codec.header import parse_header
from durastore.errors import IntegrityError
from tests.fuzz.codec_targets import resealed
data = resealed(Path(sys.argv[1]).read_bytes())
try:
    parse_header(data, total_length=None)
except IntegrityError as exc:
    # Not ru_maxrss: that still counts the process this one was forked from.
    print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1], exc)
"""


def peak_kib(text: str, folder: Path) -> tuple[int, str]:
    """Peak memory of a process that does nothing but parse a header of this JSON, and how the parser refused it."""
    raw = text.encode()
    (folder / "header").write_bytes(len(raw).to_bytes(8, "little") + raw)
    command = [sys.executable, "-c", PEAK_PROGRAM, str(folder / "header")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100, cwd=REPO)
    peak, _, reason = done.stdout.partition(" ")
    return int(peak), reason


@pytest.mark.parametrize("unit", ["[],", "0,", '"aa",', '{"a":0},'])
def test_header_of_many_small_items_takes_little_memory(unit: str, tmp_path: Path) -> None:
    """A 64 MiB header of empty lists took 1.6 GiB."""
    text = '{"__metadata__":{"durastore.check":"' + "0" * 32 + '"},"a":[' + unit * (15_000_000 // len(unit)) + "0]}"
    with pytest.raises(InvalidInput, match="items"):
        seal_header(text)  # what no reader would take is not written either
    peak, reason = peak_kib(text, tmp_path)
    assert f"more than {MAX_JSON_ITEMS} items" in reason
    assert peak < 256 << 10


def test_largest_header_that_is_read_takes_less_than_256_mib(tmp_path: Path) -> None:
    items = ",".join(f'"{n:07x}":0' for n in range(MAX_JSON_ITEMS // 2 - 100))
    text = '{"__metadata__":{"durastore.check":"' + "0" * 32 + '"},"a":{' + items + "}"
    text += " " * (MAX_HEADER_BYTES - len(text) - 9) + "}"
    peak, reason = peak_kib(text, tmp_path)
    assert "not a durastore sample" in reason  # all of it was parsed
    assert 64 << 10 < peak < 256 << 10


@pytest.mark.parametrize("data", [b'"\\ud800"', b'{"\\udfff":1}', '["\ud800"]'])
def test_lone_surrogates_are_no_json(data: bytes | str) -> None:
    """They parsed, and the value could then not be written again."""
    with pytest.raises(IntegrityError, match="surrogates"):
        parse_json(data, what="text")
    assert parse_json(b'"\\ud83d\\ude00"', what="text") == "\U0001f600"


# --- small texts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", ["1" + "0" * 400, '"1.5"', "true", "[]"])
def test_evidence_with_an_odd_server_time_is_refused(time: str) -> None:
    """A number too large for a float was OverflowError; a text passed."""
    with pytest.raises(IntegrityError, match="evidence"):
        parse_evidence(evidence().replace("1.5", time))


def test_probe_result_with_a_huge_clock_skew_is_refused() -> None:
    data = probe().render().replace(b"-0.5", b"1" + b"0" * 400)
    with pytest.raises(IntegrityError):
        ProbeResult.parse(data)


@pytest.mark.parametrize(
    "row", [[1 << 64, 5, 1.5], [None, 5, 1.5], ["p/x", "5", 1.5], ["p/x", 5, [1]], ["p/x", True, None]]
)
def test_snapshot_with_odd_values_in_a_segment_is_refused(row: list[Any]) -> None:
    """A key that is no text was AttributeError."""
    text = json.dumps({"durastore.snapshot": 1, "prefix": "p", "id": "0" * 32, "segments": [row]})
    with pytest.raises(InvalidInput, match="not the text of a snapshot"):
        Snapshot.parse(text)


@pytest.mark.parametrize("text", ["a/" + chr(0xD800), "a/" + chr(0xDCFF)])
def test_key_that_has_no_bytes_is_refused(text: str) -> None:
    """UnicodeEncodeError; file names that are not UTF-8 come in this form."""
    with pytest.raises(InvalidInput):
        ObjectKey(text)
    with pytest.raises(ConfigError):
        BucketUrl.parse(f"s3://bucket/{text}")


def test_directory_whose_name_is_no_text_keeps_its_name() -> None:
    url = BucketUrl.parse("file:///a\udcff")
    assert url.bucket == "/a\udcff"
    assert BucketUrl.parse(url.render()) == url
    for text in ("file:///\ud800", "/\ud800", "./\ud800", "file:///%00", "/\0"):
        with pytest.raises(ConfigError):
            BucketUrl.parse(text)


# --- listings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["x-none", "U-1F-8", "idna", "cp932", "utf-32"])
def test_listing_in_an_unknown_encoding_is_no_answer(encoding: str) -> None:
    """LookupError or ValueError of the XML library."""
    page = load_corpus("list_page")[0].replace(b'"UTF-8"', f'"{encoding}"'.encode())
    with pytest.raises(UnknownAnswer):
        parse_page(page, "p/")


@pytest.mark.parametrize("size", ["-1", "1_0", "\u0661", "+1", " 1", "9" * 20, "1.0", ""])
def test_listed_size_that_is_no_number_is_no_answer(size: str) -> None:
    """int() takes the first five."""
    page = load_corpus("list_page")[0].replace(b"<Size>3<", f"<Size>{size}<".encode())
    with pytest.raises((UnknownAnswer, InventoryIncomplete)):
        parse_page(page, "p/")


# --- the journal ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "x.tar", "", 7])
def test_pack_row_whose_name_is_no_pack_name_is_refused(name: object) -> None:
    """It would be opened by this name."""
    row = json.loads((REPO / "tests/fuzz/corpus/journal_columns/pack").read_bytes())
    assert parse_pack(row).seq == 1
    row[1] = name
    with pytest.raises(IntegrityError, match="pack row"):
        parse_pack(row)


def opened(data: bytes, folder: Path) -> Journal:
    (folder / "spool").mkdir()
    (folder / "quarantine").mkdir()
    (folder / "spool" / NAME).write_bytes(data)
    with Folder.open(folder / "spool") as spool, Folder.open(folder / "quarantine") as aside:
        journal = Journal(Folder.open(folder / "spool"), aside, writer=WRITER, has_packs=True)
        del spool
    return journal


@pytest.mark.parametrize(
    "statement, ask",
    [
        ("UPDATE uploads SET part_bytes = 'x'", lambda j: j.session(2)),
        ("UPDATE uploads SET upload_id = x'fffe'", lambda j: j.session(2)),
        ("UPDATE parts SET size_bytes = 'x'", lambda j: j.session(2)),
        ("UPDATE parts SET number = 1.5", lambda j: j.session(2)),
        ("UPDATE tombstones SET offset = 'x'", lambda j: j.tombstones([2])),
        ("UPDATE tombstones SET key = '../x'", lambda j: j.tombstones([2])),
        ("UPDATE writers SET last_segment_seq = 'x'", lambda j: j.record_segment_started(2, [])),
        ("UPDATE writers SET last_pack_seq = x'ff'", lambda j: j.next_pack_seq(WRITER)),
        ("UPDATE writers SET writer = '../x'", lambda j: j.writers()),
        ("UPDATE runs SET text = 1000000000000", lambda j: j.runs()),
    ],
)
def test_odd_value_in_a_journal_column_is_an_integrity_error(statement: str, ask: Any, tmp_path: Path) -> None:
    """TypeError, ValueError, and once an attempt at allocating 10^12 bytes."""
    journal = opened(edited_journal(statement), tmp_path)
    try:
        with pytest.raises(IntegrityError):
            ask(journal)
        assert journal.get_fact("bucket") == "s3://b/p"  # the journal itself goes on
    finally:
        journal.close()


def test_pack_sizes_that_are_no_numbers_are_an_integrity_error(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="sizes"):
        opened(edited_journal("UPDATE packs SET size_bytes = 1e999"), tmp_path)


@pytest.mark.parametrize("statement", ["DROP TABLE parts", "ALTER TABLE packs RENAME COLUMN etag TO gone"])
def test_journal_that_lacks_a_table_or_column_is_followed_by_an_empty_one(statement: str, tmp_path: Path) -> None:
    """Each open made one more journal with the same fault."""
    data = edited_journal(statement)
    journal = opened(data, tmp_path)
    assert (journal.name, journal.replaced, journal.packs()) == ("journal-2.sqlite", NAME, [])
    assert journal.get_fact("rebuild") == "pending"
    journal.close()
    assert (tmp_path / "quarantine" / NAME).read_bytes() == data
    with Folder.open(tmp_path / "spool") as spool, Folder.open(tmp_path / "quarantine") as aside:
        again = Journal(spool, aside, writer=WRITER)
        assert (again.name, again.replaced) == ("journal-2.sqlite", None)
        again.close()


def test_schema_that_is_no_text_is_damage(tmp_path: Path) -> None:
    """SQLite quotes it in its message, and Python's module raised UnicodeDecodeError over that."""
    data = SqliteFiles(1).make(-2)
    broken = data.replace(b"CREATE TABLE parts (\n    pack_id", b"CREATE \xe1\xe1ABLE parts (\n   pack_id")
    assert broken != data
    try:
        journal = opened(broken, tmp_path)
    except JournalFailed:
        pass
    else:
        assert journal.replaced == NAME
        journal.close()
    assert (tmp_path / "spool" / NAME).exists() or (tmp_path / "quarantine" / NAME).read_bytes() == broken


# --- segments ------------------------------------------------------------------------------------------------------


def test_rows_that_a_file_has_no_room_for_are_refused() -> None:
    """Repeated values: a few kilobytes of Parquet can say two thousand million rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from durastore.formats.segment import COLUMNS, arrow_schema

    rows = 600_000
    columns = []
    for name in COLUMNS:
        kind = arrow_schema().field(name).type
        value: Any = (
            "row" if name == "kind" else b"\0" * 16 if kind == pa.binary(16) else 1 if kind == pa.int64() else "a"
        )
        columns.append(pa.repeat(pa.scalar(value, type=kind), rows))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, arrow_schema(), compression="zstd", store_schema=False) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=arrow_schema()))
        writer.add_key_value_metadata({"durastore.format": "1"})
    data = bytes(sink.getvalue())
    assert rows > 8 * len(data)
    with pytest.raises(IntegrityError, match="rows is impossible"):
        parse_segment_table(data)


def test_run_of_the_largest_size_is_still_read() -> None:
    """The bound on items must not refuse what may be written."""
    run = Run.of({"a": [0] * 120_000})
    assert parse_json(run.text, what="run") == {"a": [0] * 120_000}
