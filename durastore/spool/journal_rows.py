"""Rows of the journal's `packs` table as values, and back.

Duty: the one place that knows the column order of a pack. No I/O. An odd value is `IntegrityError`, never a guess.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from durastore.clock import Stamp
from durastore.errors import DurastoreError, IntegrityError, InvalidInput
from durastore.formats.entry_columns import EntryColumns, parse_entry_columns
from durastore.formats.journal import SAMPLE_COLUMNS, as_count, parse_entry, parse_evidence
from durastore.fsio.identity import FileIdentity
from durastore.model import Digest, ObjectKey, PackKind, PackState, SampleEntry, SampleId, WriterId
from durastore.spool.records import PackFile, PackRecord

__all__ = [
    "PackLists",
    "count_states",
    "find_entries",
    "load_entries",
    "load_entry_columns",
    "load_pack",
    "load_packs",
    "parse_pack",
    "sum_sizes",
]

_PACK_COLUMNS = (
    "pack_id, name, kind, state, writer, seq, size_bytes, digest, crc64nvme, key, identity, write_id, etag, "
    "version_id, uploaded_at, uploaded_server_time_s, evidence, manifested_in, manifested_at, intent, reason, "
    "sample_count, part_bytes"
)


def parse_pack(row: Sequence[object]) -> PackRecord:
    """The record in a row of `_PACK_COLUMNS`. `IntegrityError` if a value cannot be one."""
    try:
        texts = {index: _optional_text(row[index]) for index in (7, 9, 10, 14, 16, 17, 18)}
        return PackRecord(
            pack_id=as_count(row[0]),
            name=_pack_name(row[1]),
            kind=PackKind(row[2]),
            state=PackState(row[3]),
            writer=WriterId(str(row[4])),
            seq=as_count(row[5]),
            size_bytes=as_count(row[6]) if row[6] is not None else None,
            digest=Digest(texts[7]) if texts[7] is not None else None,
            crc64nvme=_optional_text(row[8]),
            key=ObjectKey(texts[9]) if texts[9] is not None else None,
            identity=FileIdentity.parse(texts[10]) if texts[10] is not None else None,
            write_id=_optional_text(row[11]),
            etag=_optional_text(row[12]),
            version_id=_optional_text(row[13]),
            uploaded_at=Stamp.parse(texts[14]) if texts[14] is not None else None,
            uploaded_server_time_s=float(str(row[15])) if row[15] is not None else None,
            evidence=parse_evidence(texts[16]) if texts[16] is not None else None,
            manifested_in=ObjectKey(texts[17]) if texts[17] is not None else None,
            manifested_at=Stamp.parse(texts[18]) if texts[18] is not None else None,
            intent=_optional_text(row[19]),
            reason=_optional_text(row[20]),
            sample_count=as_count(row[21]),
            part_bytes=as_count(row[22]) if row[22] is not None else None,
        )
    except (TypeError, ValueError, InvalidInput) as exc:
        raise IntegrityError(f"a pack row of the journal cannot be read: {exc}") from exc


def _pack_name(value: object) -> str:
    if not isinstance(value, str) or PackFile.parse(value) is None:  # it is opened by this name
        raise ValueError(f"not a pack's file name: {value!r:.80}")
    return value


def _optional_text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def load_pack(conn: sqlite3.Connection, pack_id: int) -> PackRecord:
    """One pack. `DurastoreError` if the journal has no pack of that number (never had, or it was reclaimed)."""
    sql = f"SELECT {_PACK_COLUMNS} FROM packs WHERE pack_id = ?"  # noqa: S608 - a constant list of columns
    row = conn.execute(sql, (pack_id,)).fetchone()
    if row is None:
        raise DurastoreError(f"the journal has no pack {pack_id}")
    return parse_pack(row)


def load_packs(conn: sqlite3.Connection, states: Sequence[PackState]) -> list[PackRecord]:
    """The packs in one of `states`, or all without any, oldest first."""
    marks = ", ".join("?" * len(states))
    where = f"WHERE state IN ({marks})" if states else ""
    sql = f"SELECT {_PACK_COLUMNS} FROM packs {where} ORDER BY pack_id"  # noqa: S608 - constants and question marks
    # here and below all rows before any is parsed: an error would keep the statement open, which no checkpoint passes
    rows = conn.execute(sql, [state.value for state in states]).fetchall()
    return [parse_pack(row) for row in rows]


class PackLists:
    """The last answer of `load_packs` for each set of states, good until the journal is written again: an idle pipeline
    asks the same questions several times a second, about as many packs as the disk holds. Used under the journal's
    lock.
    """

    def __init__(self) -> None:
        self._writes = -1
        self._lists: dict[tuple[PackState, ...], list[PackRecord]] = {}

    def load(self, conn: sqlite3.Connection, states: tuple[PackState, ...], *, writes: int) -> list[PackRecord]:
        """As `load_packs`, in a list of the caller's own. `writes`: how often the journal was written so far."""
        if writes != self._writes:
            self._lists.clear()
            self._writes = writes
        if states not in self._lists:
            self._lists[states] = load_packs(conn, states)
        return list(self._lists[states])


def load_entries(conn: sqlite3.Connection, pack_id: int) -> list[SampleEntry]:
    """The samples of a pack in the order of their offsets."""
    sql = f"SELECT {SAMPLE_COLUMNS} FROM samples WHERE pack_id = ? ORDER BY offset"  # noqa: S608 - constant columns
    return [parse_entry(row) for row in conn.execute(sql, (pack_id,)).fetchall()]


def load_entry_columns(conn: sqlite3.Connection, pack_id: int) -> EntryColumns:
    """As `load_entries`, as columns."""
    sql = f"SELECT {SAMPLE_COLUMNS} FROM samples WHERE pack_id = ? ORDER BY offset"  # noqa: S608 - constant columns
    return parse_entry_columns(conn.execute(sql, (pack_id,)).fetchall())


def find_entries(conn: sqlite3.Connection, sample_id: SampleId) -> list[tuple[int, SampleEntry]]:
    """Pack id and entry of every place that has the sample, oldest first."""
    columns = f"SELECT pack_id, {SAMPLE_COLUMNS} FROM samples"  # noqa: S608 - constant columns
    rows = conn.execute(f"{columns} WHERE sample_id = ? ORDER BY pack_id, offset", (sample_id.text,)).fetchall()
    return [(row[0], parse_entry(row[1:])) for row in rows]


def sum_sizes(conn: sqlite3.Connection) -> int:
    """Bytes of all pack files that are still here, by the record. `IntegrityError` where that is no number."""
    sql = "SELECT coalesce(sum(size_bytes), 0) FROM packs WHERE state NOT IN ('lost', 'quarantined', 'reclaimed')"
    (total,) = conn.execute(sql).fetchone()
    if type(total) is not int:
        raise IntegrityError("the sizes of the journal's packs are not whole numbers")
    return total


def count_states(conn: sqlite3.Connection) -> dict[PackState, int]:
    """How many packs are in each state that has any. `IntegrityError` for a state that is none."""
    rows = conn.execute("SELECT state, count(*) FROM packs GROUP BY state").fetchall()
    try:
        return {PackState(state): count for state, count in rows}
    except ValueError as exc:
        raise IntegrityError(f"a pack row of the journal cannot be read: {exc}") from exc
