"""A manifest segment: an immutable Parquet file of manifest rows and tombstones.

Duty: `docs/format/segment.md` as code. `COLUMNS` is the schema; digests are 16 raw bytes. Parsing checks the file as a
whole on the Arrow table (vectorised) and a row's values when that row is taken. Must never hand out a row it could not
check, and never do I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from durastore.errors import IntegrityError, InvalidInput
from durastore.formats.parquet_file import NOT_PARQUET, check_format, check_types, open_parquet
from durastore.formats.runs import parse_run
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
    parse_json,
    render_json,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "COLUMNS",
    "MAX_SEGMENT_ROWS",
    "SEGMENT_FORMAT",
    "SegmentContent",
    "arrow_schema",
    "parse_segment",
    "parse_segment_table",
    "render_segment",
    "render_segment_table",
    "row_at",
    "rows_at",
    "segment_covers",
    "segment_runs",
    "tombstone_at",
    "tombstone_records",
]

SEGMENT_FORMAT = "1"
MAX_SEGMENT_ROWS = 1 << 31
_MAX_ROWS_A_BYTE = 8
"""Far more than distinct ids and digests compress to: repeated values alone could claim 2^31 rows in a few bytes."""
_MAX_TEXT_ITEMS = 4_000_000

# name -> (type, set in tombstones too, may be null in a row)
COLUMNS: dict[str, tuple[str, bool, bool]] = {
    "kind": ("string", True, False),
    "sample_id": ("string", True, False),
    "key": ("string", True, False),
    "offset": ("int64", True, False),
    "length": ("int64", False, False),
    "header_length": ("int64", False, False),
    "header_digest": ("digest", False, False),
    "object_size": ("int64", False, False),
    "object_digest": ("digest", False, False),
    "crc64nvme": ("string", False, False),
    "etag": ("string", False, False),
    "version_id": ("string", False, True),
    "writer": ("string", False, False),
    "schema": ("string", False, False),
    "meta": ("string", False, False),
    "run": ("digest", False, False),
    "input_digest": ("digest", False, True),
    "provenance": ("string", False, False),
    "time_ns": ("int64", False, False),
    "reason": ("string", True, True),
}
_DISTINCT = frozenset({"sample_id", "offset", "header_digest", "input_digest"})
_REPEATED = frozenset({"key", "crc64nvme", "etag", "version_id", "writer", "schema", "provenance"})
_KEY_FORMAT, _KEY_RUNS, _KEY_COVERS = b"durastore.format", b"durastore.runs", b"durastore.covers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentContent:
    """What a segment holds. `covers`: segments this one replaces; `runs`: the runs its rows name."""

    rows: tuple[ManifestRow, ...]
    tombstones: tuple[Tombstone, ...] = ()
    covers: tuple[ObjectKey, ...] = ()
    runs: tuple[Run, ...] = ()


def arrow_schema() -> pa.Schema:
    """The columns as an Arrow schema."""
    import pyarrow as pa

    types = {"string": pa.string(), "int64": pa.int64(), "digest": pa.binary(16)}
    return pa.schema([pa.field(name, types[kind]) for name, (kind, _, _) in COLUMNS.items()])


# --- rendering -----------------------------------------------------------------------------------------------------


def render_segment(content: SegmentContent) -> bytes:
    """The segment's bytes: rows, then tombstones, in the order given. Equal content gives equal bytes (one pyarrow)."""
    import pyarrow as pa

    records = [_row_record(row) for row in content.rows] + tombstone_records(content.tombstones)
    schema = arrow_schema()
    columns = [pa.array([r.get(field.name) for r in records], type=field.type) for field in schema]
    return render_segment_table(pa.Table.from_arrays(columns, schema=schema), runs=content.runs, covers=content.covers)


