"""A failure list: an immutable Parquet file of what extractions of one run could not do, and of what was settled since.

Duty: `docs/format/failures.md` as code. It tells people and `--retry-failed`, and is never a word about what is stored:
a row that settles a failure only says where in the manifest to look. Must never hand out a text that its writer would
not have written (control characters, lengths, ids), nor the list of another run as this run's, and never do I/O.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from durastore.errors import IntegrityError, InvalidInput
from durastore.formats.parquet_file import NOT_PARQUET, check_format, check_types, open_parquet
from durastore.model import Digest, SampleId

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FAILURE_COLUMNS",
    "MAX_LIST_BYTES",
    "MAX_LIST_ROWS",
    "TEXT_LIMITS",
    "FailedSample",
    "FailureList",
    "SettledFailure",
    "failure_schema",
    "failure_table",
    "parse_failure_table",
    "plain_text",
    "render_failure_list",
]

_FORMAT = "1"
MAX_LIST_ROWS = 100_000
MAX_LIST_BYTES = 128 << 20
"""More than `MAX_LIST_ROWS` of the longest texts come to, compressed or not."""
_MAX_NUMBER = 1 << 62
TEXT_LIMITS = {"stage": 40, "reason": 500, "worker": 100, "host": 100}

# name -> (type, required in a failure, required in a settlement)
FAILURE_COLUMNS: dict[str, tuple[str, bool, bool]] = {
    "kind": ("string", True, True),
    "sample_id": ("string", False, False),
    "line": ("int64", True, True),
    "input_digest": ("digest", False, False),
    "stage": ("string", True, False),
    "reason": ("string", True, False),
    "attempts": ("int64", True, False),
    "runs": ("int64", True, False),
    "worker": ("string", True, False),
    "host": ("string", True, False),
    "time_ns": ("int64", True, True),
    "stored_id": ("string", False, True),
}
_TEXTS = tuple(name for name, (kind, _, _) in FAILURE_COLUMNS.items() if kind == "string")
_IDS = ("sample_id", "stored_id")
_KEY_FORMAT, _KEY_RUN = b"durastore.failures", b"durastore.run"
# What moves a terminal's cursor, turns its text round, or cannot be seen.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSample:
    """One sample that could not be done, as somebody told it. Texts as `plain_text` leaves them."""

    sample_id: SampleId | None
    """None: a line of the input that could not be read."""
    line: int
    input_digest: Digest | None
    stage: str
    reason: str
    attempts: int
    runs: int
    worker: str
    host: str
    time_ns: int

    def record(self) -> dict[str, Any]:
        """As a row of `FAILURE_COLUMNS`."""
        return {
            "kind": "failed",
            "sample_id": self.sample_id.text if self.sample_id is not None else None,
            "line": self.line,
            "input_digest": bytes.fromhex(self.input_digest.hex) if self.input_digest is not None else None,
            **{name: getattr(self, name) for name in (*TEXT_LIMITS, "attempts", "runs", "time_ns")},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledFailure:
    """A failure that its writer takes for settled, because it stored a sample. Whether it did, the manifest tells."""

    sample_id: SampleId | None
    """Of the failure; None: that of a line."""
    line: int
    time_ns: int
    """Of the failure: it and earlier ones of the same sample are meant."""
    stored_id: SampleId
    """The sample that was stored: of a line that could not be read, whatever stands there now."""

    def record(self) -> dict[str, Any]:
        """As a row of `FAILURE_COLUMNS`."""
        return {
            "kind": "settled",
            "sample_id": self.sample_id.text if self.sample_id is not None else None,
            "line": self.line,
            "time_ns": self.time_ns,
            "stored_id": self.stored_id.text,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureList:
    """What one list says, of one run."""

    run: Digest
    failed: tuple[FailedSample, ...] = ()
    settled: tuple[SettledFailure, ...] = ()


def plain_text(text: str, *, limit: int) -> str:
    """The text on one line, of at most `limit` characters, without any that a terminal would act on or not show."""
    seen = _UNSEEN.sub("?", " ".join(text.encode("utf-8", "replace").decode().split()))
    return seen if len(seen) <= limit else f"{seen[: limit - 3]}..."


def failure_schema() -> pa.Schema:
    """The columns as an Arrow schema."""
    import pyarrow as pa

    types = {"string": pa.string(), "int64": pa.int64(), "digest": pa.binary(16)}
    return pa.schema([pa.field(name, types[kind]) for name, (kind, _, _) in FAILURE_COLUMNS.items()])


def failure_table(rows: Sequence[FailedSample | SettledFailure]) -> pa.Table:
    """The rows as a table of `FAILURE_COLUMNS`."""
    import pyarrow as pa

    records, schema = [row.record() for row in rows], failure_schema()
    return pa.Table.from_arrays(
        [pa.array([record.get(field.name) for record in records], type=field.type) for field in schema], schema=schema
    )


def render_failure_list(content: FailureList) -> bytes:
    """The list's bytes. Equal content, equal bytes (one pyarrow). `InvalidInput` where a reader would refuse it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = failure_table([*content.failed, *content.settled])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, failure_schema(), compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_KEY_FORMAT.decode(): _FORMAT, _KEY_RUN.decode(): content.run.hex})
    data = bytes(sink.getvalue())
    try:
        parse_failure_table(data, run=content.run)
    except IntegrityError as exc:
        raise InvalidInput(f"these failures make no list: {exc.message}") from exc
    return data


