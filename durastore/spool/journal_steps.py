"""The steps of a pack's life as SQL, to be run inside one transaction of the journal.

Duty: make each step only from the state it belongs to, so that a record never says more than was established (INV-2).
Must never open a transaction, and never move a pack forward by more than one state, unless its object gave every byte
back (`prove_without_file`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from durastore.clock import Stamp
from durastore.errors import DurastoreError
from durastore.formats.journal import render_entry, render_evidence
from durastore.model import Evidence, EvidenceLevel, ObjectKey, PackState, SampleEntry, SampleId
from durastore.spool.journal_rows import load_pack
from durastore.spool.records import (
    SIDE_STATES,
    PackFile,
    PackRecord,
    Replacement,
    SealFacts,
    UploadAnswer,
    is_step_back,
)

__all__ = [
    "drop_belongings",
    "drop_entries",
    "grow_pack",
    "insert_entries",
    "insert_pack",
    "manifest_pack",
    "prove_without_file",
    "reclaim_pack",
    "replace_pack",
    "require_state",
    "seal_pack",
    "step_back",
    "upload_pack",
    "verify_pack",
]

# What a pack of each state may still claim; everything else is taken back with a step back.
_UPLOAD_CLAIMS = (
    "write_id = NULL, etag = NULL, version_id = NULL, uploaded_at = NULL, uploaded_server_time_s = NULL,"
    " part_bytes = NULL"
)
_PROOF_CLAIMS = "evidence = NULL, manifested_in = NULL, manifested_at = NULL, intent = NULL"
# With every byte read back and equal to ours, it does not matter which doubt there was.
_MAYBE_REMOTE = (
    PackState.UPLOADED,
    PackState.VERIFIED,
    PackState.MANIFESTED,
    PackState.UNKNOWN,
    PackState.CONFLICT,
    PackState.LOST,
)
_TAKEN_BACK = {
    PackState.SEALED: f"{_UPLOAD_CLAIMS}, {_PROOF_CLAIMS}",
    PackState.UPLOADED: _PROOF_CLAIMS,
    PackState.VERIFIED: "manifested_in = NULL, manifested_at = NULL, intent = NULL",
}
_REPLACE_FILE = (
    "UPDATE packs SET state = 'sealed', sample_count = 0, name = ?, writer = ?, seq = ?,"  # noqa: S608 - constants
    f" size_bytes = ?, digest = ?, crc64nvme = ?, key = ?, identity = ?, reason = ?, {_TAKEN_BACK[PackState.SEALED]}"
    " WHERE pack_id = ?"
)
_DROP_SUPERSEDED = (
    "DELETE FROM samples WHERE (pack_id, offset) IN"
    " (SELECT packs.pack_id, stone.offset FROM tombstones AS stone JOIN packs ON packs.key = stone.key"
    " WHERE stone.pack_id = ? AND stone.reason = 'superseded')"
)
_COUNT_AGAIN = (
    "UPDATE packs SET sample_count = (SELECT count(*) FROM samples WHERE samples.pack_id = packs.pack_id)"
    " WHERE key IN (SELECT key FROM tombstones WHERE pack_id = ?)"
)
# Of samples whose pack gets another file: the rows under the old key, of which the object may be gone, leave with the
# segment that lists the new ones. A row that another pack supersedes is superseded at its new place as well.
_MOVE_ROW = (
    "INSERT OR IGNORE INTO tombstones (pack_id, sample_id, key, offset, reason)"
    " SELECT pack_id, sample_id, :old_key, offset, 'moved' FROM samples"
    " WHERE pack_id = :pack_id AND header_digest = :digest"
)
_FOLLOW_ROW = (
    "INSERT OR IGNORE INTO tombstones (pack_id, sample_id, key, offset, reason)"
    " SELECT stone.pack_id, stone.sample_id, :key, :offset, stone.reason FROM tombstones AS stone"
    " JOIN samples ON samples.sample_id = stone.sample_id AND samples.offset = stone.offset"
    " WHERE samples.pack_id = :pack_id AND samples.header_digest = :digest"
    " AND stone.key = :old_key AND stone.reason = 'superseded'"
)
_INSERT_ENTRY = "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def require_state(conn: sqlite3.Connection, pack_id: int, *states: PackState) -> PackRecord:
    """The pack, if it is in one of `states`; `DurastoreError` otherwise: the caller's order of steps is wrong."""
    record = load_pack(conn, pack_id)
    if record.state not in states:
        wanted = " or ".join(state.value for state in states)
        raise DurastoreError(f"pack {record.name} is {record.state.value}, this step needs {wanted}")
    return record


