"""Leases handed out over calls: what is lost with a worker comes back, and nothing that is given up is heard."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import durastore
from durastore.clock import ManualClock
from durastore.errors import ConfigError, CredentialsRefused, DiskFailed, DurastoreError, EngineFailed
from durastore.extract.cluster import Actor, Answer, Begun, Hello, Lost, Refused
from durastore.extract.cluster_crew import ClusterCrew
from durastore.extract.crew import CrewEnd
from durastore.extract.failure_book import load_failures
from durastore.extract.job import ExtractRequest
from durastore.extract.lease_line import Given, Told
from durastore.extract.leased_work import WorkerEnd, WorkerOrder
from durastore.extract.leases import LeaseQueue, Task
from durastore.extract.remote_worker import Drained
from durastore.extract.rows import RowFailure
from durastore.extract.seat import LeasedRow, StoredSample
from durastore.extract.switch import StopSwitch
from durastore.model import SampleId

SAMPLES = 12
GONE = Lost(reason="the process was killed", is_gone=True)
SILENT = Lost(reason="no answer", is_gone=False)


class FakeActor:
    """A worker that does two samples of a batch between two questions, unless it is told how to end."""

    def __init__(self, number: int, *, node: str, version: str = durastore.__version__) -> None:
        self.node = node
        self.version = version
        self.pid = 1000 + number
        self.is_released = False
        self.given: list[Given] = []
        self.done: list[str] = []
        self.answer: Answer | None = None
        self.fate: Callable[[FakeActor], Answer | None] = lambda _: None
        """What it answers in place of its work."""
        self.drained: Answer = Drained()
        self._rows: list[LeasedRow] = []
        self._number = 0
        self._requests = 0

    @property
    def spool(self) -> str:
        return f"/nvme/spool/w-{self.pid}"

    def hello(self) -> None:
        self.answer = Hello(version=self.version, host=f"host-of-{self.node}", node=self.node, pid=self.pid)

    def begin(self, order: WorkerOrder, number: int) -> None:
        self._number = number
        self.answer = Begun()

    def drain(self, request: ExtractRequest, *, timeout_s: float) -> None:
        self.answer = self.drained

    def exchange(self, given: Given) -> None:
        self.given.append(given)
        self.answer = self.fate(self) or self._work(given)

    def told(self, **facts: Any) -> Told:
        return Told(spool=self.spool, is_renewed=True, **facts)

    def ended(self, **facts: Any) -> Told:
        end = WorkerEnd(**{"number": self._number, "signal": None, "error": None, "is_flushed": True, **facts})
        return self.told(is_handed_back=True, is_flushed=end.is_flushed, end=end)

    def _work(self, given: Given) -> Told:
        if given.stop is not None:
            return self.ended(signal=given.stop)
        self._rows.extend(given.rows)
        now, self._rows = self._rows[:2], self._rows[2:]
        stored = tuple(stored_of(row.task) for row in now)
        self.done.extend(sample.sample_id for sample in stored)
        if self._rows:
            return self.told(stored=stored)
        if self._requests and not given.rows and not given.has_others:
            return self.ended()
        self._requests += 1
        return self.told(stored=stored, request=self._requests, batch_tokens=12)


def stored_of(task: Task) -> StoredSample:
    return StoredSample(sample_id=task.sample_id, line=task.line, input_digest=task.input_digest, tensor_bytes=8)


class FakeCluster:
    """Machines a and b in turn; as many workers as are started. Time passes when it is waited for."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.actors: list[FakeActor] = []
        self.visits: list[FakeActor] = []
        self.near: list[str | None] = []
        self.gone: set[str] = set()
        """Machines that are no more."""
        self.make: Callable[[FakeActor], None] = lambda _: None
        self.has_room = True

    def start(self, *, near: str | None = None) -> Actor:
        self.near.append(near)
        node = near if near is not None and near not in self.gone else "ab"[len(self.actors) % 2]
        actor = FakeActor(len(self.actors), node=node)
        self.actors.append(actor)
        self.make(actor)
        return actor

    def visit(self, node: str) -> Actor:
        actor = FakeActor(100 + len(self.visits), node=node)
        self.visits.append(actor)
        self.make(actor)
        return actor

    def answers(self, actors: Sequence[Actor], timeout_s: float) -> Sequence[tuple[Actor, Answer]]:
        self.clock.advance(timeout_s)
        found: list[tuple[Actor, Answer]] = []
        for actor in cast("Sequence[FakeActor]", actors):
            assert not actor.is_released, "a worker that was given up is asked"
            answer, actor.answer = actor.answer, None
            if actor in self.visits and actor.node in self.gone:
                answer = GONE
            if answer is not None and (self.has_room or actor in self.visits):
                found.append((actor, answer))
        return found

    def release(self, actor: Actor) -> None:
        cast("FakeActor", actor).is_released = True

    def describe(self) -> str:
        return "1 GPU, 1 CPU for each; the cluster has 0 GPU, 2 CPU, free 0 GPU, 2 CPU"


