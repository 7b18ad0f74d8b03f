"""Facts of a moment, and what was seen before, to the view.

Duty: one `View` for each look. No I/O. What it keeps from look to look is bounded by the number of spools.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from durastore.clock import Stamp
from durastore.extract.job_book import JobStanding
from durastore.monitor.banners import find_banners
from durastore.monitor.facts import Liveness, RootFacts, SpoolFacts
from durastore.monitor.history import Counters, History, Rates
from durastore.monitor.limits import LimitWatch, Work, stalled_limit
from durastore.monitor.sums import Totals, find_risk, find_rooms
from durastore.monitor.view import Banner, Failure, JobView, Probe, View, WorkerView
from durastore.observe.status import Happening

__all__ = ["ViewBuilder"]

_EVENTS = 40
_SHOWN_FAILURES = 20
_STATES_OF_PHASES = {"starting": "loading", "loading": "loading", "extracting": "working", "flushing": "flushing"}


@dataclass(frozen=True, slots=True)
class _Named:
    """A spool, with its root's name in front where there are several."""

    name: str
    facts: SpoolFacts


class ViewBuilder:
    """Used by one thread."""

    def __init__(self) -> None:
        self._history = History()
        self._totals = Totals()
        self._limits = LimitWatch()
        self._events: deque[Happening] = deque(maxlen=_EVENTS)
        self._pids: dict[str, tuple[int, bool]] = {}
        """Spool -> its last process, and whether its death was told."""
        self._told: dict[tuple[str, str], Banner] = {}
        self._deaths = 0

    def build(self, roots: Sequence[RootFacts], *, now_s: float, now_ns: int) -> View:
        """`now_s`: monotonic seconds, for rates."""
        named = [
            _Named(spool.name if len(roots) == 1 else f"{root.path}/{spool.name}", spool)
            for root in roots
            for spool in root.spools
        ]
        self._note(named, now_s=now_s, now_ns=now_ns)
        spools = [each.facts for each in named]
        self._totals.note([(each.name, each.facts) for each in named])
        stages = self._totals.stages()
        live = [spool for spool in spools if spool.liveness is Liveness.LIVE]
        limit = self._limits.look(
            stages,
            Work(
                is_waiting=any(s.store is not None and s.store.wait is not None for s in live),
                is_extracting=any(s.worker is not None and s.worker.phase in ("loading", "extracting") for s in live)
                or bool(self._history.rates().samples),
                stores=len(live),
            ),
            now_s=now_s,
        )
        banners = find_banners(roots, now_ns=now_ns)
        self._tell(banners, now_ns)
        stall = next((banner for banner in banners if banner.what == "stall"), None)
        if stall is not None:
            limit = stalled_limit(stages, stall)
        failures, failure_count = _failures(roots)
        return View(
            at_ns=now_ns,
            roots=tuple(root.path for root in roots),
            jobs=tuple(self._job(standing, root) for root in roots for standing in root.jobs),
            rates=self._history.rates(),
            series=self._history.series.points(),
            stages=stages,
            limit=limit,
            workers=tuple(self._worker(each) for each in named),
            rooms=find_rooms(roots),
            transfers=self._totals.transfers(),
            proofs=self._totals.proofs(),
            audited=sum(s.worker.audited for s in spools if s.worker is not None),
            probes=tuple(_probes(roots)),
            risk=find_risk([(each.name, each.facts) for each in named]),
            failures=failures,
            failure_count=failure_count,
            banners=banners,
            events=tuple(self._recent(spools)),
            deaths=self._deaths,
        )

    # --- what is kept ----------------------------------------------------------------------------------------------

    def _note(self, named: Sequence[_Named], *, now_s: float, now_ns: int) -> None:
        for each in named:
            store = each.facts.store
            if store is None:
                continue
            done = {stage.name: stage.done for stage in store.stages}
            counters = Counters(
                samples=done["spooled"].samples if "spooled" in done else 0,
                put_bytes=done["spooled"].size_bytes if "spooled" in done else 0,
                uploaded_bytes=done["uploaded"].size_bytes if "uploaded" in done else 0,
            )
            teller = store.teller
            self._history.note(each.name, (teller.pid, teller.started_ns), now=(now_s, counters))
            self._note_process(each, now_ns)
        self._history.tick(now_s, now_ns)

    def _note_process(self, each: _Named, now_ns: int) -> None:
        """A death is told once: when it is seen, or when the next process of the spool tells of it."""
        assert each.facts.store is not None
        teller = each.facts.store.teller
        pid, was_told = self._pids.get(each.name, (teller.pid, False))
        if pid != teller.pid:
            if not was_told and teller.after_pid == pid:
                self._tell_death(each.name, pid, now_ns=now_ns)
            self._add(now_ns, what="process.took-over", text=f"{each.name}: process {teller.pid} goes on after {pid}")
            was_told = False
        if each.facts.liveness is Liveness.KILLED and not was_told:
            self._tell_death(each.name, teller.pid, now_ns=now_ns)
            was_told = True
        self._pids[each.name] = (teller.pid, was_told)

    def _tell_death(self, spool: str, pid: int, *, now_ns: int) -> None:
        self._deaths += 1
        self._add(now_ns, what="process.killed", text=f"{spool}: process {pid} ended without saying so")

    def _tell(self, banners: Sequence[Banner], now_ns: int) -> None:
        now = {(banner.what, banner.title if banner.what != "silent" else ""): banner for banner in banners}
        for key, banner in now.items():
            if key not in self._told:
                self._add(now_ns, what=f"{banner.what}.begun", text=f"{banner.title}; {banner.detail}")
        for key, banner in self._told.items():
            if key not in now:
                self._add(now_ns, what=f"{banner.what}.over", text=banner.title)
        self._told = now

    def _add(self, now_ns: int, *, what: str, text: str) -> None:
        self._events.append(Happening(at_ns=now_ns, what=what, text=text))

    def _recent(self, spools: Sequence[SpoolFacts]) -> list[Happening]:
        """Our own and those that the stores told, newest first."""
        theirs = [
            replace(happening, text=f"{spool.name}: {happening.text}")
            for spool in spools
            if spool.store is not None
            for happening in spool.store.happenings
        ]
        found = sorted([*theirs, *self._events], key=lambda happening: happening.at_ns)
        return found[: -_EVENTS - 1 : -1]

    # --- parts -----------------------------------------------------------------------------------------------------

    def _job(self, standing: JobStanding, root: RootFacts) -> JobView:
        job, known = standing.job, standing
        if not job.workers and job.ended_ns is None:
            told = [s.worker for s in root.spools if s.worker is not None and s.worker.job == job.job]
            if told:
                worker = told[-1]
                known = replace(standing, ok=worker.ok, failed=worker.failed, skipped=worker.skipped)
        is_over = job.ended_ns is not None
        left = job.inputs - known.done
        state = ("ended" if left or job.exit_code else "finished") if is_over else "running"
        if not is_over and job.pid not in root.living_pids:
            state = "gone"
        speed = self._history.long_rates().samples if state == "running" else None
        return JobView(
            name=job.job,
            input=job.input,
            inputs=job.inputs,
            ok=known.ok,
            failed=known.failed,
            skipped=known.skipped,
            state=state,
            workers=max(1, job.workers),
            started_ns=job.started_ns,
            ended_ns=job.ended_ns,
            exit_code=job.exit_code,
            samples_per_s=self._history.rates().samples if state == "running" else None,
            eta_s=left / speed if speed and left > 0 else None,
        )

    def _worker(self, each: _Named) -> WorkerView:
        facts, store, worker = each.facts, each.facts.store, each.facts.worker
        teller = store.teller if store is not None else worker.teller if worker is not None else None
        state, says = _state_of(facts)
        journal = facts.glance.journal if facts.glance is not None else None
        waiting = [s.waiting.packs for s in store.stages if s.name == "uploaded"] if store is not None else []
        only_local = store.at_risk.total.samples if store is not None else 0
        is_live = facts.liveness is Liveness.LIVE
        return WorkerView(
            spool=each.name,
            number=worker.number if worker is not None else 0,
            pid=teller.pid if teller is not None else None,
            state=state,
            says=says,
            ok=worker.ok if worker is not None else 0,
            failed=worker.failed if worker is not None else 0,
            skipped=worker.skipped if worker is not None else 0,
            rates=self._history.rates_of(each.name) if is_live else Rates(),
            used_bytes=journal.local_bytes if journal is not None else store.room.used_bytes if store else 0,
            high_bytes=store.room.high_bytes if store is not None else 0,
            only_local=journal.only_local_samples if journal is not None else only_local,
            waiting_packs=waiting[0] if waiting else 0,
            age_s=facts.silent_s,
        )