def insert_pack(conn: sqlite3.Connection, file: PackFile, *, facts: SealFacts | None) -> int:
    """A new pack, OPEN or (with `facts`) SEALED; raises the writer's highest number with it."""
    row = conn.execute(
        "INSERT INTO packs (name, kind, state, writer, seq, size_bytes, digest, crc64nvme, key, identity)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            file.name,
            file.kind.value,
            (PackState.OPEN if facts is None else PackState.SEALED).value,
            file.writer.hex,
            file.seq,
            *((0, None, None, None, None) if facts is None else _seal_values(facts)),
        ),
    )
    _note_pack_seq(conn, file)
    if row.lastrowid is None:
        raise DurastoreError("SQLite gave no id to a new pack")
    return row.lastrowid


def _note_pack_seq(conn: sqlite3.Connection, file: PackFile) -> None:
    conn.execute(
        "INSERT INTO writers (writer, last_pack_seq) VALUES (?, ?)"
        " ON CONFLICT (writer) DO UPDATE SET last_pack_seq = max(last_pack_seq, excluded.last_pack_seq)",
        (file.writer.hex, file.seq),
    )


def _seal_values(facts: SealFacts) -> tuple[int, str, str, str, str]:
    return facts.size_bytes, facts.digest.hex, facts.crc64nvme, facts.key.text, facts.identity.render()


def insert_entries(conn: sqlite3.Connection, entries: Sequence[SampleEntry], *, pack_id: int) -> None:
    """Rows of samples whose bytes are already durable in the pack's file."""
    conn.executemany(_INSERT_ENTRY, [render_entry(pack_id, entry) for entry in entries])
    conn.execute("UPDATE packs SET sample_count = sample_count + ? WHERE pack_id = ?", (len(entries), pack_id))


def drop_entries(conn: sqlite3.Connection, pack_id: int, *, sample_ids: Sequence[SampleId]) -> None:
    """Rows leave a pack whose object keeps their bytes; with its segment a tombstone says so, lest a manifest that is
    rebuilt from the objects lists them.
    """
    conn.executemany(
        "INSERT OR IGNORE INTO tombstones (pack_id, sample_id, key, offset, reason)"
        " SELECT pack_id, sample_id, key, offset, 'superseded' FROM samples JOIN packs USING (pack_id)"
        " WHERE pack_id = ? AND sample_id = ? AND key IS NOT NULL",
        [(pack_id, name.text) for name in sample_ids],
    )
    conn.executemany(
        "DELETE FROM samples WHERE pack_id = ? AND sample_id = ?", [(pack_id, name.text) for name in sample_ids]
    )
    conn.execute(
        "UPDATE packs SET sample_count = (SELECT count(*) FROM samples WHERE samples.pack_id = packs.pack_id)"
        " WHERE pack_id = ?",
        (pack_id,),
    )


def grow_pack(conn: sqlite3.Connection, pack_id: int, *, size_bytes: int) -> int:
    """An OPEN pack's file is durable up to `size_bytes`; returns by how much it grew. It never shrinks."""
    record = require_state(conn, pack_id, PackState.OPEN)
    grown_by = size_bytes - (record.size_bytes or 0)
    if grown_by < 0:
        raise DurastoreError(f"pack {record.name} would shrink by {-grown_by} bytes")
    conn.execute("UPDATE packs SET size_bytes = ? WHERE pack_id = ?", (size_bytes, pack_id))
    return grown_by


def seal_pack(conn: sqlite3.Connection, pack_id: int, *, facts: SealFacts) -> None:
    """OPEN → SEALED."""
    require_state(conn, pack_id, PackState.OPEN)
    conn.execute(
        "UPDATE packs SET state = 'sealed', size_bytes = ?, digest = ?, crc64nvme = ?, key = ?, identity = ?"
        " WHERE pack_id = ?",
        (*_seal_values(facts), pack_id),
    )


