"""The queue of samples, its leases and the failures, with several workers of one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from durastore.clock import ManualClock
from durastore.errors import ConfigError, DiskFailed, StoreMissing
from durastore.extract.engine import Extracted, Refused
from durastore.extract.failure_book import FailureBook, load_failures
from durastore.extract.leases import MOST_LAPSES, LeaseQueue, Standing, Task, TaskState
from durastore.extract.rows import RowFailure, TokenRow
from durastore.extract.watched_passes import WatchedEngine
from durastore.extract.work_db import ALIVE_FILE, WORK_FILE, WorkDb
from durastore.fsio.alive import PresenceFile
from durastore.model import SampleId


class Shop:
    """A root with as many workers as a test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.queues: list[LeaseQueue] = []

    def queue(self, job: str = "job") -> LeaseQueue:
        queue = LeaseQueue(self.root, job=job, clock=self.clock, lease_s=100.0)
        self.queues.append(queue)
        return queue

    def worker(self, job: str = "job") -> LeaseQueue:
        queue = self.queue(job)
        queue.join(1234)
        return queue


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    for queue in shop.queues:
        queue.close()


def _task(name: str, tokens: int = 3, digest: str = "d") -> Task:
    return Task(sample_id=name, input_digest=digest, line=1, offset=0, size_bytes=9, tokens=tokens)


def _taken(queue: LeaseQueue, batch_tokens: int = 10) -> list[str]:
    tasks, hopeless = queue.take(batch_tokens=batch_tokens)
    assert hopeless == []
    return [task.sample_id for task in tasks]


def test_the_longest_go_first_in_batches_of_their_padded_size_and_nobody_gets_one_twice(shop: Shop) -> None:
    first, second = shop.worker(), shop.worker()
    first.add([_task("a", 2), _task("b", 30), _task("c", 5), _task("d", 4), _task("e", 2)])
    assert _taken(first) == ["b"]  # longer than a batch: alone
    assert _taken(second) == ["c", "d"]
    assert _taken(first) == ["a", "e"]
    assert _taken(second) == []
    assert second.has_work_of_others()
    assert first.standing() == Standing(leased=5)


def test_adding_again_changes_nothing_that_is_in_work_or_stored(shop: Shop) -> None:
    queue = shop.worker()
    queue.add([_task("a"), _task("b"), _task("c")])
    assert _taken(queue) == ["a", "b", "c"]
    queue.stored("a", input_digest="d", tensor_bytes=7)
    assert queue.failed("b")
    queue.add([_task("a"), _task("b"), _task("c")])
    assert queue.standing() == Standing(open=1, leased=1, stored=1)  # the failed one is tried again
    assert queue.sums() == (3, 7)


def test_an_edited_sample_is_open_again_and_what_was_made_of_the_old_text_does_not_count(shop: Shop) -> None:
    queue = shop.worker()
    queue.add([_task("a", digest="old")])
    assert _taken(queue) == ["a"]
    queue.add([_task("a", digest="new")])
    queue.stored("a", input_digest="old", tensor_bytes=1)
    assert queue.standing() == Standing(open=1)


def test_leases_of_a_worker_that_is_gone_are_taken_back_at_once(shop: Shop) -> None:
    gone, other = shop.worker(), shop.worker()
    gone.add([_task("a"), _task("b"), _task("c")])
    assert _taken(gone) == ["a", "b", "c"]
    gone.stored("b", input_digest="d", tensor_bytes=1)
    assert _taken(other) == []
    gone.close()
    assert _taken(other) == ["a"]  # alone, in case it was what killed the worker
    assert _taken(other) == []
    other.stored("a", input_digest="d", tensor_bytes=1)
    assert _taken(other) == ["c"]
    assert not other.has_work_of_others()


def test_a_sample_that_lapsed_waits_until_its_next_worker_has_nothing_else_in_work(shop: Shop) -> None:
    gone, other = shop.worker(), shop.worker()
    gone.add([_task("a", 9), _task("b", 2), _task("c", 1)])
    assert _taken(gone) == ["a"]
    gone.close()
    assert _taken(other, batch_tokens=2) == ["b"]
    assert _taken(other, batch_tokens=2) == ["c"]
    assert _taken(other, batch_tokens=2) == []
    for name in ("b", "c"):
        other.stored(name, input_digest="d", tensor_bytes=1)
    assert _taken(other, batch_tokens=2) == ["a"]
    other.add([_task("fresh")])
    assert _taken(other) == []  # nor anything beside it
    other.stored("a", input_digest="d", tensor_bytes=1)
    assert _taken(other) == ["fresh"]


