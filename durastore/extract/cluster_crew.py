"""The workers of one command on the machines of a cluster.

Duty: start them, hand out leases to them, write down what they tell, start a new one for each that was lost while there
is work, tell them to stop, and say what was left on which machine. Must never take the word of a worker that was given
up: its samples are others' by then. Must never go on for ever with workers that die without having done anything, that
never start, or that no longer answer when others have done all there was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from signal import SIGTERM

from durastore.clock import Clock
from durastore.errors import ConfigError, CredentialsRefused, DurastoreError, EngineFailed
from durastore.extract.cluster import Actor, Answer, Begun, Cluster, Hello, Lost, Refused
from durastore.extract.crew import CrewEnd
from durastore.extract.deaths import DeathCount
from durastore.extract.lease_line import Given, Told
from durastore.extract.leased_work import WorkerEnd, WorkerOrder
from durastore.extract.leases import LeaseQueue
from durastore.extract.leftovers import Leftovers
from durastore.extract.seat import LocalSeat
from durastore.extract.semantic import merged
from durastore.extract.switch import StopSwitch
from durastore.observe.events import LOGGER

__all__ = ["ClusterCrew"]

_POLL_S = 0.2
_SLACK_S = 15.0
"""Workers are told to stop within a second, and leave by themselves so soon after their grace time."""
_AGAIN_S = 1.0
_START_S = 600.0
"""Without any worker for so long the command ends: what it asks for is not there."""
_TELL_S = 60.0


@dataclass(slots=True, eq=False)
class _Member:
    order: WorkerOrder
    actor: Actor
    since_s: float
    """When it was started, then when it answered last."""
    hello: Hello | None = None
    seat: LocalSeat | None = None
    spool: str | None = None
    given: Given = field(default_factory=lambda: Given(number=0))
    has_begun: bool = False
    """It said so."""
    again_s: float | None = None
    """When to ask the same again."""

    @property
    def where(self) -> str:
        return f"worker on {self.hello.host}" if self.hello is not None else "worker"


class ClusterCrew:
    """Called as `run_crew` is, once for each round of a job."""

    def __init__(self, cluster: Cluster, *, version: str) -> None:
        """`version`: this durastore's, which every machine has to have."""
        self._cluster = cluster
        self._version = version
        self._leftovers = Leftovers(cluster)

    def __call__(
        self, orders: Sequence[WorkerOrder], queue: LeaseQueue, *, switch: StopSwitch, clock: Clock
    ) -> CrewEnd:
        """Run these workers until the queue is empty, all were stopped, or one cannot go on. Raises for no worker;
        `DiskFailed` where this machine's queue or records cannot be written.
        """
        known = (self._leftovers, self._version)
        shift = _Shift(self._cluster, queue, bookkeeping=(switch, clock), known=known)
        try:
            shift.run(orders)
        finally:
            shift.close()
        if shift.error is None and switch.signal is None:
            self._leftovers.drain(orders[0].request, switch=switch, clock=clock)
        return shift.end(self._leftovers)


