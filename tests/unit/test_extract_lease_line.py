"""The two ends of a seat on another machine: nothing that was told is dropped, and a stop waits for no lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from durastore.clock import SYSTEM_CLOCK, ManualClock
from durastore.errors import ConfigError
from durastore.extract.job import ExtractRequest
from durastore.extract.lease_line import Given, LeaseLine, Told
from durastore.extract.leased_work import WorkerEnd, WorkerOrder
from durastore.extract.leases import Task
from durastore.extract.remote_worker import RemoteWorker
from durastore.extract.rows import RowFailure
from durastore.extract.seat import LeasedRow, StoredSample
from durastore.extract.switch import StopSwitch
from durastore.model import SampleId

FAILURE = RowFailure(line=2, sample_id=SampleId("b"), stage="states", reason="NaN")
STORED = StoredSample(sample_id="a", line=1, input_digest="d", tensor_bytes=8)
TASK = Task(sample_id="a", input_digest="d", line=1, offset=0, size_bytes=9, tokens=3)
ROW = LeasedRow(task=TASK, row=RowFailure(line=1, sample_id=None, stage="read", reason="is no row"))


def _line() -> tuple[LeaseLine, StopSwitch]:
    switch = StopSwitch(grace_s=30.0, clock=SYSTEM_CLOCK)
    return LeaseLine(number=7, switch=switch, clock=SYSTEM_CLOCK), switch


class _Taking:
    """A worker that waits for samples, in a thread."""

    def __init__(self, line: LeaseLine) -> None:
        self.rows: Sequence[LeasedRow] | None = None
        self._thread = threading.Thread(target=self._take, args=(line,))
        self._thread.start()

    def _take(self, line: LeaseLine) -> None:
        self.rows, _ = line.take(batch_tokens=12)

    def result(self) -> Sequence[LeasedRow] | None:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.rows


def test_what_the_worker_tells_comes_with_the_next_answer_and_once() -> None:
    line, _ = _line()
    line.opened("/nvme/w-00")
    line.stored(STORED)
    line.failed(FAILURE)
    line.note("WARNING slow")
    line.renew()
    told = line.exchange(Given(number=1), wait_s=0)
    assert told == Told(
        stored=(STORED,), failed=(FAILURE,), notes=("WARNING slow",), is_renewed=True, spool="/nvme/w-00"
    )
    assert line.exchange(Given(number=2), wait_s=0) == Told()


def test_a_stored_sample_is_told_before_the_waiting_ends() -> None:
    """What is not told when the process dies is done again."""
    line, _ = _line()
    threading.Timer(0.2, line.stored, [STORED]).start()
    assert line.exchange(Given(number=1), wait_s=60) == Told(stored=(STORED,))


def test_the_same_question_has_the_same_answer() -> None:
    line, _ = _line()
    line.stored(STORED)
    first = line.exchange(Given(number=1), wait_s=0)
    line.failed(FAILURE)
    assert line.exchange(Given(number=1), wait_s=0) == first
    assert line.exchange(Given(number=2), wait_s=0) == Told(failed=(FAILURE,))


def test_a_request_is_told_at_once_and_its_rows_go_to_the_worker() -> None:
    line, _ = _line()
    taking = _Taking(line)
    told = line.exchange(Given(number=1), wait_s=60)
    assert (told.request, told.batch_tokens) == (1, 12)
    line.exchange(Given(number=2, answers=9, rows=(ROW,)), wait_s=0)  # of another request: not for this one
    line.exchange(Given(number=3, answers=1, rows=(ROW,), has_others=True), wait_s=0)
    assert taking.result() == (ROW,)
    assert line.has_work_of_others()


def test_nothing_at_the_moment_and_nothing_that_may_come_back_are_told_apart() -> None:
    line, _ = _line()
    taking = _Taking(line)
    line.exchange(Given(number=1), wait_s=60)
    line.exchange(Given(number=2, answers=1, has_others=False), wait_s=0)
    assert taking.result() == ()
    assert not line.has_work_of_others()


def test_a_stop_waits_for_no_samples() -> None:
    line, switch = _line()
    taking = _Taking(line)
    line.exchange(Given(number=1), wait_s=60)
    line.exchange(Given(number=2, stop=15), wait_s=0)
    assert taking.result() == ()
    assert switch.signal == 15


def _request() -> ExtractRequest:
    return ExtractRequest(input=Path("i"), model="m", layers="1", bucket="s3://b/p", local=Path("/none"), lease_s=0.3)


class _Work:
    """A worker whose work is a function of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: Callable[[LeaseLine, StopSwitch], WorkerEnd]) -> None:
        monkeypatch.setattr(RemoteWorker, "_run", lambda _self, work: run(work.line, work.switch))
        self.worker = RemoteWorker()
        order = WorkerOrder(request=_request(), job="j", run="r", slot=0, engine_factory=cast("object", None))  # type: ignore[arg-type]
        threading.Thread(target=self.worker.begin, args=(order, 7)).start()  # not this thread: it sets signal handlers

    def last_told(self) -> Told:
        number = 0
        while True:
            if self.worker._line is not None:  # `begin` is under way
                number += 1
                told = self.worker.exchange(Given(number=number))
                if told.end is not None:
                    return told


