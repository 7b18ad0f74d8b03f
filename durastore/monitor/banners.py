"""What an operator has to see first: stalls with stage and reason, dead or silent processes, wrong copies, full disks.

Duty: facts to banners, the gravest first. Pure. Many processes with one trouble make one banner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from durastore.monitor import words
from durastore.monitor.facts import Liveness, RootFacts, SpoolFacts
from durastore.monitor.limits import NAMES
from durastore.monitor.view import Banner
from durastore.observe.status import Stall

__all__ = ["find_banners"]

_RANK = {"bad": 0, "warn": 1, "info": 2}
_SHOWN = 3
_SILENT_S = 10.0


def find_banners(roots: Sequence[RootFacts], *, now_ns: int) -> tuple[Banner, ...]:
    """The gravest first, in a stable order."""
    found = [banner for root in roots for banner in _of_root(root, now_ns=now_ns)]
    return tuple(sorted(found, key=lambda banner: _RANK[banner.severity]))


def _of_root(root: RootFacts, *, now_ns: int) -> Iterator[Banner]:
    if root.problem is not None:
        yield Banner(severity="bad", what="root", title=f"{root.path} cannot be looked at", detail=root.problem)
        return
    yield from _stalls(root, now_ns=now_ns)
    yield from _silent(root)
    yield from _killed(root)
    yield from _jobs(root)
    said = {spool.store.stopped for spool in _live(root) if spool.store is not None and spool.store.stopped}
    for reason in root.stops or sorted(said):
        yield Banner(
            severity="bad",
            what="reclaim-stopped",
            title="Nothing is reclaimed",
            detail=f"{reason} (`durastore probe --local` lifts it)",
            stage="reclaimed",
        )
    yield from _proofs_and_packs(root)
    yield from _room(root)


def _live(root: RootFacts) -> list[SpoolFacts]:
    return [spool for spool in root.spools if spool.liveness is Liveness.LIVE]


def _stalls(root: RootFacts, *, now_ns: int) -> Iterator[Banner]:
    grouped: dict[tuple[str, str], list[tuple[str, Stall]]] = {}
    for spool in _live(root):
        for record in (spool.store, spool.worker):
            if record is not None and record.stall is not None:
                stall = record.stall
                grouped.setdefault((stall.stage, stall.why.partition(":")[0]), []).append((spool.name, stall))
    for (stage, why), found in grouped.items():
        since_ns = min(stall.since_ns for _, stall in found)
        yield Banner(
            severity="bad",
            what="stall",
            title=f"Stalled at {NAMES[stage]}: {why}",
            detail=f"{_names([name for name, _ in found])}, for {words.age(since_ns, now_ns)}; {found[0][1].why}",
            stage=stage,
            since_ns=since_ns,
        )


def _silent(root: RootFacts) -> Iterator[Banner]:
    for spool in root.spools:
        if spool.liveness is not Liveness.SILENT or spool.silent_s < _SILENT_S:
            continue
        where = f"a thread of it waits for the disk in the kernel ({spool.disk_wait})" if spool.disk_wait else None
        yield Banner(
            severity="bad",
            what="silent",
            title=f"{spool.name} has said nothing for {words.duration(spool.silent_s)}",
            detail=where or "its process holds the spool and is stopped, starved, or hangs",
            stage="spooled" if spool.disk_wait else "extracted",
        )


def _killed(root: RootFacts) -> Iterator[Banner]:
    killed = [spool for spool in root.spools if spool.liveness is Liveness.KILLED]
    if not killed:
        return
    tellers = [record.teller for spool in killed if (record := spool.store or spool.worker) is not None]
    left = sum(s.glance.journal.only_local_samples for s in killed if s.glance and s.glance.journal)
    what = f"{words.count(left)} samples are only here" if left else "nothing of it is only here"
    yield Banner(
        severity="warn" if left else "info",
        what="killed",
        title=f"{_names([spool.name for spool in killed])} ended without saying so",
        detail=f"process {_names([str(teller.pid) for teller in tellers])}; {what};"
        " the next process, or `durastore drain`, goes on with it",
    )


def _jobs(root: RootFacts) -> Iterator[Banner]:
    for standing in root.jobs:
        job = standing.job
        if job.ended_ns is None and job.pid not in root.living_pids:
            yield Banner(
                severity="warn",
                what="job-gone",
                title="An extraction ended without saying so",
                detail=f"process {job.pid} over {job.input}; the same command goes on where it was",
            )


def _proofs_and_packs(root: RootFacts) -> Iterator[Banner]:
    live = [spool.store for spool in _live(root) if spool.store is not None]
    wrong = sum(store.proofs.mismatches for store in live)
    if wrong:
        yield Banner(
            severity="bad",
            what="mismatch",
            title=f"{words.count(wrong)} copies in the bucket were found wrong",
            detail="they are sent again from the local files; nothing is reclaimed meanwhile",
            stage="verified",
        )
    failed = [(store.spool, store.failures[-1]) for store in live if store.failures]
    if failed:
        count = sum(store.failure_count for store in live)
        yield Banner(
            severity="bad",
            what="pack-failed",
            title=f"{words.count(count)} packs cannot get on",
            detail=f"{failed[0][0]}: {failed[0][1]}",
            stage="uploaded",
        )


def _room(root: RootFacts) -> Iterator[Banner]:
    live = [spool.store for spool in _live(root) if spool.store is not None]
    waiting = [store for store in live if store.wait is not None]
    if waiting:
        room = waiting[0].room
        yield Banner(
            severity="warn",
            what="put-waits",
            title=f"New samples wait: {waiting[0].wait}",
            detail=f"{_names([store.spool for store in waiting])}; {words.size(room.used_bytes)} of"
            f" {words.size(room.high_bytes)} in the spool, {words.size(room.free_bytes)} free on the disk",
            stage="spooled",
        )
    reserve = max((store.room.reserve_bytes for store in live), default=0)
    if root.free_bytes is not None and root.free_bytes < reserve:
        yield Banner(
            severity="bad",
            what="disk",
            title=f"The disk under {root.path} is nearly full",
            detail=f"{words.size(root.free_bytes)} free, less than the reserve of {words.size(reserve)}",
            stage="spooled",
        )


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