class _Shift:
    def __init__(
        self,
        cluster: Cluster,
        queue: LeaseQueue,
        *,
        bookkeeping: tuple[StopSwitch, Clock],
        known: tuple[Leftovers, str],
    ) -> None:
        self._cluster = cluster
        self._queue = queue
        self._switch, self._clock = bookkeeping
        self._leftovers, self._version = known
        self._members: list[_Member] = []
        self._ends: list[WorkerEnd] = []
        self._deaths = DeathCount(queue)
        self._stop: int | None = None
        self._idle_since_s: float | None = None
        self._lonely_since_s = self._told_s = self._clock.monotonic()
        self._abandoned = False
        self.error: DurastoreError | None = None

    def run(self, orders: Sequence[WorkerOrder]) -> None:
        request = orders[0].request
        for order in orders:
            self._start(order, near=None)
        give_up_s: float | None = None
        while self._members and (give_up_s is None or self._clock.monotonic() < give_up_s):
            self._look_after()
            if self._stop is not None:
                continue
            self._look_for_starts()
            is_stuck = self._is_waiting_in_vain(request.lease_s)
            if is_stuck:
                LOGGER.error("workers no longer answer; all samples are done, and they are told to leave")
            if self._switch.signal is not None or self.error is not None or is_stuck:
                self._stop = self._switch.signal or SIGTERM
                give_up_s = self._clock.monotonic() + request.grace_s + _SLACK_S
                self._let_go(lambda member: member.seat is None)
        self._abandoned = bool(self._members)

    def close(self) -> None:
        """Give up whoever is left. Safe to repeat."""
        for member in self._members:
            self._leftovers.note(member.hello, member.spool)
        self._let_go(lambda _: True)

    def end(self, leftovers: Leftovers) -> CrewEnd:
        ends = self._ends
        return CrewEnd(
            error=self.error,
            was_asked_to_stop=bool(ends) and all(end.signal is not None for end in ends) and self._stop is None,
            is_abandoned=self._abandoned or any(end.is_abandoned for end in ends),
            deaths=self._deaths.total,
            checks=merged([end.checks for end in ends]),
            left_behind=leftovers.left(),
        )

    # --- starting ----------------------------------------------------------------------------------------------------

    def _start(self, order: WorkerOrder, *, near: str | None) -> None:
        member = _Member(order, self._cluster.start(near=near), self._clock.monotonic())
        self._members.append(member)
        member.actor.hello()

    def _look_for_starts(self) -> None:
        """Those that do not start are told of, and not waited for once there is nothing to do, or for ever."""
        if not self._queue.has_work():
            self._let_go(lambda member: member.seat is None)
            return
        now_s = self._clock.monotonic()
        if all(member.seat is not None for member in self._members):
            self._lonely_since_s = self._told_s = now_s
            return
        if any(member.seat is not None for member in self._members):
            self._lonely_since_s = now_s
        if now_s - self._told_s > _TELL_S:
            waiting = sum(member.seat is None for member in self._members)
            LOGGER.warning("%d workers wait for a place: %s", waiting, self._cluster.describe())
            self._told_s = now_s
        if now_s - self._lonely_since_s > _START_S:
            self.error = self.error or ConfigError(
                f"no worker could be started in {_START_S:.0f} s: {self._cluster.describe()}",
                hint="ask for less with --num-gpus and --num-cpus, or wait until others have ended",
            )

    def _welcome(self, member: _Member, hello: Hello) -> None:
        member.hello = hello
        if hello.version != self._version:
            self._fail(
                member,
                ConfigError(
                    f"{hello.host} has durastore {hello.version}, and this command is {self._version}",
                    hint="install the same version on every machine",
                ),
            )
            return
        if self._stop is not None or not self._queue.has_work():
            self._drop(member)
            return
        order = member.order
        names = (order.job, order.run)
        place = f" on {hello.host}"
        member.seat = LocalSeat.join(order.request, names=names, clock=self._clock, pid=hello.pid, place=place)
        member.seat.records.ledger.note("WORKER-START", number=member.seat.number, host=hello.host, pid=hello.pid)
        self._ask(member)

    # --- answers -----------------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Wait a moment, then see to those that answered."""
        now_s = self._clock.monotonic()
        for member in self._members:
            if member.again_s is not None and member.again_s <= now_s:
                member.again_s = None
                self._ask(member)
        asked = {id(member.actor): member for member in self._members if member.again_s is None}
        if not asked:
            self._clock.sleep(_POLL_S)
            return
        for actor, answer in self._cluster.answers([member.actor for member in asked.values()], _POLL_S):
            self._hear(asked[id(actor)], answer)

    def _ask(self, member: _Member) -> None:
        if member.seat is None:
            member.actor.hello()
        elif not member.has_begun:
            member.actor.begin(member.order, member.seat.number)  # twice is once
        else:
            member.actor.exchange(member.given)

    def _hear(self, member: _Member, answer: Answer) -> None:
        if not isinstance(answer, Lost):
            member.since_s = self._clock.monotonic()
        if isinstance(answer, Hello):
            self._welcome(member, answer)
        elif isinstance(answer, Begun):
            member.has_begun = True
            self._give(member, Given(number=member.given.number + 1, stop=self._stop))
        elif isinstance(answer, Told):
            self._write_down(member, answer)
        elif isinstance(answer, Lost):
            self._miss(member, answer)
        elif isinstance(answer, Refused):
            self._leftovers.note(member.hello, member.spool)
            what = "cannot be started" if member.seat is None else "cannot go on"
            self._fail(member, EngineFailed(f"a {member.where} {what}: {answer.reason}", hint=_NODES))

    def _give(self, member: _Member, given: Given) -> None:
        member.given = given
        self._ask(member)

    def _write_down(self, member: _Member, told: Told) -> None:
        """What it did since, in the order in which it may have done it: what it handed back it did not store."""
        seat = member.seat
        assert seat is not None
        member.spool = told.spool or member.spool
        for note in told.notes:
            seat.records.ledger.note("LOG", worker=seat.number, message=note)
        for sample in told.stored:
            seat.stored(sample)
        for failure in told.failed:
            seat.failed(failure)
        if told.is_renewed:
            seat.renew()
        if told.is_leaving:
            seat.leaving()
        if told.is_handed_back:
            seat.hand_back()
        if told.is_flushed:
            seat.flushed()
        if told.end is not None:
            self._see_off(member, told.end)
        else:
            self._give(member, self._answer(member, told, seat=seat))

    def _answer(self, member: _Member, told: Told, *, seat: LocalSeat) -> Given:
        number = member.given.number + 1
        if not told.request or self._stop is not None or told.is_leaving or told.is_handed_back:
            return Given(number=number, stop=self._stop)
        rows, hopeless = seat.take(batch_tokens=told.batch_tokens)
        for failure in hopeless:
            seat.failed(failure)
        has_others = bool(rows) or seat.has_work_of_others()
        return Given(number=number, answers=told.request, rows=tuple(rows), has_others=has_others)

    # --- ends --------------------------------------------------------------------------------------------------------

    def _miss(self, member: _Member, lost: Lost) -> None:
        """Gone, or silent for a lease: then others get its samples. What it stored is on its machine."""
        silent_s = self._clock.monotonic() - member.since_s
        if not lost.is_gone and silent_s < member.order.request.lease_s:
            member.again_s = self._clock.monotonic() + _AGAIN_S
            return
        LOGGER.warning("%s was lost: %s", member.where, lost.reason)
        self._leftovers.note(member.hello, member.spool)
        self._drop(member)
        hopeless = self._deaths.another(f"the last one: {lost.reason}")
        if self._stop is not None:
            return
        if hopeless is not None:
            self.error = self.error or hopeless
        elif self._queue.has_work():
            # On the same machine, so that it takes over the spool; on another, if that machine is gone.
            self._start(member.order, near=member.hello.node if member.hello is not None else None)

    def _see_off(self, member: _Member, end: WorkerEnd) -> None:
        assert member.seat is not None
        member.seat.records.ledger.note("WORKER-END", number=member.seat.number, ok=end.ok)
        self._ends.append(end)
        if not end.is_flushed:
            self._leftovers.note(member.hello, member.spool)
        if end.error is None:
            self._drop(member)
        else:
            self._fail(member, _at(member.where, end.error))

    def _fail(self, member: _Member, error: DurastoreError) -> None:
        self.error = self.error or error
        self._drop(member)

    def _drop(self, member: _Member) -> None:
        """Its leases are open again, and nothing that it may still say is heard."""
        self._members = [other for other in self._members if other is not member]
        if member.seat is not None:
            member.seat.close()
        self._cluster.release(member.actor)

    def _let_go(self, is_meant: Callable[[_Member], bool]) -> None:
        for member in [member for member in self._members if is_meant(member)]:
            self._drop(member)

    def _is_waiting_in_vain(self, lease_s: float) -> bool:
        """As a crew of processes: all that are left have had no work for a lease and did not notice."""
        if self._queue.has_work():
            self._idle_since_s = None
            return False
        now_s = self._clock.monotonic()
        self._idle_since_s = now_s if self._idle_since_s is None else self._idle_since_s
        if now_s - self._idle_since_s < lease_s:
            return False
        lagging = self._queue.lagging()
        return all(member.seat is not None and member.seat.number in lagging for member in self._members)


_NODES = "durastore and what its engine needs have to be installed on every machine, for the same Python"
_CREDENTIALS = "each machine uses its own AWS chain: environment of its Ray processes, profile, or an instance's role"


def _at(where: str, error: DurastoreError) -> DurastoreError:
    """The same error, telling where."""
    hint = error.hint
    if isinstance(error, CredentialsRefused):
        hint = f"{hint}; {_CREDENTIALS}" if hint else _CREDENTIALS
    told = type(error)(f"{where}: {error.message}", hint=hint, **error.facts)
    told.__cause__ = error
    return told
