"""What failed and is not stored since, as the bucket knows it: of every host, also of those that are gone.

Duty: the failure lists' rows against the manifest. A failure is over only where the manifest has a live row of this run
that says so (INV-8): no list can make a sample count as stored, and none can take a stored one away. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from durastore.errors import IntegrityError, ManifestIncomplete
from durastore.extract.failure_book import HeardFailure
from durastore.manifest.failure_lists import FailureLists, IgnoredList, fetch_failure_lists, latest_failures
from durastore.manifest.fetching import SegmentPart
from durastore.manifest.marker_store import fetch_marker
from durastore.manifest.presence import check_present
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import RANKED, fetch_view
from durastore.model import Digest, Run
from durastore.objectstore.port import ObjectStore

__all__ = ["BucketFailures", "SharedFailure", "fetch_failures", "fetch_latest", "fetch_told", "heard_failures"]

_PART_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFailure:
    """One sample (or line) that failed somewhere and is not stored."""

    sample_id: str | None
    line: int
    input_digest: str | None
    stage: str
    reason: str
    attempts: int
    """Forward passes (or leases) that the last try took."""
    runs: int
    """How many times it was recorded as failed, by all hosts as far as they knew of each other."""
    worker: str
    host: str
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFailures:
    """What the bucket knows of failures."""

    run: Digest
    failures: tuple[SharedFailure, ...]
    """In the order of the lines."""
    ignored: tuple[IgnoredList, ...]
    """Lists that say nothing: history that is lost, or that nobody of ours wrote."""
    problem: str | None
    """Why the manifest could not be asked; what was stored since is then among the failures."""


def fetch_failures(store: ObjectStore, prefix: str) -> BucketFailures:
    """All hosts' failures of the prefix's run. `StoreMissing` where there is no store; network errors pass.

    One LIST and a GET for each failure list, and the manifest only if there is a failure at all.
    """
    marker = fetch_marker(store, prefix)
    if marker is None:
        check_present(store, prefix)
    run = marker.run.digest if marker is not None and marker.run is not None else Run.of({}).digest
    latest, lists = fetch_latest(store, prefix, run=run)
    problem = None
    if latest.num_rows:
        try:
            latest = _without_settled(latest, _stored(store, prefix, latest=latest, run=run))
        except (ManifestIncomplete, IntegrityError) as exc:
            problem = exc.message
    return BucketFailures(run=run, failures=tuple(_shared(latest)), ignored=lists.ignored, problem=problem)


def fetch_told(store: ObjectStore, prefix: str, *, run: Digest) -> tuple[Iterator[SharedFailure], FailureLists]:
    """What the lists call failed, stored since or not, for whoever looks into the manifest first; and the lists."""
    latest, lists = fetch_latest(store, prefix, run=run)
    return _shared(latest), lists


def fetch_latest(store: ObjectStore, prefix: str, *, run: Digest) -> tuple[pa.Table, FailureLists]:
    """The latest failure of each sample as the lists have it, stored since or not, and what the lists were."""
    lists = fetch_failure_lists(store, prefix, run=run)
    return latest_failures(lists.table), lists


def heard_failures(latest: pa.Table) -> Iterator[HeardFailure]:
    """Of `latest_failures`: what a retry has to know. Those that are stored by now, the store itself tells."""
    for record in _records(latest.select(["sample_id", "line", "runs", "time_ns"])):
        yield HeardFailure(**record)


# --- against the manifest ------------------------------------------------------------------------------------------

_Stored = dict[str, list[tuple[bytes | None, int]]]
"""Sample id -> input digest and time of each live row of the run."""


def _stored(store: ObjectStore, prefix: str, *, latest: pa.Table, run: Digest) -> _Stored:
    """What the manifest has of the samples in question. Of each segment only their rows are kept."""
    chunks = [*latest.column("sample_id").chunks, *latest.column("stored_id").chunks]
    ids = pa.chunked_array(chunks, type=pa.string()).unique().drop_null()
    part = SegmentPart(columns=(*RANKED, "input_digest", "time_ns"), rows=partial(_of_these, ids))
    view = fetch_view(store, fetch_snapshot(store, prefix), part=part)
    found: _Stored = {}
    for row in _records(view.live_columns(["sample_id", "run", "input_digest", "time_ns"])):
        if row["run"].hex() == run.hex:  # INV-8
            found.setdefault(row["sample_id"], []).append((row["input_digest"], row["time_ns"]))
    return found


def _of_these(ids: Any, table: pa.Table) -> pa.Table:
    return table.filter(pc.is_in(table.column("sample_id"), value_set=ids))


def _without_settled(latest: pa.Table, stored: _Stored) -> pa.Table:
    return latest.filter(pa.array([not _is_settled(row, stored) for row in _records(latest)], type=pa.bool_()))


def _is_settled(failure: dict[str, Any], stored: _Stored) -> bool:
    """Stored from the same input, or later, or its writer says that what the manifest has came after it."""
    rows = stored.get(failure["sample_id"], [])
    for digest, time_ns in rows:
        is_same_input = digest is not None and digest == failure["input_digest"]
        if is_same_input or time_ns > failure["time_ns"]:
            return True
    return failure["stored_id"] is not None and failure["stored_id"] in stored


def _shared(latest: pa.Table) -> Iterator[SharedFailure]:
    for record in _records(latest.drop_columns(["kind", "stored_id"])):
        digest = record.pop("input_digest")
        yield SharedFailure(**record, input_digest=digest.hex() if digest is not None else None)


def _records(table: pa.Table) -> Iterator[dict[str, Any]]:
    """A part at a time: as Python objects a table is ten times as large."""
    for batch in table.to_batches(max_chunksize=_PART_ROWS):
        yield from batch.to_pylist()