def upload_pack(conn: sqlite3.Connection, pack_id: int, *, reply: UploadAnswer, at: Stamp) -> None:
    """SEALED (or UNKNOWN) → UPLOADED, with what the endpoint answered and how the bytes were cut."""
    require_state(conn, pack_id, PackState.SEALED, PackState.UNKNOWN)
    conn.execute(
        "UPDATE packs SET state = 'uploaded', etag = ?, version_id = ?, uploaded_at = ?,"
        " uploaded_server_time_s = ?, part_bytes = ? WHERE pack_id = ?",
        (reply.etag, reply.version_id, at.render(), reply.server_time_s, reply.part_bytes, pack_id),
    )


def verify_pack(conn: sqlite3.Connection, pack_id: int, *, evidence: Evidence) -> None:
    """UPLOADED → VERIFIED, or younger evidence for a pack that is further on. `DurastoreError` if it is not evidence of
    this very object: a wrong digest must not pass for a stale state.
    """
    record = require_state(conn, pack_id, PackState.UPLOADED, PackState.VERIFIED, PackState.MANIFESTED)
    is_same = (evidence.key, evidence.size_bytes) == (record.key, record.size_bytes)
    if not is_same or (evidence.digest is not None and evidence.digest != record.digest):
        raise DurastoreError(f"pack {record.name}: the evidence is of another object ({evidence.key})")
    if evidence.level < EvidenceLevel.ATTESTED:
        raise DurastoreError(f"pack {record.name}: a listing is no proof")  # INV-5
    state = PackState.VERIFIED if record.state is PackState.UPLOADED else record.state
    conn.execute(
        "UPDATE packs SET state = ?, evidence = ? WHERE pack_id = ?", (state.value, render_evidence(evidence), pack_id)
    )


def manifest_pack(conn: sqlite3.Connection, pack_id: int, *, segment_key: ObjectKey, at: Stamp) -> None:
    """VERIFIED → MANIFESTED; its tombstones were in the same segment, and the rows they supersede leave: whatever
    becomes of the older pack, what it held of them must not be listed again. The tombstones stay as long as the pack,
    for another segment, where the server forgets this one.
    """
    require_state(conn, pack_id, PackState.VERIFIED)
    conn.execute(
        "UPDATE packs SET state = 'manifested', manifested_in = ?, manifested_at = ? WHERE pack_id = ?",
        (segment_key.text, at.render(), pack_id),
    )
    conn.execute(_DROP_SUPERSEDED, (pack_id,))
    conn.execute(_COUNT_AGAIN, (pack_id,))


def step_back(conn: sqlite3.Connection, pack_id: int, *, state: PackState, reason: str) -> None:
    """To a state that says less. What the old state claimed beyond that is taken back with it."""
    record = load_pack(conn, pack_id)
    if not is_step_back(record.state, state):
        raise DurastoreError(f"pack {record.name} cannot go back from {record.state.value} to {state.value}")
    if record.digest is None and state not in (PackState.LOST, PackState.QUARANTINED):
        raise DurastoreError(f"pack {record.name} was never sealed and cannot become {state.value}")
    # a side state keeps what was recorded (it has to be settled), but proves nothing and frees nothing
    taken_back = "evidence = NULL, intent = NULL" if state in SIDE_STATES else _TAKEN_BACK[state]
    conn.execute(
        f"UPDATE packs SET state = ?, reason = ?, {taken_back} WHERE pack_id = ?",  # noqa: S608 - one of our constants
        (state.value, reason, pack_id),
    )


def prove_without_file(conn: sqlite3.Connection, pack_id: int, *, evidence: Evidence) -> None:
    """A pack whose local file is gone, and whose object gave every byte back: VERIFIED, or RECLAIMED if its rows are
    in a manifest segment already.
    """
    record = require_state(conn, pack_id, *_MAYBE_REMOTE)
    if evidence.level is not EvidenceLevel.READ_BACK or (evidence.key, evidence.size_bytes, evidence.digest) != (
        record.key,
        record.size_bytes,
        record.digest,
    ):
        raise DurastoreError(f"pack {record.name} has no file, and nothing proves its object")
    conn.execute(
        "UPDATE packs SET state = 'verified', evidence = ?, etag = ?, version_id = ? WHERE pack_id = ?",
        (render_evidence(evidence), evidence.etag, evidence.version_id, pack_id),
    )
    if record.manifested_in is not None:
        reclaim_pack(conn, pack_id)


