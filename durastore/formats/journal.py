"""The journal's SQL: tables, version, and the text forms of the values kept in its columns.

Duty: the one description of the journal file (`docs/format/journal.md` explains it), and conversion between its columns
and values of the model. No I/O. Must never guess: a newer major version or an odd column value is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from durastore.errors import FormatUnsupported, IntegrityError, InvalidInput
from durastore.model import Digest, Evidence, EvidenceLevel, ObjectKey, SampleEntry, SampleId, parse_json, render_json

__all__ = [
    "ADDED_COLUMNS",
    "APPLICATION_ID",
    "MAJOR",
    "MINOR",
    "SAMPLE_COLUMNS",
    "SCHEMA",
    "USER_VERSION",
    "as_count",
    "as_text",
    "check_version",
    "parse_entry",
    "parse_evidence",
    "render_entry",
    "render_evidence",
]

APPLICATION_ID = 0x64757261
"""`dura`, in the SQLite header, so that `file` and a careless open tell this file from another database."""
MAJOR, MINOR = 1, 1
USER_VERSION = MAJOR * 100 + MINOR
"""SQLite's `user_version`. A higher major is refused; a higher minor only adds what may be ignored."""
ADDED_COLUMNS = (("packs", "part_bytes", "INTEGER"),)
"""Table, column and type of what minor versions added (1.01): a journal without one is older, not damaged. All may be
NULL, and NULL says what a row of the older version could say: not known."""

SAMPLE_COLUMNS = (
    "offset, sample_id, length, header_length, header_digest, schema, meta, run, input_digest, provenance, time_ns"
)

SCHEMA: tuple[str, ...] = (
    """
CREATE TABLE facts (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID
""",
    """
CREATE TABLE runs (
    digest TEXT PRIMARY KEY,
    text TEXT NOT NULL
) WITHOUT ROWID
""",
    # the highest numbers a writer has used; they outlive its packs, so that a rolled-back journal shows
    """
CREATE TABLE writers (
    writer TEXT PRIMARY KEY,
    last_pack_seq INTEGER NOT NULL DEFAULT 0,
    last_segment_seq INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID
""",
    # AUTOINCREMENT: a pack id is never given out twice, also after the pack was reclaimed
    """
CREATE TABLE packs (
    pack_id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('tar', 'safetensors')),
    state TEXT NOT NULL CHECK (state IN ('open', 'sealed', 'uploaded', 'verified', 'manifested', 'reclaimed',
                                         'unknown', 'conflict', 'quarantined', 'lost')),
    writer TEXT NOT NULL,
    seq INTEGER NOT NULL,
    size_bytes INTEGER,
    digest TEXT,
    crc64nvme TEXT,
    key TEXT,
    identity TEXT,
    write_id TEXT,
    etag TEXT,
    version_id TEXT,
    uploaded_at TEXT,
    uploaded_server_time_s REAL,
    part_bytes INTEGER,
    evidence TEXT,
    manifested_in TEXT,
    manifested_at TEXT,
    intent TEXT,
    reason TEXT,
    sample_count INTEGER NOT NULL DEFAULT 0,
    CHECK (state = 'open' OR state = 'lost' OR digest IS NOT NULL OR state = 'quarantined'),
    UNIQUE (writer, seq)
)
""",
    "CREATE INDEX packs_by_state ON packs (state)",
    """
CREATE TABLE samples (
    pack_id INTEGER NOT NULL REFERENCES packs (pack_id),
    offset INTEGER NOT NULL,
    sample_id TEXT NOT NULL,
    length INTEGER NOT NULL,
    header_length INTEGER NOT NULL,
    header_digest TEXT NOT NULL,
    schema TEXT NOT NULL,
    meta TEXT NOT NULL,
    run TEXT NOT NULL,
    input_digest TEXT,
    provenance TEXT NOT NULL,
    time_ns INTEGER NOT NULL,
    PRIMARY KEY (pack_id, offset)
) WITHOUT ROWID
""",
    "CREATE INDEX samples_by_id ON samples (sample_id)",
    """
CREATE TABLE uploads (
    pack_id INTEGER PRIMARY KEY REFERENCES packs (pack_id),
    upload_id TEXT NOT NULL,
    part_bytes INTEGER NOT NULL
)
""",
    """
CREATE TABLE parts (
    pack_id INTEGER NOT NULL REFERENCES uploads (pack_id),
    number INTEGER NOT NULL,
    etag TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    crc64nvme TEXT NOT NULL,
    PRIMARY KEY (pack_id, number)
) WITHOUT ROWID
""",
    """
CREATE TABLE tombstones (
    pack_id INTEGER NOT NULL REFERENCES packs (pack_id),
    sample_id TEXT NOT NULL,
    key TEXT NOT NULL,
    offset INTEGER NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (pack_id, sample_id, key, offset)
) WITHOUT ROWID
""",
)