def parse_failure_table(data: bytes, *, run: Digest) -> pa.Table:
    """The list of this run as a table of `FAILURE_COLUMNS`, every value checked; unknown columns are ignored.

    `IntegrityError` on anything that no writer of durastore writes, and on the list of another run;
    `FormatUnsupported` for a newer major.
    """
    import pyarrow as pa

    try:
        head = open_parquet(data)
        _check_head(head.schema_arrow.metadata or {}, run=run)
        if head.metadata.num_rows > MAX_LIST_ROWS:
            raise IntegrityError(f"it has {head.metadata.num_rows} rows, more than {MAX_LIST_ROWS}")
        missing = FAILURE_COLUMNS.keys() - set(head.schema_arrow.names)
        if missing:
            raise IntegrityError(f"it has no column {', '.join(sorted(missing))}")
        table = open_parquet(data, repeated=_TEXTS).read(columns=list(FAILURE_COLUMNS)).select(list(FAILURE_COLUMNS))
        table.validate(full=True)
    except (pa.ArrowException, *NOT_PARQUET) as exc:
        raise IntegrityError(f"it is no failure list: {plain_text(str(exc), limit=200)}") from exc
    check_types(table, failure_schema(), what="it")
    _check_nulls(table)
    _check_values(table)
    return table.cast(failure_schema())


def _check_head(metadata: dict[bytes, bytes], *, run: Digest) -> None:
    check_format(metadata.get(_KEY_FORMAT), known=_FORMAT, what="it")
    if metadata.get(_KEY_RUN) != run.hex.encode():
        raise IntegrityError("it is of another run than the bucket's")


def _check_nulls(table: pa.Table) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = table.column("kind").cast(pa.string())
    known = pc.is_in(kinds, value_set=pa.array(["failed", "settled"]))
    if table.num_rows and (kinds.null_count or not pc.all(known).as_py()):
        raise IntegrityError("it has a row of unknown kind")
    failed, settled = (table.filter(pc.equal(kinds, pa.scalar(kind))) for kind in ("failed", "settled"))
    for name, (_, in_failed, in_settled) in FAILURE_COLUMNS.items():
        if (in_failed and failed.column(name).null_count) or (in_settled and settled.column(name).null_count):
            raise IntegrityError(f"it has rows without {name}")


def _check_values(table: pa.Table) -> None:
    import pyarrow.compute as pc

    for name in ("line", "attempts", "runs", "time_ns"):
        bounds: Any = pc.min_max(table.column(name)).as_py()
        if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] < _MAX_NUMBER:
            raise IntegrityError(f"column {name} has an impossible number")
    for name in _TEXTS:
        texts: Any = table.column(name).unique()
        for text in texts.to_pylist():
            if text is not None:
                _check_text(name, text)
    _check_settled(table)


def _check_settled(table: pa.Table) -> None:
    """A sample's own row settles its failure, and no other's."""
    import pyarrow as pa
    import pyarrow.compute as pc

    own, stored = (table.column(name).cast(pa.string()) for name in _IDS)
    if pc.any(pc.not_equal(own, stored)).as_py():
        raise IntegrityError("it settles a sample's failure by another sample")


def _check_text(name: str, text: str) -> None:
    if name in _IDS:
        try:
            SampleId(text)
        except InvalidInput as exc:
            raise IntegrityError(f"it names {exc.message}") from exc
    elif name in TEXT_LIMITS and (len(text) > TEXT_LIMITS[name] or _UNSEEN.search(text)):
        raise IntegrityError(f"a text of column {name} is too long or has control characters")
