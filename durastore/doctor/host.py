"""Whether this is still the machine, and the boot, in which the last extraction began.

Duty: boot id and wall clock against the last start on record. It never fails: a reboot costs proofs, and no sample.
"""

from __future__ import annotations

from datetime import UTC, datetime

from durastore.clock import Stamp
from durastore.doctor.request import Examination
from durastore.doctor.stages import Verdict
from durastore.errors import DiskFailed
from durastore.extract.job_book import load_starts

__all__ = ["look_at_host"]

_REBOOTED = (
    "proofs from before it count for nothing and are made anew; packs are hashed again; what was in memory (/dev/shm, "
    "/tmp in memory) is gone"
)


def look_at_host(seen: Examination) -> Verdict:
    """A note where the machine was rebooted or its clock went back, or where no start is on record."""
    now = seen.clock.stamp()
    facts = {"boot_id": now.boot_id, "up_s": round(now.boottime_ns / 1e9)}
    try:
        seen.starts = load_starts(seen.request.local)
    except DiskFailed as exc:
        return Verdict.of_faults((), (exc.message,), summary="the record of starts cannot be read", facts=facts)
    last = seen.last
    if last is None:
        return Verdict.skipped("no start of an extraction is on record here")
    facts |= {"last_start": _time(last.stamp), "last_boot_id": last.stamp.boot_id}
    notes = []
    if last.stamp.boot_id != now.boot_id:
        notes.append(_REBOOTED)
    if last.stamp.wall_ns > now.wall_ns:
        notes.append("the wall clock is behind the last start: ages that rest on it are not believed")
    what = "rebooted, or another machine," if last.stamp.boot_id != now.boot_id else "the same boot as"
    since = "since the last start" if notes and last.stamp.boot_id != now.boot_id else "at the last start"
    return Verdict.of_faults((), notes, summary=f"{what} {since}, {_time(last.stamp)}", facts=facts)


def _time(stamp: Stamp) -> str:
    return datetime.fromtimestamp(stamp.wall_ns / 1e9, tz=UTC).isoformat(timespec="seconds")