def test_an_error_of_the_work_is_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(line: LeaseLine, switch: StopSwitch) -> WorkerEnd:
        raise ConfigError("another model", hint="the same files")

    end = _Work(monkeypatch, run).last_told().end
    assert end is not None
    assert isinstance(end.error, ConfigError)
    assert end.number == 7


def test_what_nobody_planned_for_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(line: LeaseLine, switch: StopSwitch) -> WorkerEnd:
        raise RuntimeError("CUDA error: device-side assert")

    end = _Work(monkeypatch, run).last_told().end
    assert end is not None
    assert "RuntimeError: CUDA error" in str(end.error)


def test_a_worker_that_nobody_asks_stops_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def run(line: LeaseLine, switch: StopSwitch) -> WorkerEnd:
        while switch.signal is None:
            SYSTEM_CLOCK.sleep(0.05)
        stopped.set()
        return WorkerEnd(number=line.number, signal=switch.signal, error=None, is_flushed=True)

    work = _Work(monkeypatch, run)
    assert stopped.wait(30)
    end = work.last_told().end
    assert end is not None
    assert end.signal == 15


def test_a_machine_that_lost_its_root_has_not_drained_it(tmp_path: Path) -> None:
    request = ExtractRequest(
        input=tmp_path, model="m", layers="1", bucket=f"file://{tmp_path}", local=tmp_path / "none"
    )
    drained = RemoteWorker(clock=ManualClock()).drain(request, timeout_s=1.0)
    assert (drained.left, drained.locked) == ((), ())
    assert str(tmp_path / "none") in drained.error
    assert not (tmp_path / "none").exists()


def test_who_it_is_is_told_in_plain_values() -> None:
    """They have to be understood by every other version."""
    hello = RemoteWorker().hello()
    assert {type(value) for value in hello.values()} <= {str, int}


class _Panic(BaseException):
    """As a Rust library's panic: no `Exception`."""


def test_a_panic_of_a_library_is_the_last_word_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the worker would be asked for ever, and would answer."""

    def run(line: LeaseLine, switch: StopSwitch) -> WorkerEnd:
        raise _Panic("index out of bounds")

    end = _Work(monkeypatch, run).last_told().end
    assert end is not None
    assert "_Panic: index out of bounds" in str(end.error)


def test_to_begin_twice_is_to_begin_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks again may not know that the first question was heard."""
    runs: list[LeaseLine] = []
    may_end = threading.Event()

    def run(line: LeaseLine, switch: StopSwitch) -> WorkerEnd:
        runs.append(line)
        may_end.wait(30)
        return WorkerEnd(number=line.number, signal=None, error=None, is_flushed=True)

    work = _Work(monkeypatch, run)
    while work.worker._line is None:
        SYSTEM_CLOCK.sleep(0.01)
    order = WorkerOrder(request=_request(), job="j", run="r", slot=0, engine_factory=cast("object", None))  # type: ignore[arg-type]
    thread = threading.Thread(target=work.worker.begin, args=(order, 7))
    thread.start()
    thread.join()
    may_end.set()
    assert work.last_told().end is not None
    assert len(runs) == 1


def test_a_request_that_is_given_up_for_a_stop_is_not_told() -> None:
    line, switch = _line()
    switch.request(15)
    assert line.take(batch_tokens=12) == ((), ())
    line.hand_back()
    assert line.exchange(Given(number=1), wait_s=0) == Told(is_handed_back=True)