def _state_of(facts: SpoolFacts) -> tuple[str, str]:
    store, worker = facts.store, facts.worker
    if facts.liveness is Liveness.KILLED:
        return "killed", "ended without saying so"
    if facts.liveness is Liveness.ENDED:
        problem = facts.glance.problem if facts.glance is not None else None
        return "ended", problem or "said goodbye"
    if facts.liveness is Liveness.SILENT:
        where = f"waits for the disk in {facts.disk_wait}" if facts.disk_wait else f"no word for {facts.silent_s:.0f} s"
        return "silent", where
    stall = (store.stall if store is not None else None) or (worker.stall if worker is not None else None)
    if stall is not None:
        return "stalled", f"{stall.stage}: {stall.why}"
    if store is not None and store.wait is not None:
        return "waiting", f"put waits: {store.wait}"
    if worker is not None:
        passing = f"in a pass for {worker.pass_s:.0f} s" if worker.pass_s is not None and worker.pass_s >= 5 else ""
        return _STATES_OF_PHASES.get(worker.phase, "storing"), passing
    if store is not None and store.is_probing:
        return "storing", "the endpoint is probed"
    return "storing", f"also drains {', '.join(store.drains)}" if store is not None and store.drains else ""


def _failures(roots: Sequence[RootFacts]) -> tuple[tuple[Failure, ...], int]:
    found = [
        Failure(
            name=known.sample_id or f"line {known.line}", where=known.stage, reason=known.reason, at_ns=known.time_ns
        )
        for root in roots
        for known in root.failures
    ]
    packs = [
        Failure(name=spool.name, where="pack", reason=reason, at_ns=None)
        for root in roots
        for spool in root.spools
        if spool.store is not None and spool.liveness is Liveness.LIVE
        for reason in spool.store.failures
    ]
    troubles = [
        Failure(name=name, where="pack", reason=reason, at_ns=None)
        for root in roots
        for spool in root.spools
        if spool.glance is not None and spool.glance.journal is not None
        for name, reason in spool.glance.journal.troubles
    ]
    total = sum(root.failure_count for root in roots) + len(packs) + len(troubles)
    return tuple([*packs, *troubles, *found][:_SHOWN_FAILURES]), total


def _probes(roots: Sequence[RootFacts]) -> Iterator[Probe]:
    for root in roots:
        for probe in root.probes:
            yield Probe(
                place=f"{probe.endpoint} {probe.bucket}/{probe.prefix}",
                level=probe.level.name,
                taken_ns=Stamp.parse(probe.taken).wall_ns,
                blocking=probe.blocking,
            )
