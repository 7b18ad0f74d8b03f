"""Failure lists in the bucket: published as segments are, and read all together.

Duty: put a list under a key that carries its digest and read it back; LIST and fetch those of every host, and merge
them to one row a sample. A list that is absent, damaged, forged or newer costs history only: it is named and left out.
Must never be asked what is stored: that is the manifest's word alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from durastore.errors import FormatUnsupported, IntegrityError, ObjectAbsent
from durastore.formats.failure_list import MAX_LIST_BYTES, failure_schema, parse_failure_table, plain_text
from durastore.formats.keys import failures_key, failures_listing_prefix, parse_failures_key
from durastore.manifest.segments import publish_checked
from durastore.model import Digest, ObjectKey, WriterId
from durastore.objectstore.port import ObjectLister, ObjectReader, ObjectStat, ObjectStore

__all__ = ["FailureLists", "IgnoredList", "fetch_failure_lists", "latest_failures", "publish_failures"]

_MAX_REQUESTS = 16
_FOREIGN = "is no failure list by its name"


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredList:
    """An object below `failures/` that says nothing, or a list that is not there."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureLists:
    """What the bucket's lists of one run say together."""

    table: pa.Table
    """`FAILURE_COLUMNS`, in no order; every value checked."""
    lists: int
    """That were read."""
    ignored: tuple[IgnoredList, ...]


def publish_failures(store: ObjectStore, data: bytes, *, prefix: str, writer: WriterId, seq: int) -> ObjectKey:
    """Put `data` as list `seq` of `writer` and return its key once every byte was read back. As `publish_segment`.

    The same failures told twice, because the first answer was lost, count once.
    """
    return publish_checked(
        store, data, key=failures_key(prefix, writer, seq=seq, digest=Digest.of(data)), what="failure list"
    )


def fetch_failure_lists(store: ObjectStore, prefix: str, *, run: Digest) -> FailureLists:
    """Every list of the prefix. One LIST, and a GET for each of them. Safe to repeat.

    Raises what the network raises; whatever is wrong with a list is in `ignored`.
    """
    stats, ignored = _listed(store, prefix)
    with ThreadPoolExecutor(max_workers=_MAX_REQUESTS, thread_name_prefix="durastore-failures") as pool:
        found = list(pool.map(partial(_fetch, store, prefix=prefix, run=run), stats))
    tables = [each for each in found if isinstance(each, pa.Table)]
    ignored += [each for each in found if isinstance(each, IgnoredList)]
    return FailureLists(
        table=pa.concat_tables([failure_schema().empty_table(), *tables]),
        lists=len(tables),
        ignored=tuple(sorted([*ignored, *_gaps(prefix, stats)], key=lambda each: each.key)),
    )


def _listed(store: ObjectLister, prefix: str) -> tuple[list[ObjectStat], list[IgnoredList]]:
    stats: list[ObjectStat] = []
    ignored: list[IgnoredList] = []
    for page in store.list(failures_listing_prefix(prefix)):
        for stat in page:
            if parse_failures_key(prefix, stat.key) is None:
                ignored.append(IgnoredList(key=plain_text(stat.key.text, limit=1024), reason=_FOREIGN))
            else:
                stats.append(stat)
    return stats, ignored


def _gaps(prefix: str, stats: Sequence[ObjectStat]) -> list[IgnoredList]:
    """Lists of a writer that are not there though later ones are: history that is lost, and not to be looked for."""
    seqs: dict[WriterId, set[int]] = {}
    for stat in stats:
        parts = parse_failures_key(prefix, stat.key)
        assert parts is not None
        seqs.setdefault(parts.writer, set()).add(parts.seq)
    return [
        IgnoredList(
            key=f"{failures_listing_prefix(prefix)}{writer}/",
            reason=f"{max(found) - len(found - {0})} of its {max(found)} lists are not there",
        )
        for writer, found in sorted(seqs.items())
        if max(found) > len(found - {0})
    ]


def _fetch(reader: ObjectReader, stat: ObjectStat, *, prefix: str, run: Digest) -> pa.Table | IgnoredList:
    parts = parse_failures_key(prefix, stat.key)
    assert parts is not None
    if stat.size_bytes is None or stat.size_bytes > MAX_LIST_BYTES:
        return IgnoredList(key=stat.key.text, reason=f"no list has {stat.size_bytes} bytes")
    reason = ""
    for _ in range(2):
        try:
            data = reader.fetch(stat.key)
            if Digest.of(data).short != parts.short_digest:  # INV-7
                raise IntegrityError("its bytes do not match the digest in its name")
            return parse_failure_table(data, run=run)
        except ObjectAbsent:
            return IgnoredList(key=stat.key.text, reason="is listed but absent")
        except FormatUnsupported as exc:
            return IgnoredList(key=stat.key.text, reason=exc.message)
        except IntegrityError as exc:
            reason = plain_text(exc.message, limit=300)  # it may quote the file, as a column's type does
    return IgnoredList(key=stat.key.text, reason=reason)


# --- merging -------------------------------------------------------------------------------------------------------


def latest_failures(table: pa.Table) -> pa.Table:
    """One row a sample (or line) that somebody told as failed: the latest, with the highest count of `runs`.

    Its `stored_id` is that of a settlement of this failure or a later one, else null: a hint where to look in the
    manifest, never the answer. Order and repeats of the rows do not matter.
    """
    table = table.append_column("name", _names(table))
    is_failed = pc.equal(table.column("kind"), pa.scalar("failed"))
    failed = _last_of_each(table.filter(is_failed))
    settled = _last_of_each(table.filter(pc.invert(is_failed)))
    at = pc.index_in(failed.column("name"), value_set=settled.column("name").combine_chunks())
    is_later = pc.greater_equal(settled.column("time_ns").take(at), failed.column("time_ns"))
    hints = pc.if_else(is_later, settled.column("stored_id").take(at), pa.scalar(None, pa.string()))
    failed = failed.set_column(failed.schema.get_field_index("stored_id"), "stored_id", hints)
    return failed.sort_by([("line", "ascending"), ("name", "ascending")]).drop_columns(["name"])


def _names(table: pa.Table) -> Any:
    join: Any = pc.binary_join_element_wise
    ids = join(pa.scalar("id "), table.column("sample_id"), "")
    lines = join(pa.scalar("line "), table.column("line").cast(pa.string()), "")
    return pc.coalesce(ids, lines)


def _last_of_each(table: pa.Table) -> pa.Table:
    """Of each name the row of the latest time, with the largest `runs` of all of them."""
    if not table.num_rows:
        return table
    order: Any = [(name, "ascending") for name in ("name", "time_ns", "host", "worker", "stored_id")]
    table = table.sort_by(order).combine_chunks()
    names: Any = table.column("name")
    runs: Any = pc.fill_null(table.column("runs"), 0)  # type: ignore[type-var]
    is_first = np.ones(table.num_rows, dtype=np.bool_)
    is_first[1:] = pc.not_equal(names.slice(1), names.slice(0, table.num_rows - 1)).to_numpy()
    starts = np.flatnonzero(is_first)
    most = np.maximum.reduceat(runs.to_numpy(), starts)
    ends = np.append(starts[1:], table.num_rows) - 1
    return table.take(ends).set_column(table.schema.get_field_index("runs"), "runs", pa.array(most, pa.int64()))