def reclaim_pack(conn: sqlite3.Connection, pack_id: int) -> None:
    """→ RECLAIMED: its samples leave. The pack's own row stays until the next open, for those who wait on it."""
    drop_belongings(conn, pack_id)
    conn.execute("DELETE FROM samples WHERE pack_id = ?", (pack_id,))
    conn.execute("UPDATE packs SET state = 'reclaimed', intent = NULL, sample_count = 0 WHERE pack_id = ?", (pack_id,))


def drop_belongings(conn: sqlite3.Connection, pack_id: int) -> None:
    """What refers to a pack that needs it no more; not its samples."""
    for table in ("parts", "uploads", "tombstones"):  # rows before what they refer to
        conn.execute(f"DELETE FROM {table} WHERE pack_id = ?", (pack_id,))  # noqa: S608 - one of three constants


def replace_pack(conn: sqlite3.Connection, pack_id: int, *, new: Replacement, reason: str) -> int | None:
    """The pack's file becomes `new`, SEALED, under the same pack id; entries that are not in `new` become a LOST pack.

    Returns the id of that LOST pack, or None if nothing was lost. The new file must be durable under its name.
    """
    old = load_pack(conn, pack_id)
    conn.execute("DELETE FROM parts WHERE pack_id = ?", (pack_id,))
    conn.execute("DELETE FROM uploads WHERE pack_id = ?", (pack_id,))
    conn.execute(
        _REPLACE_FILE, (new.file.name, new.file.writer.hex, new.file.seq, *_seal_values(new.facts), reason, pack_id)
    )
    _note_pack_seq(conn, new.file)
    if old.key is not None:
        _move_rows(conn, old.key, pack_id=pack_id, new=new)
    # what is saved is named by its content: the digest of a sample's header covers its id and all of its bytes
    conn.executemany(
        "DELETE FROM samples WHERE pack_id = ? AND header_digest = ?",
        [(pack_id, entry.header_digest.hex) for entry in new.entries],
    )
    (lost_count,) = conn.execute("SELECT count(*) FROM samples WHERE pack_id = ?", (pack_id,)).fetchone()
    lost_id = _split_lost(conn, old, lost_count=lost_count, reason=reason) if lost_count else None
    insert_entries(conn, new.entries, pack_id=pack_id)
    return lost_id


def _move_rows(conn: sqlite3.Connection, old_key: ObjectKey, *, pack_id: int, new: Replacement) -> None:
    rows = [
        {
            "pack_id": pack_id,
            "digest": entry.header_digest.hex,
            "old_key": old_key.text,
            "key": new.facts.key.text,
            "offset": entry.offset,
        }
        for entry in new.entries
    ]
    conn.executemany(_FOLLOW_ROW, rows)
    conn.executemany(_MOVE_ROW, rows)


def _split_lost(conn: sqlite3.Connection, old: PackRecord, *, lost_count: int, reason: str) -> int:
    """The rows still under the old pack id go to a LOST pack of the old name and key, for a look in the bucket."""
    row = conn.execute(
        "INSERT INTO packs (name, kind, state, writer, seq, size_bytes, digest, crc64nvme, key, write_id,"
        " manifested_in, reason, sample_count) VALUES (?, ?, 'lost', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            old.name,
            old.kind.value,
            old.writer.hex,
            old.seq,
            old.size_bytes,
            old.digest.hex if old.digest is not None else None,
            old.crc64nvme,
            old.key.text if old.key is not None else None,
            old.write_id,
            old.manifested_in.text if old.manifested_in is not None else None,
            reason,
            lost_count,
        ),
    )
    conn.execute("UPDATE samples SET pack_id = ? WHERE pack_id = ?", (row.lastrowid, old.pack_id))
    # what a lost sample supersedes stays in the view: the segment of the saved ones must not take it out
    conn.execute(
        "UPDATE tombstones SET pack_id = ?1 WHERE pack_id = ?2"
        " AND sample_id IN (SELECT sample_id FROM samples WHERE pack_id = ?1)",
        (row.lastrowid, old.pack_id),
    )
    if row.lastrowid is None:
        raise DurastoreError("SQLite gave no id to a new pack")
    return row.lastrowid