def check_version(application_id: int, user_version: int) -> None:
    """Pass if these two header values are of a journal this code understands; `FormatUnsupported` otherwise."""
    if application_id != APPLICATION_ID:
        raise FormatUnsupported(f"not a durastore journal (application id {application_id:#x})")
    if user_version // 100 > MAJOR:
        raise FormatUnsupported(
            f"the journal has format {user_version // 100}.{user_version % 100:02d}, known is {MAJOR}",
            hint="open it with a newer durastore; nothing was changed",
        )
    if user_version < 100:
        raise FormatUnsupported(f"the journal has no known format ({user_version})")


Column = str | int | None


def render_entry(pack_id: int, entry: SampleEntry) -> tuple[Column, ...]:
    """The values of one `samples` row: the pack id, then `SAMPLE_COLUMNS`."""
    return (
        pack_id,
        entry.offset,
        entry.sample_id.text,
        entry.length,
        entry.header_length,
        entry.header_digest.hex,
        entry.schema,
        entry.meta,
        entry.run.hex,
        entry.input_digest.hex if entry.input_digest is not None else None,
        entry.provenance,
        entry.time_ns,
    )


def parse_entry(row: Sequence[object]) -> SampleEntry:
    """The entry in a row of `SAMPLE_COLUMNS`. `IntegrityError` if a value cannot be one."""
    try:
        offset, sample_id, length, header_length, header_digest, schema, meta, run, input_digest, origin, time_ns = row
        return SampleEntry(
            offset=as_count(offset),
            sample_id=SampleId(as_text(sample_id)),
            length=as_count(length),
            header_length=as_count(header_length),
            header_digest=Digest(as_text(header_digest)),
            schema=as_text(schema),
            meta=as_text(meta),
            run=Digest(as_text(run)),
            input_digest=Digest(as_text(input_digest)) if input_digest is not None else None,
            provenance=as_text(origin),
            time_ns=as_count(time_ns),
        )
    except (TypeError, ValueError, InvalidInput) as exc:
        raise IntegrityError(f"a sample row of the journal cannot be read: {exc}") from exc


def render_evidence(evidence: Evidence) -> str:
    """Canonical JSON of evidence; equal evidence gives equal text."""
    return render_json(
        {
            "level": evidence.level.name,
            "key": evidence.key.text,
            "size_bytes": evidence.size_bytes,
            "digest": evidence.digest.hex if evidence.digest is not None else None,
            "etag": evidence.etag,
            "version_id": evidence.version_id,
            "taken": evidence.taken,
            "server_time_s": evidence.server_time_s,
            "probe": evidence.probe,
        }
    )


def parse_evidence(text: str) -> Evidence:
    """Inverse of `render_evidence`. `IntegrityError` on anything else."""
    try:
        value = parse_json(text, what="evidence record")
        server_time_s = value["server_time_s"]
        return Evidence(
            level=EvidenceLevel[as_text(value["level"])],
            key=ObjectKey(as_text(value["key"])),
            size_bytes=as_count(value["size_bytes"]),
            digest=Digest(as_text(value["digest"])) if value["digest"] is not None else None,
            etag=as_text(value["etag"]),
            version_id=as_text(value["version_id"]) if value["version_id"] is not None else None,
            taken=as_text(value["taken"]),
            server_time_s=_number(server_time_s) if server_time_s is not None else None,
            probe=as_text(value["probe"]) if value["probe"] is not None else None,
        )
    except (TypeError, ValueError, KeyError, OverflowError, InvalidInput) as exc:
        raise IntegrityError(f"an evidence record of the journal cannot be read: {exc}") from exc


def as_text(value: object) -> str:
    """A column's value that has to be text; TypeError if it is none (SQLite puts any value into any column)."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def _number(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"expected a number, found {type(value).__name__}")
    return float(value)  # type: ignore[arg-type]  # one of the two types just named


def as_count(value: object) -> int:
    """A column's value that has to be a whole number from zero; TypeError if it is none."""
    if type(value) is not int or value < 0:  # bool is an int too, and no count
        raise TypeError(f"expected a whole number, found {value!r:.40}")
    return value