def test_a_lease_of_a_silent_worker_ends_with_its_time_and_not_before(shop: Shop) -> None:
    silent, other = shop.worker(), shop.worker()
    silent.add([_task("a")])
    assert _taken(silent) == ["a"]
    shop.clock.advance(90)
    silent.renew()
    shop.clock.advance(90)
    assert _taken(other) == []
    shop.clock.advance(20)
    assert _taken(other) == ["a"]
    assert not silent.failed("a")  # it is the other's now
    silent.stored("a", input_digest="d", tensor_bytes=1)  # late, and as good as any
    assert other.standing() == Standing(stored=1)


def test_a_sample_that_is_in_work_whenever_its_worker_ends_fails_and_costs_no_other(shop: Shop) -> None:
    queue = shop.queue()
    queue.add([_task("killer", 5), _task("a", 4)])
    taken = []
    for _ in range(MOST_LAPSES):
        worker = shop.worker()
        while "killer" not in (names := _taken(worker)):
            taken.append(names)
            for name in names:
                worker.stored(name, input_digest="d", tensor_bytes=1)
        taken.append(names)
        worker.close()
    assert taken == [["killer", "a"], ["killer"], ["a"], ["killer"]]
    last = shop.worker()
    tasks, hopeless = last.take(batch_tokens=10)
    assert tasks == []
    assert [(str(f.sample_id), f.stage, f.attempts) for f in hopeless] == [("killer", "worker", MOST_LAPSES)]
    assert last.standing() == Standing(stored=1, failed=1)


def test_what_is_handed_back_is_no_lapse(shop: Shop) -> None:
    first, second = shop.worker(), shop.worker()
    first.add([_task("a"), _task("b")])
    assert _taken(first) == ["a", "b"]
    assert first.hand_back() == 2
    assert _taken(second) == ["a", "b"]


def test_jobs_do_not_mix(shop: Shop) -> None:
    one, two = shop.worker("one"), shop.worker("two")
    one.add([_task("a")])
    assert _taken(two) == []
    assert not two.has_work_of_others()
    assert _taken(one) == ["a"]


def test_samples_in_no_manifest_are_opened_again_and_unflushed_ones_are_named(shop: Shop) -> None:
    queue = shop.worker()
    queue.add([_task("a"), _task("b")])
    _taken(queue)
    for name in ("a", "b"):
        queue.stored(name, input_digest="d", tensor_bytes=1)
    assert sorted(queue.unflushed_ids()) == ["a", "b"]
    queue.flushed()
    assert queue.unflushed_ids() == []
    queue.found_done(["a"])
    assert queue.standing() == Standing(stored=1, done=1)
    assert [task.sample_id for task in queue.each_in(TaskState.STORED, TaskState.DONE)] == ["a", "b"]
    queue.reopen(["a", "b"])
    assert queue.standing() == Standing(open=2)


def test_the_living_are_told_from_the_gone(shop: Shop) -> None:
    looker, living, gone = shop.queue(), shop.queue(), shop.queue()
    number = living.join(1)
    gone.join(2)
    gone.close()
    assert looker.living() == [number]


def test_a_killed_process_is_gone_for_the_kernel_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from durastore.fsio.alive import PresenceFile\n"
        "held = PresenceFile(Path(sys.argv[1])); held.hold(7); print('held', flush=True); time.sleep(600)"
    )
    path = tmp_path / ALIVE_FILE
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        alive = PresenceFile(path)
        assert (alive.is_held(7), alive.is_held(8)) == (True, False)
        with pytest.raises(ConfigError, match="held by another"):
            alive.hold(7)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not alive.is_held(7)
        alive.close()


def test_a_damaged_file_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / WORK_FILE).write_bytes(b"no database, and long enough to be looked at" * 100)
    with pytest.raises(DiskFailed, match=WORK_FILE):
        LeaseQueue(tmp_path, job="job", clock=ManualClock())
    assert (tmp_path / WORK_FILE).read_bytes().startswith(b"no database")


# --- failures ------------------------------------------------------------------------------------------------------


