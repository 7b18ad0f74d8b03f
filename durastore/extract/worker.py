"""One worker process of an extraction: leases samples, runs the model, stores, and hands back what it did not do.

Duty: a store with a spool of its own, an engine, and a loop over leased batches. Must never record a failure of a
sample that is another worker's by now, and never outlive its grace time, or the process that started it, by more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from signal import SIGTERM

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import DurastoreError, StoreClosed
from durastore.extract.inputs import LinePlace, LineReader
from durastore.extract.job import EngineFactory, ExtractRequest, RunPlan, plan_run
from durastore.extract.leases import LeaseQueue, Task
from durastore.extract.records import Records
from durastore.extract.reporting import ReportedWorker, reported
from durastore.extract.rows import RowFailure, TokenRow
from durastore.extract.runner import run_batches
from durastore.extract.semantic import CheckReport
from durastore.extract.switch import StopSwitch
from durastore.extract.tally import Tally
from durastore.extract.tokens import tokenise
from durastore.extract.transformers_engine import ModelSettings
from durastore.extract.watched_passes import watched
from durastore.model import Run, SampleId
from durastore.observe.events import LOGGER
from durastore.store.opening import open_store

__all__ = ["WorkerEnd", "WorkerOrder", "leased_batches", "work"]

_POLL_S = 0.1
_LAST_WORDS_S = 5.0
"""After the grace time a worker has so long to leave by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """What a worker is told. Everything in it can be sent to another process."""

    request: ExtractRequest
    job: str
    """The queue's name for run and input."""
    slot: int
    """Which of the workers that were asked for: with several GPUs, which of them."""
    engine_factory: EngineFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnd:
    """How a worker that could still speak ended."""

    number: int
    signal: int | None
    error: DurastoreError | None
    is_flushed: bool = False
    is_abandoned: bool = False
    checks: CheckReport = field(default_factory=CheckReport)


def work(order: WorkerOrder, answer: Connection) -> None:
    """The main function of the process. Its end goes to `answer`; no answer means that it was killed."""
    switch = StopSwitch(grace_s=order.request.grace_s, clock=SYSTEM_CLOCK)
    with switch.installed():
        threading.Thread(target=_watch, args=(switch,), name="durastore-extract-watch", daemon=True).start()
        try:
            end = _Worker(order, switch=switch, clock=SYSTEM_CLOCK).run()
        except DurastoreError as exc:
            end = WorkerEnd(number=0, signal=switch.signal, error=exc)
        answer.send(end)
        answer.close()
        if end.is_abandoned:
            os._exit(128 + SIGTERM)  # threads still wait for the network; everything put is durable (INV-1)


def _watch(switch: StopSwitch) -> None:
    """Stop when the parent is gone, and leave for good when a stop takes longer than its grace time."""
    parent = parent_process()
    sentinels = [parent.sentinel] if parent is not None else []
    while not switch.is_expired:
        if wait(sentinels, _POLL_S):
            switch.request(SIGTERM)
            sentinels = []
        if not sentinels:
            SYSTEM_CLOCK.sleep(_POLL_S)
    SYSTEM_CLOCK.sleep(_LAST_WORDS_S)
    os._exit(128 + SIGTERM)  # a pass that never ends must not keep the machine; its samples are leased again


