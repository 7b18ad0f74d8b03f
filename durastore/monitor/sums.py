"""Sums over the spools that were looked at: stages, room, requests, proofs, and what is only local. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from durastore.monitor.facts import Liveness, RootFacts, SpoolFacts
from durastore.monitor.view import Risk, RoomView
from durastore.observe.status import STAGES, Amount, PackAtRisk, Proofs, Stage, Transfers

__all__ = ["find_risk", "find_rooms", "find_transfers", "latest_proofs", "sum_stages"]

_SHOWN_PACKS = 10


def sum_stages(spools: Sequence[SpoolFacts]) -> tuple[Stage, ...]:
    """All stages in order: what went through them in the last session of each spool, and what waits before them now."""
    done = dict.fromkeys(STAGES, Amount())
    waiting = dict.fromkeys(STAGES, Amount())
    for spool in spools:
        is_live = spool.liveness in (Liveness.LIVE, Liveness.SILENT)
        if spool.worker is not None:
            worker = spool.worker
            queued = worker.queued
            extracted = Amount(samples=worker.ok + queued.samples, size_bytes=worker.tensor_bytes + queued.size_bytes)
            done["extracted"] = _plus(done["extracted"], extracted)
            waiting["encoded"] = _plus(waiting["encoded"], queued if is_live else Amount())
        if spool.store is None:
            continue
        for stage in spool.store.stages:
            if stage.name in done:
                done[stage.name] = _plus(done[stage.name], stage.done)
                waiting[stage.name] = _plus(waiting[stage.name], stage.waiting if is_live else Amount())
    return tuple(Stage(name=name, done=done[name], waiting=waiting[name]) for name in STAGES)


def _plus(one: Amount, other: Amount) -> Amount:
    return Amount(
        samples=one.samples + other.samples,
        packs=one.packs + other.packs,
        size_bytes=one.size_bytes + other.size_bytes,
    )


def find_rooms(roots: Sequence[RootFacts]) -> tuple[RoomView, ...]:
    """One for each root that can be looked at."""
    rooms = []
    for root in roots:
        if root.problem is not None:
            continue
        live = [spool.store for spool in root.spools if spool.store is not None]
        at_rest = [s.glance for s in root.spools if s.glance is not None]
        told = [store for store in live if store.spool not in {glance.name for glance in at_rest}]
        fullest = max(told, key=lambda store: store.room.used_bytes / max(1, store.room.high_bytes), default=None)
        used = sum(store.room.used_bytes for store in told)
        used += sum(glance.journal.local_bytes for glance in at_rest if glance.journal is not None)
        room = fullest.room if fullest is not None else None
        rooms.append(
            RoomView(
                root=root.path,
                used_bytes=used,
                fullest=fullest.spool if fullest is not None else None,
                fullest_bytes=room.used_bytes if room is not None else 0,
                high_bytes=room.high_bytes if room is not None else 0,
                low_bytes=room.low_bytes if room is not None else 0,
                reserve_bytes=room.reserve_bytes if room is not None else 0,
                free_bytes=root.free_bytes,
                disk_bytes=root.disk_bytes,
                quarantined_bytes=sum(store.room.quarantined_bytes for store in told)
                + sum(glance.quarantined_bytes for glance in at_rest),
            )
        )
    return tuple(rooms)


def find_transfers(spools: Sequence[SpoolFacts]) -> Transfers:
    found = [spool.store.transfers for spool in spools if spool.store is not None]
    return Transfers(
        retries=sum(each.retries for each in found),
        slowdowns=sum(each.slowdowns for each in found),
        stuck=sum(each.stuck for each in found),
        failed=sum(each.failed for each in found),
        sent_bytes=sum(each.sent_bytes for each in found),
    )


def latest_proofs(spools: Sequence[SpoolFacts]) -> Proofs:
    """Sums, and the last proof of all."""
    found = [spool.store.proofs for spool in spools if spool.store is not None]
    last = max(found, key=lambda proofs: proofs.last_ns or 0, default=Proofs())
    return Proofs(
        attested=sum(each.attested for each in found),
        read_back=sum(each.read_back for each in found),
        mismatches=sum(each.mismatches for each in found),
        last_pack=last.last_pack,
        last_level=last.last_level,
        last_ns=last.last_ns,
    )


def find_risk(spools: Sequence[tuple[str, SpoolFacts]]) -> Risk:
    """What is in no manifest segment yet: by the store's word where one works, else by the journal."""
    samples = packs = size_bytes = 0
    shown: list[tuple[str, PackAtRisk]] = []
    oldest: list[int] = []
    for name, spool in spools:
        journal = spool.glance.journal if spool.glance is not None else None
        if journal is not None:
            samples += journal.only_local_samples
            oldest += [journal.oldest_only_local_ns] if journal.oldest_only_local_ns is not None else []
            continue
        if spool.store is None or spool.glance is not None:
            continue
        risk = spool.store.at_risk
        samples += risk.total.samples
        packs += risk.total.packs
        size_bytes += risk.total.size_bytes
        shown += [(name, pack) for pack in risk.shown]
        oldest += [risk.oldest_ns] if risk.oldest_ns is not None else []
    shown.sort(key=lambda each: each[1].since_ns or 0)
    return Risk(
        samples=samples,
        packs=packs,
        size_bytes=size_bytes,
        oldest_ns=min(oldest, default=None),
        shown=tuple(shown[:_SHOWN_PACKS]),
    )
