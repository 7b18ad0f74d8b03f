"""The bucket marker `durastore.json`: which store this prefix is, and which run fills it.

Duty: read it, and create it so that racing writers end with the same one. The only object whose key does not name its
bytes, hence the settling. Must never replace a marker that was seen, and never let a second run share the prefix.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from durastore.clock import Clock
from durastore.errors import (
    AmbiguousWrite,
    IntegrityError,
    NotVerified,
    ObjectAbsent,
    ObjectExists,
    RequestRefused,
    RunMismatch,
    UnknownAnswer,
)
from durastore.formats.keys import marker_key
from durastore.formats.marker import MARKER_FORMAT, Marker
from durastore.model import ObjectKey, Run, render_json
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.port import ObjectReader, ObjectStore

__all__ = [
    "MarkerBegun",
    "begin_marker",
    "check_run",
    "ensure_marker",
    "fetch_marker",
    "recall_marker",
    "settle_marker",
]

_ROUNDS = 5
_SETTLE_S = 2.0
_SHOWN_KEYS = 40
_SHOWN_CHARS = 160


def fetch_marker(reader: ObjectReader, prefix: str) -> Marker | None:
    """The marker of this prefix, or None where the endpoint says there is none. Raises on anything in between."""
    key = marker_key(prefix)
    try:
        return Marker.parse(reader.fetch(key))
    except ObjectAbsent:
        return None
    except IntegrityError as exc:
        raise IntegrityError(
            f"{key} is no marker of durastore: {exc.message}",
            hint="use another prefix if something else lies there; if it was a store, restore that object",
        ) from exc


def ensure_marker(
    store: ObjectStore, prefix: str, *, run: Run | None, clock: Clock, settle_s: float = _SETTLE_S
) -> Marker:
    """The marker all writers of this prefix agree on, created with `run` where there is none. Safe to repeat.

    After a write it waits `settle_s` and reads twice on new connections; what is there is adopted, even if another
    writer's marker won. A marker younger than `settle_s` on the server's clock is treated like our own write. `run`
    None adopts any run; another run raises `RunMismatch` with the difference. Reads that keep disagreeing raise
    `NotVerified`.
    """
    begun = begin_marker(store, prefix, run=run, clock=clock, settle_s=settle_s)
    found = settle_marker(store, prefix, begun=begun, clock=clock)
    check_run(found, run, prefix=prefix)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerBegun:
    """A marker that was read or written just now. Before `settle_marker` told which one it is, nothing is uploaded."""

    settled: Marker | None
    """None: it is younger than `settle_s`, and another writer's may still come over it."""
    since_s: float
    """When it was there at the latest, by the clock's `monotonic`."""
    settle_s: float


def begin_marker(
    store: ObjectStore, prefix: str, *, run: Run | None, clock: Clock, settle_s: float = _SETTLE_S
) -> MarkerBegun:
    """The first half of `ensure_marker`. The marker settles while the caller does what uploads nothing."""
    found = fetch_marker(store, prefix)
    if found is None:
        _put_marker(store, prefix, run=run, clock=clock)
    elif _is_young(store, prefix, settle_s=settle_s):
        # Its writer may still be racing with another one: what is read now could be overwritten a moment later.
        found = None
    return MarkerBegun(settled=found, since_s=clock.monotonic(), settle_s=settle_s)


def recall_marker(store: ObjectStore, prefix: str, *, clock: Clock, settle_s: float = _SETTLE_S) -> MarkerBegun:
    """As `begin_marker`, of a prefix whose marker was seen before: never writes one; `NotVerified` where it is gone."""
    found = fetch_marker(store, prefix)
    if found is None:
        raise NotVerified(f"the marker {marker_key(prefix)} was there a moment ago", hint="run the same command again")
    is_young = _is_young(store, prefix, settle_s=settle_s)
    return MarkerBegun(settled=None if is_young else found, since_s=clock.monotonic(), settle_s=settle_s)


def settle_marker(store: ObjectStore, prefix: str, *, begun: MarkerBegun, clock: Clock) -> Marker:
    """The marker itself, once what is left of its `settle_s` has passed; `NotVerified` where it does not settle."""
    if begun.settled is not None:
        return begun.settled
    left_s = begun.settle_s - (clock.monotonic() - begun.since_s)
    return _settled_marker(store, prefix, clock=clock, waits_s=(left_s, *[begun.settle_s] * (_ROUNDS - 1)))


