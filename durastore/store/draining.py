"""What ended processes left in a spool root, brought to the bucket: `durastore drain`.

Duty: claim the idle spools (only the kernel's lock says which are), bring each to the bucket that its own journal
names, and tell what stays and why. Needs no run: rows carry the one they were made with. Must never touch a spool that
a live process holds, and never call anything proven that a manifest segment does not name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.config import StoreOptions
from durastore.errors import DurastoreError, NotVerified, PackFailed, PartlyDone, SpoolLocked, StoreClosed
from durastore.model import PackState
from durastore.objectstore.location import BucketUrl
from durastore.observe.events import LOGGER
from durastore.spool.opened import opened_root
from durastore.spool.records import FACT_URL
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool, claim_idle_siblings, find_locked
from durastore.store.lane import Lane
from durastore.store.opening import open_idle
from durastore.store.store import Store

__all__ = ["DrainReport", "DrainedSpool", "LeftPack", "drain_root"]

_PROVEN = (PackState.MANIFESTED, PackState.RECLAIMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftPack:
    """A pack whose samples are not all proven in the bucket."""

    name: str
    state: PackState
    samples: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainedSpool:
    """What became of one idle spool."""

    name: str
    bucket: str | None
    packs_found: int
    packs_proven: int
    """In the manifest now; those that were there before included."""
    packs_freed: int
    bytes_left: int
    """Of files that are still here, proven or not."""
    left: tuple[LeftPack, ...]
    error: DurastoreError | None
    """What ended the work on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """All spools of the root that had something, and those that live processes hold."""

    spools: tuple[DrainedSpool, ...]
    locked: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0; 13 where a sample is not proven; 3 where all is proven and was not freed in time; that of the error where
        endpoint or credentials ended it.
        """
        errors = [spool.error for spool in self.spools if spool.error is not None]
        late = [error for error in errors if isinstance(error, PartlyDone)]
        unproven = [error for error in errors if isinstance(error, PackFailed | NotVerified)]
        others = [error for error in errors if error not in (*late, *unproven)]
        if others:
            return others[0].exit_code
        if unproven or any(spool.left for spool in self.spools):
            return NotVerified.exit_code
        return PartlyDone.exit_code if late else 0


def drain_root(
    local: Path,
    *,
    options: StoreOptions,
    bucket: str | None = None,
    timeout_s: float | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> DrainReport:
    """Upload, prove and list what idle spools hold. With `reclaim="eager"` also wait until their files are freed.

    `bucket`: only spools of this one, and the one for spools that name none. `timeout_s` holds for each bucket. Raises
    `StoreMissing` where `local` is no spool root, `SpoolLocked` where live processes hold every spool. What happened to
    a bucket's spools is in the report. Safe to repeat: the same call goes on.
    """
    with opened_root(local):
        pass  # it is one: `SpoolRoot.open` would make it one
    wanted = BucketUrl.parse(bucket).render() if bucket is not None else None
    root = SpoolRoot.open(local, is_any_filesystem_allowed=options.is_any_filesystem_allowed)
    try:
        idle = claim_idle_siblings(root, clock=clock)
        try:
            locked = find_locked(root, held=idle)
            if locked and not idle:
                raise SpoolLocked(
                    f"live processes hold {', '.join(locked)} of {local}, and no other spool has anything",
                    hint="they upload by themselves; `durastore stop` asks them to end",
                )
            drained = list(_drain_each(idle, wanted, options=options, timeout_s=timeout_s, clock=clock))
        finally:
            for spool in idle:
                spool.close()
    finally:
        root.close()
    return DrainReport(spools=tuple(sorted(drained, key=lambda each: each.name)), locked=tuple(locked))


def _drain_each(
    idle: Sequence[Spool], wanted: str | None, *, options: StoreOptions, timeout_s: float | None, clock: Clock
) -> Iterator[DrainedSpool]:
    """The spools of one bucket together; an error of one bucket does not keep the others."""
    groups: dict[str | None, list[Spool]] = {}
    for spool in idle:
        groups.setdefault(spool.journal.get_fact(FACT_URL) or wanted, []).append(spool)
    for url, spools in groups.items():
        if url is None or (wanted is not None and url != wanted):
            hint = f"give --bucket {url}" if url is not None else "give --bucket"
            error = NotVerified(f"it is for {url}" if url is not None else "its journal names no bucket", hint=hint)
            yield from (_left_alone(spool, url, error=error) for spool in spools)
        else:
            yield from _drain_bucket(url, spools, options=options, timeout_s=timeout_s, clock=clock)


def _left_alone(spool: Spool, url: str | None, *, error: DurastoreError) -> DrainedSpool:
    return _told(spool, url, before=len(spool.journal.packs()), reasons={}, error=error)


def _drain_bucket(
    url: str, spools: Sequence[Spool], *, options: StoreOptions, timeout_s: float | None, clock: Clock
) -> list[DrainedSpool]:
    before = {spool.path.name: len(spool.journal.packs()) for spool in spools}
    names = [spool.path.name for spool in spools]
    LOGGER.info("draining %s into %s", ", ".join(names), url)
    try:
        store, lanes = open_idle(url, spools, options=options, clock=clock)
    except DurastoreError as exc:  # the spools are closed by now: what they hold is as it was
        return [_unopened(spool, url, packs=before[spool.path.name], error=exc) for spool in spools]
    try:
        error = _wait(store, lanes, options=options, timeout_s=timeout_s)
        return [
            _told(lane.spool, url, before=before[lane.spool.path.name], reasons=_reasons(lane), error=error)
            for lane in lanes
        ]
    finally:
        try:
            store.abandon()
        except StoreClosed as exc:  # a thread still waits for the network: the report says more
            LOGGER.warning("%s", exc)


def _wait(
    store: Store, lanes: Sequence[Lane], *, options: StoreOptions, timeout_s: float | None
) -> DurastoreError | None:
    try:
        if options.reclaim == "eager":
            store.drain(timeout_s)
        else:
            store.flush(timeout_s)
    except TimeoutError as exc:
        packs = [record for lane in lanes for record in lane.spool.journal.packs()]
        is_proven = all(record.state in _PROVEN or not record.sample_count for record in packs)
        late = PartlyDone if is_proven else NotVerified  # proven, and only not freed yet
        return late(str(exc), hint="run the same command again; it goes on")
    except DurastoreError as exc:
        return exc
    return None


def _reasons(lane: Lane) -> dict[int, str]:
    """Why packs cannot get on in this session."""
    failures = ((record.pack_id, lane.failure_of(record.pack_id)) for record in lane.spool.journal.packs())
    return {pack_id: failure.message for pack_id, failure in failures if failure is not None}


def _unopened(spool: Spool, url: str, *, packs: int, error: DurastoreError) -> DrainedSpool:
    return DrainedSpool(
        name=spool.path.name,
        bucket=url,
        packs_found=packs,
        packs_proven=0,
        packs_freed=0,
        bytes_left=spool.used_bytes(),
        left=(),
        error=error,
    )


def _told(
    spool: Spool, url: str | None, *, before: int, reasons: dict[int, str], error: DurastoreError | None
) -> DrainedSpool:
    records = spool.journal.packs()
    left = [record for record in records if record.state not in _PROVEN and record.sample_count]
    return DrainedSpool(
        name=spool.path.name,
        bucket=url,
        packs_found=max(before, len(records)),
        packs_proven=sum(record.state in _PROVEN for record in records),
        packs_freed=sum(record.state is PackState.RECLAIMED for record in records),
        bytes_left=spool.used_bytes(),
        left=tuple(
            LeftPack(
                name=record.name,
                state=record.state,
                samples=record.sample_count,
                size_bytes=record.size_bytes or 0,
                reason=reasons.get(record.pack_id) or record.reason or "not proven yet",
            )
            for record in left
        ),
        error=error,
    )