def _failure(name: str | None, line: int, reason: str = "is not JSON") -> RowFailure:
    sample_id = SampleId(name) if name is not None else None
    return RowFailure(line=line, sample_id=sample_id, stage="read", reason=reason, attempts=2)


def test_a_failure_is_known_until_its_sample_is_stored(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing):
        load_failures(tmp_path)
    clock = ManualClock()
    book = FailureBook(tmp_path, run="r1", worker="worker 3", clock=clock)
    for reason in ("first", "second"):
        book.add(_failure("a", 5, reason))
    book.add(_failure(None, 9))
    book.close()
    other = FailureBook(tmp_path, run="r2", worker="w", clock=clock)
    assert not other.knows("a", 5)
    other.close()
    book = FailureBook(tmp_path, run="r1", worker="w", clock=clock)
    assert (book.knows("a", 1), book.knows("b", 9), book.knows("b", 5)) == (True, True, False)
    first, second = load_failures(tmp_path)
    assert (first.sample_id, first.reason, first.attempts, first.runs, first.worker) == (
        "a",
        "second",
        2,
        2,
        "worker 3",
    )
    assert (second.sample_id, second.line) == (None, 9)
    book.settle("a", 5)
    book.settle("was-unreadable", 9)
    assert book.failures() == []
    book.add(_failure("a", 5, "again"))
    assert [known.reason for known in load_failures(tmp_path)] == ["again"]
    book.close()


# --- the heartbeat -------------------------------------------------------------------------------------------------


class _Slow:
    """An engine whose pass lasts until it is told otherwise."""

    def __init__(self) -> None:
        self.is_in, self.may_end = threading.Event(), threading.Event()

    def start(self) -> None: ...

    def health(self) -> str | None:
        return None

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        self.is_in.set()
        assert self.may_end.wait(60)
        return []

    def close(self) -> None: ...


def _is_stuck(engine: WatchedEngine) -> bool:
    return engine.is_stuck


def test_leases_are_renewed_while_the_loop_waits_and_during_a_pass_and_not_when_one_is_stuck() -> None:
    clock, slow, beats = ManualClock(), _Slow(), threading.Semaphore(0)
    engine = WatchedEngine(slow, clock=clock, lease_s=0.04)

    def renew() -> None:
        beats.release()

    with engine.renewing(renew):
        assert beats.acquire(timeout=60)  # the loop waits for the disk
        thread = threading.Thread(target=engine.extract, args=([],))
        thread.start()
        assert slow.is_in.wait(60)
        assert not _is_stuck(engine)
        assert beats.acquire(timeout=60)
        clock.advance(1.0)
        assert _is_stuck(engine)
        slow.may_end.set()
        thread.join()
        assert not _is_stuck(engine)


def test_a_stuck_pass_is_silent() -> None:
    clock, slow = ManualClock(), _Slow()
    engine = WatchedEngine(slow, clock=clock, lease_s=0.04)
    thread = threading.Thread(target=engine.extract, args=([],))
    thread.start()
    assert slow.is_in.wait(60)
    clock.advance(1.0)
    beats: list[int] = []
    with engine.renewing(lambda: beats.append(1)):
        threading.Event().wait(0.2)  # twenty beats' time; a slow machine makes them fewer, never more
    assert beats == []
    slow.may_end.set()
    thread.join()


def _count_elsewhere(root: Path) -> int:
    """How many workers another process sees, which then leaves."""
    script = (
        "import sys; from pathlib import Path; from durastore.extract.work_db import WorkDb\n"
        "db = WorkDb(Path(sys.argv[1]))\n"
        "with db.reading() as conn: print(conn.execute('SELECT count(*) FROM worker').fetchone()[0])\n"
        "db.close()"
    )
    answer = subprocess.run([sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=True)
    return int(answer.stdout)


def test_what_is_written_after_another_connection_opened_is_seen_by_other_processes(tmp_path: Path) -> None:
    # opening the file once more and closing it took the first connection's locks off: a process that left then dropped
    # the log that the first went on writing to, and workers found an empty queue
    first = WorkDb(tmp_path)
    second = WorkDb(tmp_path)
    for number in range(1, 4):
        with first.changing() as conn:
            conn.execute("INSERT INTO worker (job, pid, started_ns) VALUES ('job', 1, 1)")
        assert _count_elsewhere(tmp_path) == number
    second.close()
    first.close()
    assert _count_elsewhere(tmp_path) == 3