def _put_marker(store: ObjectStore, prefix: str, *, run: Run | None, clock: Clock) -> None:
    """Write a new marker, create-only where the endpoint knows that; whoever wins is settled by reading."""
    key = marker_key(prefix)
    marker = Marker(store_id=secrets.token_hex(16), format=MARKER_FORMAT, run=run, created_ns=clock.now_ns())
    data = marker.render()
    crc = crc64nvme_b64(data)
    try:
        store.put(key, data, crc64nvme=crc, metadata={}, if_absent=True)
    except ObjectExists:
        return  # another writer was first
    except (RequestRefused, UnknownAnswer):
        # Either the answer was lost, or this endpoint does not implement create-only writes (501, 400).
        with closing(store.fresh_reader()) as reader:
            if fetch_marker(reader, prefix) is not None:
                return
        _put_unconditionally(store, key, data=data, crc=crc)


def _put_unconditionally(store: ObjectStore, key: ObjectKey, *, data: bytes, crc: str) -> None:
    try:
        store.put(key, data, crc64nvme=crc, metadata={})
    except AmbiguousWrite:
        return  # the settling reads tell; they raise where nothing is there


def _settled_marker(store: ObjectStore, prefix: str, *, clock: Clock, waits_s: Sequence[float]) -> Marker:
    """Wait, read twice on new connections, and repeat until both show the same marker."""
    for wait_s in waits_s:
        if wait_s > 0:
            clock.sleep(wait_s)
        seen = []
        for _ in range(2):
            with closing(store.fresh_reader()) as reader:
                seen.append(fetch_marker(reader, prefix))
        if seen[0] is not None and seen[0] == seen[1]:
            return seen[0]
    raise NotVerified(
        f"the marker {marker_key(prefix)} does not settle: repeated reads disagree or find nothing",
        hint="the endpoint is not consistent for a single small object; probe it before storing data there",
    )


def _is_young(store: ObjectReader, prefix: str, *, settle_s: float) -> bool:
    """Whether the marker was written less than `settle_s` ago, both times taken from the server."""
    if settle_s <= 0:
        return False
    stat = store.head(marker_key(prefix))
    if stat.server_time_s is None or stat.last_modified_s is None:
        return False
    return stat.server_time_s - stat.last_modified_s < settle_s


# --- the run -------------------------------------------------------------------------------------------------------


def check_run(marker: Marker, run: Run | None, *, prefix: str) -> None:
    """`RunMismatch` with the difference, where the marker holds another run than this one. None fits any."""
    if run is None:
        return
    held = marker.run if marker.run is not None else Run.of({})  # a store made without a run holds the empty one
    if held.digest == run.digest:
        return
    place = f"prefix {prefix}" if prefix else "this bucket"
    if held.digest == Run.of({}).digest:
        raise RunMismatch(
            f"{place} is one without a run: it holds files that were adopted"
            " as they are, or its store was opened without run=",
            hint="use another prefix for this run",
        )
    lines = list(_difference(json.loads(held.text), json.loads(run.text)))
    more = [f"... and {len(lines) - _SHOWN_KEYS} more"] if len(lines) > _SHOWN_KEYS else []
    shown = "\n".join(f"  {line}" for line in [*lines[:_SHOWN_KEYS], *more])
    raise RunMismatch(
        f"{place} already holds another run (old -> new):\n{shown}",
        hint="use another prefix for another run, or restore the old settings",
        differences=lines[:_SHOWN_KEYS],
    )


def _difference(old: Mapping[str, Any], new: Mapping[str, Any], *, path: str = "") -> Iterator[str]:
    """One line per key whose value differs, nested mappings by dotted path, in the order of the keys."""
    for name in sorted(old.keys() | new.keys()):
        at = f"{path}{name}"
        if name not in new:
            yield f"{at}: {_shown(old[name])} -> (absent)"
        elif name not in old:
            yield f"{at}: (absent) -> {_shown(new[name])}"
        elif isinstance(old[name], Mapping) and isinstance(new[name], Mapping):
            yield from _difference(old[name], new[name], path=f"{at}.")
        elif render_json(old[name]) != render_json(new[name]):  # as JSON: 1 and 1.0 are two runs
            yield f"{at}: {_shown(old[name])} -> {_shown(new[name])}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."
