"""What the journal keeps beside the packs: multipart sessions, tombstones, segment numbers, writers, runs, facts.

Duty: their SQL, to be run inside one transaction of the journal. Must never open a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from durastore.errors import DurastoreError, IntegrityError, InvalidInput
from durastore.formats.journal import as_count, as_text
from durastore.formats.runs import parse_run
from durastore.formats.upload_session import PartRecord, UploadSession
from durastore.model import Digest, ObjectKey, Run, SampleId, Tombstone, WriterId
from durastore.spool.records import WriterRecord

__all__ = [
    "announce_segment",
    "announce_writer",
    "bury_rows",
    "last_seqs",
    "load_dead_rows",
    "load_runs",
    "load_session",
    "load_tombstones",
    "load_writers",
    "write_fact",
    "write_part",
    "write_session",
    "write_tombstones",
]


@contextmanager
def _understood(what: str) -> Iterator[None]:
    """Turns what an odd column value raises into `IntegrityError`."""
    try:
        yield
    except (TypeError, ValueError, InvalidInput) as exc:
        raise IntegrityError(f"{what} of the journal cannot be read: {exc}") from exc


# --- multipart sessions --------------------------------------------------------------------------------------------


def write_session(conn: sqlite3.Connection, pack_id: int, *, session: UploadSession | None) -> None:
    """The session of a pack becomes this one, parts included; None leaves it with none."""
    conn.execute("DELETE FROM parts WHERE pack_id = ?", (pack_id,))
    conn.execute("DELETE FROM uploads WHERE pack_id = ?", (pack_id,))
    if session is None:
        return
    conn.execute(
        "INSERT INTO uploads (pack_id, upload_id, part_bytes) VALUES (?, ?, ?)",
        (pack_id, session.upload_id, session.part_bytes),
    )
    for part in session.parts:
        write_part(conn, pack_id, part=part)


def write_part(conn: sqlite3.Connection, pack_id: int, *, part: PartRecord) -> None:
    """One acknowledged part. `DurastoreError` if the pack has no session."""
    if conn.execute("SELECT 1 FROM uploads WHERE pack_id = ?", (pack_id,)).fetchone() is None:
        raise DurastoreError(f"pack {pack_id} has no multipart upload on record")
    conn.execute(
        "INSERT OR REPLACE INTO parts (pack_id, number, etag, size_bytes, crc64nvme) VALUES (?, ?, ?, ?, ?)",
        (pack_id, part.number, part.etag, part.size_bytes, part.crc64nvme),
    )


def load_session(conn: sqlite3.Connection, pack_id: int) -> UploadSession | None:
    """The session of a pack with its parts in order. `IntegrityError` if the rows are not a session."""
    row = conn.execute("SELECT upload_id, part_bytes FROM uploads WHERE pack_id = ?", (pack_id,)).fetchone()
    if row is None:
        return None
    parts = conn.execute(
        "SELECT number, etag, size_bytes, crc64nvme FROM parts WHERE pack_id = ? ORDER BY number", (pack_id,)
    ).fetchall()
    with _understood("a multipart upload"):
        return UploadSession(
            upload_id=as_text(row[0]),
            part_bytes=as_count(row[1]),
            parts=tuple(
                PartRecord(
                    number=as_count(number),
                    etag=as_text(etag),
                    size_bytes=as_count(size_bytes),
                    crc64nvme=as_text(crc),
                )
                for number, etag, size_bytes, crc in parts
            ),
        )


# --- tombstones ----------------------------------------------------------------------------------------------------


def write_tombstones(conn: sqlite3.Connection, pack_id: int, *, tombstones: Iterable[Tombstone]) -> None:
    conn.executemany(
        "INSERT OR IGNORE INTO tombstones (pack_id, sample_id, key, offset, reason) VALUES (?, ?, ?, ?, ?)",
        [(pack_id, stone.sample_id.text, stone.key.text, stone.offset, stone.reason) for stone in tombstones],
    )


def bury_rows(conn: sqlite3.Connection, pack_id: int) -> None:
    """Tombstones for all rows of the pack, under the key that it has now."""
    conn.execute(
        "INSERT OR IGNORE INTO tombstones (pack_id, sample_id, key, offset, reason)"
        " SELECT pack_id, sample_id, key, offset, 'lost' FROM samples JOIN packs USING (pack_id)"
        " WHERE pack_id = ? AND key IS NOT NULL",
        (pack_id,),
    )


def load_dead_rows(conn: sqlite3.Connection, pack_id: int) -> list[SampleId]:
    """Samples of the pack whose rows under its key are taken out for good. A superseded row is not meant: it goes into
    a segment, and the tombstone that waits for it into another.
    """
    rows = conn.execute(
        "SELECT sample_id FROM samples JOIN packs USING (pack_id) WHERE pack_id = ? AND EXISTS"
        " (SELECT 1 FROM tombstones AS stone WHERE stone.sample_id = samples.sample_id AND stone.key = packs.key"
        " AND stone.offset = samples.offset AND stone.reason <> 'superseded')",
        (pack_id,),
    ).fetchall()
    with _understood("a sample"):
        return [SampleId(as_text(sample_id)) for (sample_id,) in rows]


def load_tombstones(conn: sqlite3.Connection, pack_id: int) -> list[Tombstone]:
    rows = conn.execute(
        "SELECT sample_id, key, offset, reason FROM tombstones WHERE pack_id = ? ORDER BY sample_id, key, offset",
        (pack_id,),
    ).fetchall()
    with _understood("a tombstone"):
        return [
            Tombstone(
                sample_id=SampleId(as_text(sample_id)),
                key=ObjectKey(as_text(key)),
                offset=as_count(offset),
                reason=as_text(reason),
            )
            for sample_id, key, offset, reason in rows
        ]


# --- segments and writers ------------------------------------------------------------------------------------------


def announce_segment(conn: sqlite3.Connection, writer: WriterId, *, seq: int) -> None:
    """The writer is about to put segment `seq`: the next number, or the last one again (`DurastoreError` otherwise)."""
    last = last_seqs(conn, writer)[1]
    if seq not in (last, last + 1) or seq < 1:
        raise DurastoreError(f"segment number {seq} of writer {writer} would leave a gap after {last}")
    conn.execute(
        "INSERT INTO writers (writer, last_segment_seq) VALUES (?, ?)"
        " ON CONFLICT (writer) DO UPDATE SET last_segment_seq = excluded.last_segment_seq",
        (writer.hex, seq),
    )


def announce_writer(conn: sqlite3.Connection, writer: WriterId) -> None:
    conn.execute("INSERT OR IGNORE INTO writers (writer) VALUES (?)", (writer.hex,))


def last_seqs(conn: sqlite3.Connection, writer: WriterId) -> tuple[int, int]:
    """The highest pack and segment number of this writer; zeros if it wrote nothing."""
    row = conn.execute("SELECT last_pack_seq, last_segment_seq FROM writers WHERE writer = ?", (writer.hex,)).fetchone()
    with _understood("a writer"):
        return (0, 0) if row is None else (as_count(row[0]), as_count(row[1]))


def load_writers(conn: sqlite3.Connection) -> list[WriterRecord]:
    rows = conn.execute("SELECT writer, last_pack_seq, last_segment_seq FROM writers ORDER BY writer").fetchall()
    with _understood("a writer"):
        return [
            WriterRecord(WriterId(as_text(writer)), as_count(pack_seq), as_count(segment_seq))
            for writer, pack_seq, segment_seq in rows
        ]


# --- facts and runs ------------------------------------------------------------------------------------------------


def write_fact(conn: sqlite3.Connection, name: str, *, value: str | None) -> None:
    if value is None:
        conn.execute("DELETE FROM facts WHERE name = ?", (name,))
    else:
        conn.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value))


def load_runs(conn: sqlite3.Connection) -> dict[Digest, Run]:
    """Runs by digest. `IntegrityError` if a text does not have the digest it is filed under."""
    runs: dict[Digest, Run] = {}
    for digest, text in conn.execute("SELECT digest, text FROM runs").fetchall():
        with _understood("a run"):
            run = parse_run(as_text(text))
        if run.digest.hex != digest:
            raise IntegrityError(f"the run {digest} of the journal has another digest")
        runs[run.digest] = run
    return runs