class _Worker:
    def __init__(self, order: WorkerOrder, *, switch: StopSwitch, clock: Clock) -> None:
        self._order = order
        self._request = order.request
        self._switch = switch
        self._clock = clock

    def run(self) -> WorkerEnd:
        """Work until nothing is left, or a stop. Raises `DurastoreError` for what kept it from beginning."""
        request = self._request
        plan = plan_run(request)
        queue = LeaseQueue(request.local, job=self._order.job, clock=self._clock, lease_s=request.lease_s)
        try:
            number = queue.join(os.getpid())
            store = open_store(request.bucket, local=request.local, run=plan.run, **request.options)
            try:
                run = Run.of(plan.run).digest.hex
                with Records(request.local, run=run, clock=self._clock, worker=f"worker {number}") as records:
                    records.ledger.note("WORKER-START", number=number, pid=os.getpid())
                    made = self._order.engine_factory(plan.source, plan.layers, settings=self._settings())
                    engine = watched(made, clock=self._clock, lease_s=request.lease_s)
                    told = ReportedWorker(spool=store.spool_path, run=run, job=self._order.job, number=number)
                    source = leased_batches(queue, plan, request=request, switch=self._switch, clock=self._clock)
                    recorder = _Recorder(queue, records)
                    tally = Tally(0, record=recorder.record, settle=recorder.settle)
                    try:
                        with (
                            records.ledger.hearing(LOGGER),
                            engine.renewing(queue.renew),
                            reported(told, tally, engine=engine, clock=self._clock),
                        ):
                            outcome = run_batches(
                                source, store, engine=engine, bookkeeping=(tally, self._switch), limits=request.limits
                            )
                    finally:
                        engine.close()
                    back = queue.hand_back()
                    if outcome.is_flushed:
                        queue.flushed()
                    records.ledger.note("WORKER-END", number=number, ok=tally.counts().ok, handed_back=back)
            finally:
                try:
                    store.abandon()
                except StoreClosed as exc:
                    LOGGER.warning("%s", exc)
        finally:
            queue.close()
        return WorkerEnd(
            number=number,
            signal=self._switch.signal,
            error=outcome.error,
            is_flushed=outcome.is_flushed,
            is_abandoned=outcome.is_abandoned,
            checks=outcome.checks,
        )

    def _settings(self) -> ModelSettings:
        return settings_of_slot(self._request.settings, slot=self._order.slot, workers=self._request.workers or 1)


class _Recorder:
    """What becomes of a leased sample, told to the queue first: it knows whose the sample is."""

    def __init__(self, queue: LeaseQueue, records: Records) -> None:
        self._queue = queue
        self._records = records

    def record(self, failure: RowFailure) -> None:
        is_mine = failure.stage == "worker" or self._queue.failed(str(failure.sample_id))
        if is_mine:
            self._records.failure(failure)

    def settle(self, row: TokenRow, tensor_bytes: int) -> None:
        self._queue.stored(str(row.sample_id), input_digest=row.input_digest.hex, tensor_bytes=tensor_bytes)
        self._records.book.settle(str(row.sample_id), row.line)


def leased_batches(
    queue: LeaseQueue, plan: RunPlan, *, request: ExtractRequest, switch: StopSwitch, clock: Clock
) -> Iterator[list[TokenRow | RowFailure]]:
    """Batch after batch of leased samples, until there is none to lease and none that another might hand back. An empty
    one: none at the moment.
    """
    reader = LineReader(request.input)
    try:
        while switch.signal is None:
            tasks, hopeless = queue.take(batch_tokens=request.limits.batch_tokens)
            if not tasks and not hopeless:
                if not queue.has_work_of_others():
                    queue.leaving()
                    return
                yield []  # a server's answers go on being stored meanwhile
                clock.sleep(_POLL_S)
                continue
            yield [*hopeless, *(_row_of(task, reader, plan=plan) for task in tasks)]
    finally:
        reader.close()


def settings_of_slot(settings: ModelSettings, *, slot: int, workers: int) -> ModelSettings:
    """A GPU of its own for each worker, in turn; without a GPU its share of the cores."""
    import torch

    if settings.device is None and torch.cuda.is_available():
        return replace(settings, device=f"cuda:{slot % torch.cuda.device_count()}")
    if workers > 1 and (settings.device or "cpu") == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    return settings


def _row_of(task: Task, reader: LineReader, *, plan: RunPlan) -> TokenRow | RowFailure:
    """The sample as the model sees it, if it is still what was put into the queue."""
    row = reader.read(LinePlace(line=task.line, offset=task.offset, size_bytes=task.size_bytes))
    wanted = row if isinstance(row, RowFailure) else tokenise(row, plan.tokenizer, rule=plan.rule)
    if isinstance(wanted, TokenRow) and str(wanted.sample_id) == task.sample_id:
        if wanted.input_digest.hex == task.input_digest:
            return wanted
        reason = "has other tokens than when the input was read first"
    else:
        reason = wanted.reason if isinstance(wanted, RowFailure) else "is another sample than when it was read first"
    name = SampleId(task.sample_id)
    return RowFailure(line=task.line, sample_id=name, stage="read", reason=reason, attempts=task.attempts)
