"""The crew of a shared extraction: workers that no longer answer do not keep the command for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import DurastoreError
from durastore.extract import crew as crew_module
from durastore.extract.crew import run_crew
from durastore.extract.leased_work import WorkerEnd, WorkerOrder
from durastore.extract.leases import LeaseQueue, Task
from durastore.extract.switch import StopSwitch

LEASE_S = 0.4


@dataclass(frozen=True)
class Order:
    """What the workers of this test are told."""

    root: Path
    slot: int
    is_stuck: bool = False
    last_words: str | None = None

    @property
    def request(self) -> Any:
        return self

    @property
    def lease_s(self) -> float:
        return LEASE_S

    @property
    def grace_s(self) -> float:
        return 0.5


def act(order: Order, answer: Connection) -> None:
    """A worker that takes one sample, and is stuck in its pass; or one that does all, and flushes for long."""
    queue = LeaseQueue(order.root, job="job", clock=SYSTEM_CLOCK, lease_s=LEASE_S)
    number = queue.join(os.getpid())
    if order.is_stuck:
        queue.take(batch_tokens=1)
        time.sleep(600)
    while True:
        tasks, _ = queue.take(batch_tokens=1)
        for task in tasks:
            queue.stored(task.sample_id, input_digest=task.input_digest, tensor_bytes=1)
        if not tasks and not queue.has_work_of_others():
            break
        time.sleep(0.05)
    queue.leaving()
    time.sleep(5 * LEASE_S)
    queue.flushed()
    error = DurastoreError(order.last_words) if order.last_words is not None else None
    answer.send(WorkerEnd(number=number, signal=None, error=error, is_flushed=True))
    answer.close()
    queue.close()


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseQueue]:
    monkeypatch.setattr(crew_module, "work", act)
    queue = LeaseQueue(tmp_path, job="job", clock=SYSTEM_CLOCK, lease_s=LEASE_S)
    queue.add(Task(sample_id=f"s{n}", input_digest="d", line=n, offset=0, size_bytes=1, tokens=3) for n in range(8))
    yield queue
    queue.close()


def run(queue: LeaseQueue, *orders: Order) -> crew_module.CrewEnd:
    switch = StopSwitch(grace_s=1.0, clock=SYSTEM_CLOCK)
    return run_crew(cast("list[WorkerOrder]", orders), queue, switch=switch, clock=SYSTEM_CLOCK)


def test_a_worker_that_no_longer_answers_is_not_waited_for(
    queue: LeaseQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    end = run(queue, Order(tmp_path, 0, is_stuck=True), Order(tmp_path, 1))
    assert (end.error, end.deaths, end.was_asked_to_stop) == (None, 1, False)
    assert (queue.standing().stored, queue.has_work()) == (8, False)
    assert "no longer answer" in caplog.text


def test_a_worker_that_flushes_for_long_is_waited_for(
    queue: LeaseQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    end = run(queue, Order(tmp_path, 0))
    assert (end.error, end.deaths, end.is_abandoned) == (None, 0, False)
    assert queue.unflushed_ids() == []
    assert "no longer answer" not in caplog.text


@pytest.mark.timeout(60)
def test_a_worker_may_end_with_more_words_than_a_pipe_holds(queue: LeaseQueue, tmp_path: Path) -> None:
    """A hundred outliers of long ids do: the worker waits until somebody reads, so nobody may wait for its end."""
    words = "so far from the usual size " * 10_000
    end = run(queue, Order(tmp_path, 0, last_words=words))
    assert end.error is not None
    assert (end.error.message, end.deaths) == (words, 0)
