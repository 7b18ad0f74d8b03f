"""The samples of a pack as columns: from the journal's rows to those of a manifest segment, checked as columns.

Duty: what `parse_entry` and `render_segment` do for single values, for all of a pack at once: of small samples there
are so many that an object for each would be most of what a segment costs. No I/O. Must never take a value that
`parse_entry` would refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from durastore.errors import IntegrityError
from durastore.formats.journal import parse_entry
from durastore.formats.segment import arrow_schema, render_segment_table, tombstone_records
from durastore.model import ObjectFacts, Run, Tombstone, id_fault

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["EntryColumns", "PackRows", "parse_entry_columns", "render_segment_of"]

_HEX = re.compile("[0-9a-f]*")


class EntryColumns(NamedTuple):
    """Samples in the order of their offsets, in the columns of `SAMPLE_COLUMNS`. Digests are 32 hex digits."""

    offset: Sequence[int]
    sample_id: Sequence[str]
    length: Sequence[int]
    header_length: Sequence[int]
    header_digest: Sequence[str]
    schema: Sequence[str]
    meta: Sequence[str]
    run: Sequence[str]
    input_digest: Sequence[str | None]
    provenance: Sequence[str]
    time_ns: Sequence[int]


class PackRows(NamedTuple):
    """The manifest rows of one pack."""

    object: ObjectFacts
    entries: EntryColumns


_COUNTS = (0, 2, 3, 10)
_TEXTS = (1, 4, 5, 6, 7, 9)
_REPEATED = (5, 6, 7, 9)


def parse_entry_columns(rows: Sequence[Sequence[Any]]) -> EntryColumns:
    """The columns of rows of `SAMPLE_COLUMNS`. `IntegrityError`, as of `parse_entry`, if a value cannot be one."""
    if not rows:
        return EntryColumns(*([] for _ in EntryColumns._fields))
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    if not _are_sound(columns):
        for row in rows:
            parse_entry(row)  # which names the value
        raise IntegrityError("sample rows of the journal cannot be read")
    for at in _REPEATED:  # one copy of each text
        known: dict[str, str] = {}
        columns[at] = [known.setdefault(text, text) for text in columns[at]]
    return EntryColumns(*columns)


def _are_sound(columns: Sequence[Sequence[Any]]) -> bool:
    if any(set(map(type, columns[at])) != {int} or min(columns[at]) < 0 for at in _COUNTS):
        return False
    if any(set(map(type, columns[at])) != {str} for at in _TEXTS):
        return False
    inputs = [digest for digest in columns[8] if digest is not None]
    digests = (columns[4], set(columns[7]), inputs)
    return all(map(_are_digests, digests)) and not any(map(id_fault, columns[1]))


def _are_digests(texts: Iterable[Any]) -> bool:
    found = list(texts)
    if any(type(text) is not str or len(text) != 32 for text in found):
        return False
    return _HEX.fullmatch("".join(found)) is not None


def render_segment_of(packs: Sequence[PackRows], *, tombstones: Sequence[Tombstone], runs: Sequence[Run]) -> bytes:
    """The bytes that `render_segment` makes of the same rows and tombstones, in this order."""
    import pyarrow as pa

    schema = arrow_schema()
    records = tombstone_records(tombstones)
    last = pa.Table.from_arrays(
        [pa.array([r.get(f.name) for r in records], type=f.type) for f in schema], schema=schema
    )
    table = pa.concat_tables([*(_table_of(pack) for pack in packs), last]).combine_chunks()
    return render_segment_table(table, runs=runs, covers=())


def _table_of(pack: PackRows) -> pa.Table:
    import pyarrow as pa

    held, entries = pack
    count = len(entries.offset)
    same: dict[str, Any] = {
        "kind": "row",
        "key": held.key.text,
        "object_size": held.size_bytes,
        "object_digest": bytes.fromhex(held.digest.hex),
        "crc64nvme": held.crc64nvme,
        "etag": held.etag,
        "version_id": held.version_id,
        "writer": held.writer.hex,
        "reason": None,
    }
    digests = {name: getattr(entries, name) for name in ("header_digest", "run", "input_digest")}
    columns = []
    for field in arrow_schema():
        if field.name in same:
            columns.append(pa.repeat(pa.scalar(same[field.name], type=field.type), count))
        elif field.name in digests:
            columns.append(_digest_array(digests[field.name]))
        else:
            columns.append(pa.array(getattr(entries, field.name), type=field.type))
    return pa.Table.from_arrays(columns, schema=arrow_schema())


def _digest_array(texts: Sequence[str | None]) -> pa.Array[Any]:
    import pyarrow as pa

    kind = pa.binary(16)
    if None in texts:
        return pa.array([None if text is None else bytes.fromhex(text) for text in texts], type=kind)
    data = bytes.fromhex("".join(chain(texts)))  # type: ignore[arg-type]  # no None among them
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(texts), [None, pa.py_buffer(data)])
