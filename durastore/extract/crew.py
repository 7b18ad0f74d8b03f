"""The worker processes that one command started.

Duty: start them, start a new one for each that was killed while there is work, tell them to stop, and collect how they
ended. A worker that was asked to stop is not replaced: that is how one is taken out. Must never signal a process that
it did not start, never kill one, and never go on for ever with workers that die without having done anything, or that
no longer answer when others have done all there was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from durastore.clock import Clock
from durastore.errors import DurastoreError
from durastore.extract.deaths import DeathCount
from durastore.extract.leased_work import WorkerEnd, WorkerOrder
from durastore.extract.leases import LeaseQueue
from durastore.extract.report import LeftSpool
from durastore.extract.semantic import CheckReport, merged
from durastore.extract.switch import StopSwitch
from durastore.extract.worker import work
from durastore.observe.events import LOGGER

__all__ = ["CrewEnd", "run_crew"]

_POLL_S = 0.2
_SLACK_S = 10.0
"""Workers leave by themselves this soon after their grace time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewEnd:
    """How all of them ended."""

    error: DurastoreError | None = None
    was_asked_to_stop: bool = False
    """All that could still speak were told by somebody else to stop."""
    is_abandoned: bool = False
    deaths: int = 0
    left_behind: tuple[LeftSpool, ...] = ()
    """On other machines."""
    checks: CheckReport = field(default_factory=CheckReport)
    """Of the workers that could tell."""


@dataclass(slots=True, eq=False)
class _Member:
    order: WorkerOrder
    process: SpawnProcess
    answer: Connection
    end: WorkerEnd | None = None
    """Its last word, once it came."""


@dataclass(slots=True)
class _Crew:
    queue: LeaseQueue
    switch: StopSwitch
    clock: Clock
    deaths: DeathCount
    members: list[_Member] = field(default_factory=list)
    ends: list[WorkerEnd] = field(default_factory=list)
    error: DurastoreError | None = None
    idle_since_s: float | None = None
    """Since when there has been nothing to do."""

    def start(self, order: WorkerOrder) -> None:
        context = get_context("spawn")  # a fork would take locks, threads and CUDA along
        answer, told = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(order, told), name=f"durastore-worker-{order.slot}")
        process.start()
        told.close()  # or the end of the process would not end the pipe
        self.members.append(_Member(order, process, answer))

    def look_after(self) -> None:
        """Wait a moment, hear who says how it ended, then see to those that are gone. A worker that says more than a
        pipe holds ends only once it was heard.
        """
        talking = [member.answer for member in self.members if not member.answer.closed]
        wait([*talking, *(member.process.sentinel for member in self.members)], _POLL_S)
        for member in self.members:
            if not member.answer.closed and member.answer.poll():
                member.end = _answer_of(member.answer)
        ended = [member for member in self.members if not member.process.is_alive()]
        self.members = [member for member in self.members if member not in ended]
        for member in ended:
            self._see_off(member)

    def _see_off(self, member: _Member) -> None:
        member.process.join()
        end = member.end if member.answer.closed else _answer_of(member.answer)
        if end is not None:
            self.ends.append(end)
            self.error = self.error or end.error
            return
        hopeless = self.deaths.another(f"the last one's exit status was {member.process.exitcode}")
        if self.switch.signal is not None:
            return
        if hopeless is not None:
            self.error = self.error or hopeless
        elif self.queue.has_work():
            self.start(member.order)

    def is_waiting_in_vain(self, lease_s: float) -> bool:
        """Whether all that are left have had no work for a lease and did not notice: a pass that never ends, a process
        that was suspended. One that still flushes has said so, and may take its time.
        """
        if self.queue.has_work():
            self.idle_since_s = None
            return False
        now_s = self.clock.monotonic()
        self.idle_since_s = now_s if self.idle_since_s is None else self.idle_since_s
        if now_s - self.idle_since_s < lease_s:
            return False
        lagging = set(self.queue.lagging().values())
        return all(member.process.pid in lagging for member in self.members)

    def stop(self) -> None:
        for member in self.members:
            member.process.terminate()  # SIGTERM to a child that was not waited for yet: never to another process


def run_crew(orders: Sequence[WorkerOrder], queue: LeaseQueue, *, switch: StopSwitch, clock: Clock) -> CrewEnd:
    """Run these workers until the queue is empty, all were stopped, or one cannot go on. Raises for no worker."""
    crew = _Crew(queue=queue, switch=switch, clock=clock, deaths=DeathCount(queue))
    for order in orders:
        crew.start(order)
    is_told = False
    give_up_s: float | None = None
    while crew.members and (give_up_s is None or clock.monotonic() < give_up_s):
        crew.look_after()
        if is_told or not crew.members:
            continue
        is_stuck = crew.is_waiting_in_vain(orders[0].request.lease_s)
        if is_stuck:
            pids = [member.process.pid for member in crew.members]
            LOGGER.error("workers %s no longer answer; all samples are done, and they are told to leave", pids)
        if switch.signal is not None or crew.error is not None or is_stuck:
            crew.stop()
            is_told = True
            give_up_s = clock.monotonic() + orders[0].request.grace_s + _SLACK_S
    return CrewEnd(
        error=crew.error,
        was_asked_to_stop=bool(crew.ends) and all(end.signal is not None for end in crew.ends) and not is_told,
        is_abandoned=bool(crew.members) or any(end.is_abandoned for end in crew.ends),
        deaths=crew.deaths.total,
        checks=merged([end.checks for end in crew.ends]),
    )


def _answer_of(answer: Connection) -> WorkerEnd | None:
    try:
        end = answer.recv() if answer.poll() else None
    except (EOFError, OSError):
        end = None  # killed, perhaps in the middle of its answer
    finally:
        answer.close()
    return end if isinstance(end, WorkerEnd) else None
