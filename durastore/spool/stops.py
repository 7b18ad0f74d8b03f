"""Stops of reclaiming in the spool root, where every process that works there sees them.

Duty: throw, find and lift them. Nothing is ever taken away: a stop is lifted by a second file that names it. Must never
take what cannot be read for a root without a stop.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from durastore.errors import FormatUnsupported, IntegrityError, SpoolUnreadable
from durastore.formats.stop import MAX_STOP_BYTES, LiftRecord, Place, StopRecord, lift_name, stop_id_in, stop_name
from durastore.fsio.folder import Folder
from durastore.fsio.publish import publish
from durastore.objectstore.probe.result import ProbeResult
from durastore.spool.opened import opened_own_root

__all__ = ["FACT_STOPPED", "find_answer", "lift_stop", "stops_in_force", "stops_in_root", "throw_stop"]

FACT_STOPPED = "reclaim_stopped"
"""The last stop that a spool's store threw, in its journal: a full disk has no room for the file in the root."""


def throw_stop(folder: Folder, record: StopRecord) -> None:
    """Stop reclaiming for every store at this root, durably. `DiskFailed` if it cannot be written. Safe to repeat."""
    _publish(folder, stop_name(record.id), data=record.render())


def lift_stop(folder: Folder, record: LiftRecord) -> None:
    """Note durably that a person lifted a stop. `DiskFailed` if that cannot be written. Safe to repeat."""
    _publish(folder, lift_name(record.stop), data=record.render())


def stops_in_force(folder: Folder, *, also: Iterable[StopRecord] = ()) -> list[StopRecord]:
    """The stops of this root (`also`: those known from elsewhere) that nobody lifted.

    `SpoolUnreadable` if that cannot be told.
    """
    try:
        names = set(folder.names())
        ids = {stop_id for stop_id in map(stop_id_in, names) if stop_id is not None}
        known = {record.id: record for record in also}
        open_ids = sorted(i for i in ids | known.keys() if lift_name(i) not in names or not _is_lifted(folder, i))
        return [known[i] if i not in ids else _read_stop(folder, i) for i in open_ids]
    except OSError as exc:
        raise SpoolUnreadable(f"the stops of reclaiming in {folder.path}: {exc.strerror or exc}") from exc


def stops_in_root(path: Path) -> list[StopRecord]:
    """The stops in force in the spool root at `path`, or in the private root of a folder. `StoreMissing` where there is
    neither.
    """
    with opened_own_root(path) as folder:
        return stops_in_force(folder)


def find_answer(stop: StopRecord, results: Iterable[ProbeResult]) -> ProbeResult | None:
    """The probe by which a person lifts this stop; None if there is none.

    It names the stop, so it was begun after it (no clock could tell that: one may step, or the machine reboot), and it
    asked the endpoint at which the copy was found wrong.
    """
    for result in results:
        asked = Place(endpoint=result.endpoint, bucket=result.bucket, prefix=result.prefix)
        if stop.id in result.answers_stops and stop.place == asked:
            return result
    return None


def _publish(folder: Folder, name: str, *, data: bytes) -> None:
    try:
        publish(folder, name, chunks=[data], expect_size=len(data))
    except FileExistsError:
        pass  # it was said before


def _is_lifted(folder: Folder, stop_id: str) -> bool:
    try:
        return LiftRecord.parse(folder.read_bytes(lift_name(stop_id), limit_bytes=MAX_STOP_BYTES)).stop == stop_id
    except (IntegrityError, FormatUnsupported, SpoolUnreadable):
        return False


def _read_stop(folder: Folder, stop_id: str) -> StopRecord:
    try:
        record = StopRecord.parse(folder.read_bytes(stop_name(stop_id), limit_bytes=MAX_STOP_BYTES))
    except (IntegrityError, FormatUnsupported, SpoolUnreadable) as exc:
        return StopRecord.unreadable(stop_id, why=exc.message)
    return record if record.id == stop_id else StopRecord.unreadable(stop_id, why="it is another's")