class Lab:
    """A queue of samples, a cluster, and a crew on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self._begun_s = self.clock.monotonic()
        self.input = root / "input.jsonl"
        self.cluster = FakeCluster(self.clock)
        self.queue = LeaseQueue(root, job="job", clock=self.clock, lease_s=100.0)
        self.switch = StopSwitch(grace_s=30.0, clock=self.clock)
        line = b'{"id": "s", "input_ids": [1, 2, 3]}\n'
        self.input.write_bytes(line * SAMPLES)
        self.queue.add(
            Task(sample_id=f"s{n:02}", input_digest="d", line=n + 1, offset=n * len(line), size_bytes=35, tokens=3)
            for n in range(SAMPLES)
        )

    @property
    def request(self) -> ExtractRequest:
        return ExtractRequest(
            input=self.input, model="m", layers="1", bucket="b", local=self.root, lease_s=100.0, grace_s=30.0
        )

    def run(self, workers: int = 2) -> CrewEnd:
        order = WorkerOrder(request=self.request, job="job", run="r", slot=0, engine_factory=cast("Any", None))
        orders = [replace(order, slot=slot) for slot in range(workers)]
        return ClusterCrew(self.cluster, version=durastore.__version__)(
            orders, self.queue, switch=self.switch, clock=self.clock
        )

    @property
    def passed_s(self) -> float:
        return self.clock.monotonic() - self._begun_s

    def done(self) -> list[str]:
        return sorted(name for actor in self.cluster.actors for name in actor.done)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.queue.close()


def _open_files(root: Path) -> set[str]:
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    paths = (Path(os.readlink(link)) for link in links if os.path.lexists(link))
    return {path.name for path in paths if path.parent == root}


def _names() -> list[str]:
    return [f"s{n:02}" for n in range(SAMPLES)]


def _dies_after(exchanges: int, answer: Answer = GONE) -> Callable[[FakeActor], Answer | None]:
    return lambda actor: answer if len(actor.given) > exchanges else None


def test_two_workers_do_every_sample_once(lab: Lab) -> None:
    end = lab.run()
    assert (end.error, end.deaths, end.was_asked_to_stop, end.is_abandoned) == (None, 0, False, False)
    assert lab.done() == _names()
    assert all(actor.done for actor in lab.cluster.actors)
    assert (lab.queue.standing().stored, lab.queue.unflushed_ids()) == (SAMPLES, [])
    assert all(actor.is_released for actor in lab.cluster.actors)
    log = (lab.root / "extract.log").read_text("utf-8")
    assert 'host="host-of-a"' in log
    assert 'host="host-of-b"' in log


def test_what_a_lost_worker_had_is_done_by_others_and_it_is_replaced_on_its_machine(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        if actor is lab.cluster.actors[0]:
            actor.fate = _dies_after(2)

    lab.cluster.make = make
    end = lab.run()
    assert (end.error, end.deaths, end.left_behind) == (None, 1, ())
    assert lab.cluster.near == [None, None, "a"]
    first = lab.cluster.actors[0]
    assert first.is_released  # and `answers` fails where one of those is asked
    assert sorted({*lab.done()}) == _names()
    assert len(lab.done()) - SAMPLES <= 2  # what it had done and not told
    assert [visit.node for visit in lab.cluster.visits] == ["a"]


def test_a_worker_that_may_be_there_is_asked_the_same_again(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        actor.fate = lambda _: SILENT if len(actor.given) in (2, 3) else None

    lab.cluster.make = make
    end = lab.run(workers=1)
    assert (end.error, end.deaths) == (None, 0)
    numbers = [given.number for given in lab.cluster.actors[0].given]
    assert numbers[1] == numbers[2] == numbers[3]
    assert numbers[:2] + numbers[4:] == list(range(1, len(numbers) - 1))
    assert lab.done() == _names()


def test_a_worker_that_is_silent_for_a_lease_is_given_up(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        if actor is lab.cluster.actors[0]:
            actor.fate = _dies_after(1, SILENT)

    lab.cluster.make = make
    end = lab.run()
    assert (end.error, end.deaths) == (None, 1)
    assert sorted({*lab.done()}) == _names()
    assert lab.passed_s >= 100


def test_workers_that_die_without_a_sample_are_not_started_for_ever(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        actor.fate = _dies_after(0)

    lab.cluster.make = make
    end = lab.run(workers=1)
    assert isinstance(end.error, EngineFailed)
    assert "6 times in a row" in end.error.message
    assert end.error.hint is not None
    assert "the process was killed" in end.error.hint
    assert len(lab.cluster.actors) == 6


def test_another_version_on_a_machine_is_refused_before_anything_is_sent_there(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        actor.version = "9.9.9"

    lab.cluster.make = make
    end = lab.run()
    assert isinstance(end.error, ConfigError)
    assert "host-of-a has durastore 9.9.9" in end.error.message
    assert [actor.given for actor in lab.cluster.actors] == [[], []]
    assert lab.queue.standing().open == SAMPLES


def test_a_worker_that_cannot_be_made_ends_the_command(lab: Lab) -> None:
    lab.cluster.make = lambda actor: setattr(
        actor, "hello", lambda: setattr(actor, "answer", Refused(reason="No module named 'durastore'"))
    )
    end = lab.run()
    assert isinstance(end.error, EngineFailed)
    assert "No module named 'durastore'" in end.error.message
    assert "installed on every machine" in str(end.error.hint)


def test_resources_that_nobody_gives_end_the_command_and_are_named(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.cluster.has_room = False
    end = lab.run()
    assert isinstance(end.error, ConfigError)
    assert "1 GPU, 1 CPU for each; the cluster has 0 GPU" in end.error.message
    assert "2 workers wait for a place" in caplog.text
    assert all(actor.is_released for actor in lab.cluster.actors)


def test_a_stop_is_told_to_all_and_what_was_not_done_is_handed_back(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        def stopping(_: FakeActor) -> Answer | None:
            if len(actor.given) == 3:
                lab.switch.request(15)
            return None

        actor.fate = stopping

    lab.cluster.make = make
    end = lab.run()
    assert (end.error, end.is_abandoned, end.was_asked_to_stop) == (None, False, False)
    standing = lab.queue.standing()
    assert (standing.leased, standing.open + standing.stored) == (0, SAMPLES)
    assert standing.open > 0
    assert all(actor.given[-1].stop == 15 for actor in lab.cluster.actors)
    assert lab.queue.unflushed_ids() == []


def test_workers_that_do_not_leave_within_their_grace_time_are_abandoned_and_named(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        def hanging(_: FakeActor) -> Answer | None:
            lab.switch.request(15)
            return actor.told()

        actor.fate = hanging

    lab.cluster.make = make
    end = lab.run(workers=1)
    assert end.is_abandoned
    assert [(left.host, left.spool) for left in end.left_behind] == [("host-of-a", lab.cluster.actors[0].spool)]
    assert 30 <= lab.passed_s < 60
    assert lab.cluster.actors[0].is_released


def test_a_worker_that_was_taken_out_is_not_replaced(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        if actor is lab.cluster.actors[0]:
            actor.fate = lambda _: actor.ended(signal=15) if len(actor.given) > 2 else None

    lab.cluster.make = make
    end = lab.run()
    assert (end.error, end.was_asked_to_stop, len(lab.cluster.actors)) == (None, False, 2)
    assert sorted({*lab.done()}) == _names()


def test_the_spool_of_a_machine_that_is_gone_is_named(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        if actor is lab.cluster.actors[0]:

            def burns(_: FakeActor) -> Answer | None:
                if len(actor.given) <= 2:
                    return None
                lab.cluster.gone.add("a")
                return GONE

            actor.fate = burns

    lab.cluster.make = make
    end = lab.run()
    first = lab.cluster.actors[0]
    assert end.error is None
    assert [(left.host, left.spool) for left in end.left_behind] == [("host-of-a", first.spool)]
    assert "cannot be reached" in end.left_behind[0].reason
    assert sorted({*lab.done()}) == _names()


@pytest.mark.parametrize(
    "answer, reason",
    [
        (lambda spool: Drained(left=(spool,), error="no endpoint"), "no endpoint"),
        (lambda spool: Drained(locked=(spool,)), "still lives"),
        (lambda _: Drained(error="live processes hold it"), "live processes hold it"),
    ],
)
def test_a_spool_that_its_machine_could_not_drain_is_named(
    lab: Lab, answer: Callable[[str], Drained], reason: str
) -> None:
    def make(actor: FakeActor) -> None:
        if actor.pid >= 1100:
            actor.drained = answer(lab.cluster.actors[0].spool)
        elif actor is lab.cluster.actors[0]:
            actor.fate = _dies_after(2)

    lab.cluster.make = make
    (left,) = lab.run().left_behind
    assert left.spool == lab.cluster.actors[0].spool
    assert reason in left.reason


@pytest.mark.parametrize("error", [DiskFailed("disk"), CredentialsRefused("refused", hint="look")])
def test_an_error_of_a_worker_ends_the_command_and_tells_where(lab: Lab, error: DurastoreError) -> None:
    def make(actor: FakeActor) -> None:
        if actor is lab.cluster.actors[0]:
            actor.fate = lambda _: actor.ended(error=error, is_flushed=False)

    lab.cluster.make = make
    end = lab.run()
    assert type(end.error) is type(error)
    assert "worker on host-of-a: " in str(end.error)
    assert ("its own AWS chain" in str(end.error)) == isinstance(error, CredentialsRefused)
    assert lab.queue.standing().leased == 0
    assert [left.spool for left in end.left_behind] == [lab.cluster.actors[0].spool]


def test_failures_come_to_the_ledger_of_the_command(lab: Lab) -> None:
    bad = RowFailure(line=1, sample_id=SampleId("s00"), stage="states", reason="holds a NaN")
    not_its_own = RowFailure(line=12, sample_id=SampleId("s11"), stage="states", reason="is another's")

    def make(actor: FakeActor) -> None:
        def failing(_: FakeActor) -> Answer | None:
            if len(actor.given) == 2 and actor is lab.cluster.actors[0]:
                return actor.told(failed=(bad, not_its_own))
            return None

        actor.fate = failing

    lab.cluster.make = make
    end = lab.run(workers=1)
    assert end.error is None
    (known,) = load_failures(lab.root)
    assert (known.sample_id, known.reason) == ("s00", "holds a NaN")
    assert known.worker == "worker 1 on host-of-a"


def test_files_of_given_up_seats_are_closed(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        if len(lab.cluster.actors) < 5:
            actor.fate = _dies_after(1)

    lab.cluster.make = make
    assert lab.run().deaths >= 3
    # SQLite keeps a few descriptors of its file for later: others of this process hold locks on it.
    assert _open_files(lab.root) - {"extract.sqlite"} == {"extract.sqlite-wal", "extract.sqlite-shm", "extract.alive"}


def test_workers_that_do_not_notice_that_all_is_done_are_told_to_leave(lab: Lab) -> None:
    def make(actor: FakeActor) -> None:
        if actor is lab.cluster.actors[0]:

            def stuck(_: FakeActor) -> Answer | None:
                if actor.given[-1].stop is not None:
                    return actor.ended(signal=actor.given[-1].stop)
                return Told() if len(actor.given) > 2 else None

            actor.fate = stuck

    lab.cluster.make = make
    end = lab.run()
    assert (end.error, end.deaths) == (None, 0)
    assert sorted({*lab.done()}) == _names()
    assert lab.cluster.actors[0].given[-1].stop is not None


def test_a_worker_whose_answer_cannot_be_had_leaves_a_spool_that_is_named(lab: Lab) -> None:
    """Ray raises other errors than of a lost actor, too: the answer is lost, the memory monitor ended the process."""

    def make(actor: FakeActor) -> None:
        if actor is lab.cluster.actors[0]:
            actor.fate = _dies_after(2, Refused(reason="an answer that cannot be read"))

    lab.cluster.make = make
    end = lab.run()
    assert isinstance(end.error, EngineFailed)
    assert [(left.host, left.spool) for left in end.left_behind] == [("host-of-a", lab.cluster.actors[0].spool)]


def test_a_begin_whose_answer_was_lost_is_asked_again(lab: Lab) -> None:
    begun: list[int] = []

    def make(actor: FakeActor) -> None:
        begin = actor.begin

        def lost_first(order: WorkerOrder, number: int) -> None:
            begun.append(number)
            begin(order, number)
            if len(begun) == 1:
                actor.answer = SILENT

        actor.begin = lost_first  # type: ignore[method-assign]

    lab.cluster.make = make
    end = lab.run(workers=1)
    assert (end.error, end.deaths, begun) == (None, 0, [1, 1])
    assert lab.done() == _names()


def test_a_worker_that_leaves_is_given_no_samples(lab: Lab) -> None:
    """It was told to stop while its request waited: what it were given would lapse as if it had killed its worker."""

    def make(actor: FakeActor) -> None:
        def leaving(_: FakeActor) -> Answer | None:
            if actor is not lab.cluster.actors[0]:
                return None
            if len(actor.given) == 1:
                return actor.told(request=1, batch_tokens=12, is_handed_back=True)
            return actor.ended(signal=15)

        actor.fate = leaving

    lab.cluster.make = make
    end = lab.run()
    assert end.error is None
    assert [given.rows for given in lab.cluster.actors[0].given] == [(), ()]