def render_segment_table(table: pa.Table, *, runs: Iterable[Run], covers: Iterable[ObjectKey]) -> bytes:
    """The bytes of a segment whose rows and tombstones are a table of `arrow_schema()` already."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    dictionary = [name for name in COLUMNS if name not in _DISTINCT]
    # Without the Arrow schema blob: it would hold the runs and covers a second time.
    with pq.ParquetWriter(
        sink,
        arrow_schema(),
        compression="zstd",
        use_dictionary=dictionary,  # type: ignore[arg-type]  # the stubs know only bool, pyarrow takes names as well
        store_schema=False,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(
            {
                _KEY_FORMAT.decode(): SEGMENT_FORMAT,
                _KEY_RUNS.decode(): render_json([run.text for run in runs]),
                _KEY_COVERS.decode(): render_json([key.text for key in covers]),
            }
        )
    return bytes(sink.getvalue())


def _row_record(row: ManifestRow) -> dict[str, Any]:
    entry, held = row.entry, row.object
    return {
        "kind": "row",
        "sample_id": entry.sample_id.text,
        "key": held.key.text,
        "offset": entry.offset,
        "length": entry.length,
        "header_length": entry.header_length,
        "header_digest": bytes.fromhex(entry.header_digest.hex),
        "object_size": held.size_bytes,
        "object_digest": bytes.fromhex(held.digest.hex),
        "crc64nvme": held.crc64nvme,
        "etag": held.etag,
        "version_id": held.version_id,
        "writer": held.writer.hex,
        "schema": entry.schema,
        "meta": entry.meta,
        "run": bytes.fromhex(entry.run.hex),
        "input_digest": bytes.fromhex(entry.input_digest.hex) if entry.input_digest else None,
        "provenance": entry.provenance,
        "time_ns": entry.time_ns,
    }


def tombstone_records(tombstones: Iterable[Tombstone]) -> list[dict[str, Any]]:
    """Tombstones as rows of `COLUMNS`; what is not set in them is left out."""
    return [
        {
            "kind": "tombstone",
            "sample_id": tombstone.sample_id.text,
            "key": tombstone.key.text,
            "offset": tombstone.offset,
            "reason": tombstone.reason,
        }
        for tombstone in tombstones
    ]


# --- parsing -------------------------------------------------------------------------------------------------------


def parse_segment_table(data: bytes, *, columns: Sequence[str] | None = None) -> pa.Table:
    """The segment as an Arrow table with exactly `COLUMNS`; unknown columns are ignored.

    With `columns` (`kind` among them) only these are read, and repeated texts come as dictionaries: of millions of rows
    that is a fraction of the memory. Kinds, types and required values of what is read are checked; what a row's values
    mean is checked by `row_at`. Raises `IntegrityError` on garbage and `FormatUnsupported` for a newer major.
    """
    import pyarrow as pa

    try:
        file = open_parquet(data)
        check_format((file.schema_arrow.metadata or {}).get(_KEY_FORMAT), known=SEGMENT_FORMAT, what="the segment")
        if file.metadata.num_rows > min(MAX_SEGMENT_ROWS, _MAX_ROWS_A_BYTE * len(data)):
            raise IntegrityError(f"a segment of {file.metadata.num_rows} rows is impossible")
        missing = COLUMNS.keys() - set(file.schema_arrow.names)
        if missing:
            raise IntegrityError(f"the segment has no column {', '.join(sorted(missing))}")
        wanted = list(COLUMNS) if columns is None else list(columns)
        if columns is not None:
            file = open_parquet(data, repeated=[name for name in wanted if name in _REPEATED])
        table = file.read(columns=wanted).select(wanted)
        table.validate(full=True)
    except (pa.ArrowException, *NOT_PARQUET) as exc:
        raise IntegrityError(f"not a manifest segment: {str(exc)[:200]}") from exc
    _check_table(table)
    return table


def _check_table(table: pa.Table) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    check_types(table, arrow_schema(), what="the segment")
    kinds = table.column("kind")
    known = pc.is_in(kinds, value_set=pa.array(["row", "tombstone"]))
    if table.num_rows and (kinds.null_count or not pc.all(known).as_py()):
        raise IntegrityError("the segment has a row of unknown kind")
    rows = table.filter(pc.equal(kinds, pa.scalar("row")))
    for name in table.column_names:
        _, in_tombstones, may_be_null = COLUMNS[name]
        if not may_be_null and (table if in_tombstones else rows).column(name).null_count:
            raise IntegrityError(f"the segment has rows without {name}")


def parse_segment(data: bytes) -> SegmentContent:
    """The whole segment as values. For many rows work on `parse_segment_table` instead. Raises like it."""
    table = parse_segment_table(data)
    records = table.to_pylist()
    return SegmentContent(
        rows=tuple(_row(r) for r in records if r["kind"] == "row"),
        tombstones=tuple(_tombstone(r) for r in records if r["kind"] == "tombstone"),
        covers=segment_covers(table),
        runs=segment_runs(table),
    )


def row_at(table: pa.Table, index: int) -> ManifestRow:
    """Row `index` of a segment table, or of any table with `COLUMNS`. `IntegrityError` where it is no sound row."""
    return _row(_record(table, index, kind="row"))


def rows_at(table: pa.Table, indices: Sequence[int]) -> list[ManifestRow]:
    """Rows `indices`, in that order: of many a fraction of what `row_at` costs for each. Raises like it."""
    if any(column.num_chunks > 1 for column in table.itercolumns()):  # taking would copy whole columns
        return [row_at(table, index) for index in indices]
    records = _records(table.take(indices))
    for index, record in zip(indices, records, strict=True):
        if record["kind"] != "row":
            raise IntegrityError(f"segment row {index} is not a row")
    return [_row(record) for record in records]


def _records(table: pa.Table) -> list[dict[str, Any]]:
    """What `to_pylist` gives, in less than half of the time: it takes a microsecond for each value of a dictionary."""
    import pyarrow as pa

    names = table.column_names
    columns = [
        (column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column).to_pylist()
        for column in table.itercolumns()
    ]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def tombstone_at(table: pa.Table, index: int) -> Tombstone:
    """Row `index` as a tombstone. `IntegrityError` where it is none."""
    return _tombstone(_record(table, index, kind="tombstone"))


def _record(table: pa.Table, index: int, *, kind: str) -> dict[str, Any]:
    record: dict[str, Any] = table.slice(index, 1).to_pylist()[0]
    if record["kind"] != kind:
        raise IntegrityError(f"segment row {index} is not a {kind}")
    return record


def segment_runs(table: pa.Table) -> tuple[Run, ...]:
    """The runs a segment table carries."""
    return tuple(parse_run(text) for text in _texts(table, _KEY_RUNS))


def segment_covers(table: pa.Table) -> tuple[ObjectKey, ...]:
    """The keys of the segments that this one replaces."""
    try:
        return tuple(ObjectKey(text) for text in _texts(table, _KEY_COVERS))
    except InvalidInput as exc:
        raise IntegrityError(f"the segment covers no valid key: {exc}") from exc


def _texts(table: pa.Table, key: bytes) -> list[str]:
    raw = (table.schema.metadata or {}).get(key, b"[]")
    values = parse_json(raw, what=key.decode(), max_items=_MAX_TEXT_ITEMS)
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise IntegrityError(f"{key.decode()} is not a list of texts")
    return values


def _row(record: dict[str, Any]) -> ManifestRow:
    try:
        row = ManifestRow(entry=_entry(record), object=_object(record))
    except InvalidInput as exc:
        raise IntegrityError(f"segment row of {ascii(record['sample_id'])[:120]}: {exc.message}") from exc
    entry = row.entry
    if not (entry.offset >= 0 and 0 < entry.header_length <= entry.length <= row.object.size_bytes - entry.offset):
        raise IntegrityError(f"segment row of {entry.sample_id.text!r} lies outside its object")
    return row


def _entry(record: dict[str, Any]) -> SampleEntry:
    return SampleEntry(
        sample_id=SampleId(record["sample_id"]),
        offset=record["offset"],
        length=record["length"],
        header_length=record["header_length"],
        header_digest=Digest(record["header_digest"].hex()),
        schema=record["schema"],
        meta=record["meta"],
        run=Digest(record["run"].hex()),
        input_digest=Digest(record["input_digest"].hex()) if record["input_digest"] is not None else None,
        provenance=record["provenance"],
        time_ns=record["time_ns"],
    )


def _object(record: dict[str, Any]) -> ObjectFacts:
    return ObjectFacts(
        key=ObjectKey(record["key"]),
        size_bytes=record["object_size"],
        digest=Digest(record["object_digest"].hex()),
        crc64nvme=record["crc64nvme"],
        etag=record["etag"],
        version_id=record["version_id"],
        writer=WriterId(record["writer"]),
    )


def _tombstone(record: dict[str, Any]) -> Tombstone:
    if record["offset"] < 0:
        raise IntegrityError(f"segment tombstone of {ascii(record['sample_id'])[:120]} has a negative offset")
    try:
        return Tombstone(
            sample_id=SampleId(record["sample_id"]),
            key=ObjectKey(record["key"]),
            offset=record["offset"],
            reason=record["reason"] or "superseded",
        )
    except InvalidInput as exc:
        raise IntegrityError(f"segment tombstone of {ascii(record['sample_id'])[:120]}: {exc.message}") from exc
