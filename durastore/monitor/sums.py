"""Sums over the spools that were looked at: stages, room, requests, proofs, and what is only local. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from durastore.monitor.facts import Liveness, RootFacts, SpoolFacts
from durastore.monitor.view import Risk, RoomView
from durastore.observe.status import STAGES, Amount, PackAtRisk, Proofs, Stage, Transfers

__all__ = ["Totals", "find_risk", "find_rooms"]

_SHOWN_PACKS = 10


class Totals:
    """What went through the stages, and what it took: of the sessions that are to be seen, and of those that were seen
    before in the same spools. Used by one thread.
    """

    def __init__(self) -> None:
        self._last: dict[str, SpoolFacts] = {}
        self._done = dict.fromkeys(STAGES, Amount())
        self._transfers, self._proofs = Transfers(), Proofs()

    def note(self, named: Sequence[tuple[str, SpoolFacts]]) -> None:
        """What is seen now. A spool that has another process than at the last look begins a new session."""
        for name, spool in named:
            before = self._last.get(name)
            if before is not None and before.store is not None and _session_of(before) != _session_of(spool):
                for stage, amount in _done_of(before).items():
                    self._done[stage] = _plus(self._done[stage], amount)
                self._transfers = _add_transfers([self._transfers, before.store.transfers])
                self._proofs = _add_proofs([self._proofs, before.store.proofs])
            self._last[name] = spool

    def stages(self) -> tuple[Stage, ...]:
        """All of them, in order, with what waits before them now."""
        done, waiting = dict(self._done), dict.fromkeys(STAGES, Amount())
        for spool in self._last.values():
            for name, amount in _done_of(spool).items():
                done[name] = _plus(done[name], amount)
            if spool.liveness in (Liveness.LIVE, Liveness.SILENT):
                for name, amount in _waiting_of(spool).items():
                    waiting[name] = _plus(waiting[name], amount)
        return tuple(Stage(name=name, done=done[name], waiting=waiting[name]) for name in STAGES)

    def transfers(self) -> Transfers:
        found = [spool.store.transfers for spool in self._last.values() if spool.store is not None]
        return _add_transfers([self._transfers, *found])

    def proofs(self) -> Proofs:
        """Sums, and the last proof of all."""
        return _add_proofs(
            [self._proofs, *(spool.store.proofs for spool in self._last.values() if spool.store is not None)]
        )


def _session_of(spool: SpoolFacts) -> tuple[int, int] | None:
    return (spool.store.teller.pid, spool.store.teller.started_ns) if spool.store is not None else None


def _done_of(spool: SpoolFacts) -> dict[str, Amount]:
    found = {stage.name: stage.done for stage in spool.store.stages} if spool.store is not None else {}
    if spool.worker is not None:
        worker, queued = spool.worker, spool.worker.queued
        found["extracted"] = Amount(
            samples=worker.ok + queued.samples, size_bytes=worker.tensor_bytes + queued.size_bytes
        )
    return {name: amount for name, amount in found.items() if name in STAGES}


def _waiting_of(spool: SpoolFacts) -> dict[str, Amount]:
    found = {stage.name: stage.waiting for stage in spool.store.stages} if spool.store is not None else {}
    if spool.worker is not None:
        found["encoded"] = spool.worker.queued
    return {name: amount for name, amount in found.items() if name in STAGES}


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


def _add_transfers(found: Sequence[Transfers]) -> Transfers:
    return Transfers(
        retries=sum(each.retries for each in found),
        slowdowns=sum(each.slowdowns for each in found),
        stuck=sum(each.stuck for each in found),
        failed=sum(each.failed for each in found),
        sent_bytes=sum(each.sent_bytes for each in found),
    )


def _add_proofs(found: Sequence[Proofs]) -> Proofs:
    last = max(found, key=lambda proofs: proofs.last_ns or 0)
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
