"""The bucket: does it answer, is it the one that the spools were filled for, and what is known of its endpoint.

Duty: the bucket stage. Reads only: a probe writes, and only a person's may lift a stop, so none is run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from durastore.clock import Stamp, age_s
from durastore.doctor.request import Examination
from durastore.doctor.stages import Verdict
from durastore.errors import InventoryIncomplete, StoreMissing
from durastore.manifest.marker_store import fetch_marker
from durastore.model import Run
from durastore.objectstore.location import S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.probe.opening import probed_place
from durastore.objectstore.probe.saved import is_fresh, load_probes, newest_of, standing_block
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.spool.stops import stops_in_force

__all__ = ["look_at_bucket"]

_PATIENCE_S = 30.0
_DAY_S = 86_400.0
_SOON = "the next start takes one by itself, and frees nothing before it has ended"


def look_at_bucket(seen: Examination) -> Verdict:
    """Opens the bucket for the stages after it. Errors of the network, of credentials, and of another store pass."""
    request = seen.request
    objects = _opened(seen)
    objects.check_bucket()
    marker = fetch_marker(objects, request.bucket.prefix)
    wanted = dict(sorted(seen.store_ids.items()))
    _refuse_another(marker.store_id if marker is not None else None, wanted, url=request.bucket.render())
    seen.objects = objects
    faults, notes = list(_probe_faults(seen)), list(_probe_notes(seen))
    facts: dict[str, Any] = {"url": request.bucket.render(), "store_id": None, "run": None}
    if marker is None:
        notes.append("there is no durastore at this prefix yet: the extraction makes one")
    else:
        seen.run = marker.run if marker.run is not None else Run.of({})
        facts |= {"store_id": marker.store_id, "run": seen.run.digest.hex}
    stopped = "nothing is freed until `durastore probe --local` has found the endpoint sound"
    stops = stops_in_force(seen.held_root().folder)
    notes += [f"reclaiming is stopped: {stop.reason}; {stopped}" for stop in stops]
    return Verdict.of_faults(faults, notes, summary=f"{request.bucket.render()} answers", facts=facts)


def _opened(seen: Examination) -> ObjectStore:
    request = seen.request
    bare = request.objects
    if bare is None:
        bare = open_object_store(request.bucket, s3=S3Options.of(request.options))
        seen.resources.callback(bare.close)
    return RetryingStore(bare, RetryPolicy(budget_s=_PATIENCE_S), clock=seen.clock)


def _refuse_another(store_id: str | None, wanted: dict[str, str], *, url: str) -> None:
    """`StoreMissing` and `InventoryIncomplete` where the spools were filled for a store that is not there."""
    for spool, known in wanted.items():
        if store_id is None:
            raise StoreMissing(
                f"there is no durastore at {url}, and spool {spool} was filled for one",
                hint="check --bucket and the endpoint; opening it here sends everything again",
            )
        if known != store_id:
            raise InventoryIncomplete(
                f"spool {spool} was filled for another durastore than the one at {url}",
                hint="check --bucket; where the bucket was made anew, opening the spool sends everything again",
            )


def _probe_faults(seen: Examination) -> Iterator[str]:
    """A verdict that objects do not stay stands at any age."""
    if seen.request.bucket.kind != "s3" or seen.request.objects is not None:
        return
    _, target = probed_place(seen.request.bucket, s3=S3Options.of(seen.request.options))
    block = standing_block(load_probes(seen.held_root().folder, target=target))
    if block is not None:
        for reason in block.blocking:
            yield f"objects do not stay here, so nothing would be freed: {reason}"


def _probe_notes(seen: Examination) -> Iterator[str]:
    if seen.request.bucket.kind != "s3" or seen.request.objects is not None:
        return
    _, target = probed_place(seen.request.bucket, s3=S3Options.of(seen.request.options))
    newest = newest_of(load_probes(seen.held_root().folder, target=target))
    if newest is None:
        yield f"no probe of this endpoint is on record here: {_SOON}"
    elif not is_fresh(newest, now=seen.clock.stamp()):
        age = age_s(Stamp.parse(newest.taken), seen.clock.stamp())
        since = "of before the reboot" if age is None else f"{age / _DAY_S:.1f} days old"
        yield f"the probe on record is {since}: {_SOON}"
