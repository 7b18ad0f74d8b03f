"""What an open store tells of itself: sums of its journals, counters and last events, in `store.status` of its spool.

Duty: put a `StoreRecord` together once a second, notice when nothing moves, and say why. Reads only; every number is as
of a moment ago. Must never be in the way of a put (see `Heartbeat`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from durastore.config import StoreOptions
from durastore.formats.status import STORE_STATUS_NAME, render_slot
from durastore.fsio.folder import Folder
from durastore.model import PackState
from durastore.observe.events import Counting
from durastore.observe.heartbeat import Heartbeat
from durastore.observe.recent import Recent
from durastore.observe.stalls import StageLook, StallWatch
from durastore.observe.status import Amount, AtRisk, Room, Stage, StoreRecord, Teller, Transfers, clipped
from durastore.spool.last_words import load_unended_pid
from durastore.store.lane import Lane
from durastore.store.services import Services

__all__ = ["StoreReporter"]

_SHOWN_FAILURES = 8
_WORDS = {
    "endpoint-unreachable": "the endpoint does not answer",
    "EndpointUnreachable": "the endpoint does not answer",
    "ambiguous-write": "the endpoint's answers get lost",
    "AmbiguousWrite": "the endpoint's answers get lost",
    "endpoint-overloaded": "the endpoint asks for less (SlowDown)",
    "OverloadedEndpoint": "the endpoint asks for less (SlowDown)",
    "credentials": "the credentials are refused",
    "CredentialsRefused": "the credentials are refused",
    "no-bucket": "the bucket is not there",
    "BucketMissing": "the bucket is not there",
}
_WAITING_FOR = {
    "uploaded": (PackState.SEALED, PackState.UNKNOWN, PackState.CONFLICT),
    "verified": (PackState.UPLOADED,),
    "manifested": (PackState.VERIFIED,),
    "reclaimed": (PackState.MANIFESTED,),
}
_EVENTS = {"uploaded": "upload.done", "verified": "pack.verified", "reclaimed": "reclaim.freed"}


class StoreReporter:
    """Start with `start`; `stop` before the journals are closed."""

    def __init__(self, services: Services, lanes: Sequence[Lane], *, counters: Counting, recent: Recent) -> None:
        self._services = services
        self._lanes = lanes
        self._counters = counters
        self._recent = recent
        self._watch = StallWatch(services.observer)
        spool = lanes[0].spool
        self._file = spool.status_file(STORE_STATUS_NAME)
        self._spool = spool
        self._name = spool.path.name
        with Folder.open(spool.path) as folder:
            after_pid = load_unended_pid(folder, StoreRecord)
        self._heartbeat = Heartbeat(self._render, self._file, clock=services.clock, after_pid=after_pid)

    def start(self) -> None:
        self._heartbeat.start()

    def stop(self) -> None:
        """Say goodbye. Safe to repeat."""
        self._heartbeat.stop()
        self._file.close()

    def _render(self, teller: Teller, number: int) -> bytes:
        return render_slot(self.record(teller), number=number)

    def record(self, teller: Teller) -> StoreRecord:
        """How things stand. Errors of a journal pass."""
        services, counts = self._services, self._counters.counts()
        standings = [lane.spool.journal.standing() for lane in self._lanes]
        states: dict[PackState, Amount] = {}
        for standing in standings:
            for state, amount in standing.states.items():
                states[state] = _sum(states.get(state, Amount()), amount)
        stages = _stages(counts, states)
        shown = sorted((p for s in standings for p in s.at_risk.shown), key=lambda pack: pack.since_ns or 0)
        failures = [str(error) for lane in self._lanes for error in lane.failures()]
        mismatches = sum(counts[f"verify.{what}"] for what in ("mismatch", "canary_failed", "spot_mismatch"))
        stall = self._watch.look(self._looks(stages, counts, failed=len(failures)), now_ns=teller.written_ns)
        return StoreRecord(
            teller=teller,
            spool=self._name,
            drains=tuple(lane.spool.path.name for lane in self._lanes[1:]),
            bucket=f"{services.objects.url.rstrip('/')}/{services.prefix}",
            run=services.run.digest.hex,
            stages=stages,
            room=self._room(services.options),
            transfers=_transfers(counts),
            proofs=self._recent.proofs(
                attested=counts["verify.attested"], read_back=counts["verify.read_back"], mismatches=mismatches
            ),
            at_risk=AtRisk(total=_total([s.at_risk.total for s in standings]), shown=tuple(shown[:8])),
            wait=self._recent.wait,
            stopped=clipped(services.verifier.distrust) if services.verifier.distrust else None,
            is_probing=services.board.is_probing,
            failure_count=len(failures),
            failures=tuple(map(clipped, failures[-_SHOWN_FAILURES:])),
            happenings=self._recent.happenings(),
            stall=stall,
        )

    def _room(self, options: StoreOptions) -> Room:
        return Room(
            used_bytes=sum(lane.spool.used_bytes() for lane in self._lanes),
            high_bytes=options.high_watermark_bytes,
            low_bytes=options.low_watermark_bytes,
            reserve_bytes=options.reserve_bytes,
            free_bytes=self._spool.free_bytes(),
            disk_bytes=self._spool.disk_bytes(),
            quarantined_bytes=sum(lane.spool.quarantined_bytes() for lane in self._lanes),
        )

    def _looks(self, stages: Sequence[Stage], counts: Counter[str], *, failed: int) -> list[StageLook]:
        waiting = {stage.name: stage.waiting.packs for stage in stages}
        sent = counts["upload.done"] + counts["upload.part"] + counts["upload.sent"]
        progress = {
            "uploaded": sent,
            "verified": counts["pack.verified"],
            "manifested": counts["manifest.segment"],
        }
        obstacle = self._obstacle()
        everything = sum(progress.values()) + counts["put"] + counts["reclaim.freed"]
        wait = self._recent.wait
        looks = [StageLook(name="spooled", is_waited_for=wait is not None, progress=everything, obstacle=wait)]
        for name, done in progress.items():
            # a pack that cannot get on in this session waits for a person, which is told as a failure
            waits = waiting[name] > failed if name == "uploaded" else waiting[name] > 0
            looks.append(StageLook(name=name, is_waited_for=waits, progress=done, obstacle=obstacle))
        return looks

    def _obstacle(self) -> str | None:
        fatal = self._services.board.fatal
        if fatal is not None:
            return f"{_WORDS.get(fatal.code, fatal.code)}: {fatal.message}"
        found = self._recent.obstacle
        troubles = [lane.last_trouble for lane in self._lanes if lane.last_trouble is not None]
        if found is None:
            return None
        words = _WORDS.get(found.text, found.text)
        return f"{words}: {troubles[-1]}" if troubles else words


def _stages(counts: Counter[str], states: dict[PackState, Amount]) -> tuple[Stage, ...]:
    encoded = Amount(samples=counts["encoded.samples"], size_bytes=counts["encoded.bytes"])
    spooled = Amount(samples=counts["put.samples"], size_bytes=counts["put.bytes"])
    between = Amount(
        samples=max(0, encoded.samples - counts["settled.samples"]),
        size_bytes=max(0, encoded.size_bytes - counts["settled.bytes"]),
    )
    manifested = Amount(
        samples=counts["manifest.segment.samples"],
        packs=counts["manifest.segment.packs"],
        size_bytes=counts["manifest.segment.bytes"],
    )
    done = {name: _counted(counts, event) for name, event in _EVENTS.items()} | {"manifested": manifested}
    return (
        Stage(name="encoded", done=encoded, waiting=Amount()),
        Stage(name="spooled", done=spooled, waiting=between),
        *(
            Stage(name=name, done=done[name], waiting=_total([states[s] for s in of if s in states]))
            for name, of in _WAITING_FOR.items()
        ),
    )


def _counted(counts: Counter[str], event: str) -> Amount:
    return Amount(samples=counts[f"{event}.samples"], packs=counts[event], size_bytes=counts[f"{event}.bytes"])


def _transfers(counts: Counter[str]) -> Transfers:
    return Transfers(
        retries=counts["upload.retry"],
        slowdowns=counts["upload.overloaded"],
        stuck=counts["upload.stuck"],
        failed=counts["upload.failed"],
        sent_bytes=counts["upload.sent.size_bytes"],
    )


def _sum(one: Amount, other: Amount) -> Amount:
    return _total([one, other])


def _total(amounts: Sequence[Amount]) -> Amount:
    return Amount(
        samples=sum(each.samples for each in amounts),
        packs=sum(each.packs for each in amounts),
        size_bytes=sum(each.size_bytes for each in amounts),
    )
