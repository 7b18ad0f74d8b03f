"""One extraction shared by several worker processes of this machine.

Duty: put what is left into the queue, let the workers work, and ask the manifest at the end what is done: the queue
only ever said who works on what. A second command with the same run and input joins. Must never count a sample as ok
that is neither in the manifest nor on this machine's disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from signal import SIGTERM
from typing import Protocol

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.config import resolve_options
from durastore.errors import ConfigError, DurastoreError, EngineFailed, StoreClosed
from durastore.extract.crew import CrewEnd, run_crew
from durastore.extract.failure_teller import FailureTeller, hear_failures, opened_bucket, telling_failures
from durastore.extract.inputs import LinePlace, Survey, read_placed, survey_input
from durastore.extract.job import (
    EngineFactory,
    ExtractRequest,
    RunPlan,
    is_wanted_again,
    plan_run,
    start_of,
    transformers_engine,
)
from durastore.extract.job_book import KnownJob, begin_job, end_job, note_found
from durastore.extract.leased_work import WorkerOrder
from durastore.extract.leases import LeaseQueue, Task, TaskState
from durastore.extract.progress import shown_progress
from durastore.extract.records import Records
from durastore.extract.report import ExtractReport, LeftSpool
from durastore.extract.rows import RowFailure, TokenRow
from durastore.extract.semantic import CheckReport
from durastore.extract.switch import StopSwitch
from durastore.extract.tally import SHOWN_FAILURES, Counts, Tally
from durastore.extract.tokens import ensure_tokenisable, tokenise
from durastore.model import Digest, Run, SampleId, render_json
from durastore.observe.events import LOGGER
from durastore.store.opening import open_store
from durastore.store.store import Store

__all__ = ["Crew", "run_shared_extract"]

_GROUP_ROWS = 1000
_POLL_S = 0.5
_MOST_ROUNDS = 3


class Crew(Protocol):
    """Has the workers of these orders work until the queue is empty, all were stopped, or one cannot go on."""

    def __call__(
        self, orders: Sequence[WorkerOrder], queue: LeaseQueue, *, switch: StopSwitch, clock: Clock
    ) -> CrewEnd: ...


def run_shared_extract(
    request: ExtractRequest,
    *,
    engine_factory: EngineFactory = transformers_engine,
    clock: Clock = SYSTEM_CLOCK,
    crew: Crew | None = None,
) -> ExtractReport:
    """As `run_extract`, with `request.workers` processes. Raises and reports as that does.

    `engine_factory` is a function of a module, because it goes to the workers. `crew`: whoever has them work, by
    default processes of this machine.
    """
    resolve_options(dict(request.options))
    if {"clock", "observer", "objects"} & request.options.keys():
        raise ConfigError("clock, observer and objects cannot be given to other processes", hint="use workers=None")
    survey = survey_input(request.input, limit=request.limit, shard=request.shard)
    plan = plan_run(request)
    ensure_tokenisable(survey.to_tokenise, plan.tokenizer)
    job = _job_name(survey, plan, request=request)
    switch = StopSwitch(grace_s=request.grace_s, clock=clock)
    with ExitStack() as stack:
        if request.handles_signals:
            stack.enter_context(switch.installed())
        store = stack.enter_context(_opened(request, plan))  # another run is refused here; it makes the root
        queue = LeaseQueue(request.local, job=job, clock=clock, lease_s=request.lease_s)
        stack.callback(queue.close)
        records = stack.enter_context(Records(request.local, run=Run.of(plan.run).digest.hex, clock=clock))
        stack.enter_context(records.ledger.hearing(LOGGER))
        work = _Job(request, survey, plan=plan, shared=(job, queue, records), bookkeeping=(switch, clock))
        work.crew = crew or run_crew
        work.begin()
        bucket, run = partial(opened_bucket, request), Run.of(plan.run).digest
        if request.is_retry:
            hear_failures(records.book, bucket, run=run)
        teller = FailureTeller(records.book, bucket, run=run)
        stack.enter_context(
            telling_failures(
                teller, is_stopping=lambda: switch.signal is not None, is_out_of_time=lambda: switch.is_expired
            )
        )
        work.fill(store)
        store.abandon()  # its spool is free for a worker; what waits in it goes on there
        orders = [
            WorkerOrder(
                request=request, job=job, run=Run.of(plan.run).digest.hex, slot=slot, engine_factory=engine_factory
            )
            for slot in range(request.workers or 1)
        ]
        return work.finish(work.work_off(orders))


def _job_name(survey: Survey, plan: RunPlan, *, request: ExtractRequest) -> str:
    """Commands of one name share their samples: the same run, input, part of it and rules of what may be done."""
    facts = [Run.of(plan.run).digest.hex, survey.digest.hex, str(survey.shard), str(plan.rule), str(request.is_retry)]
    return Digest.of(render_json(facts).encode()).hex


@contextmanager
def _opened(request: ExtractRequest, plan: RunPlan) -> Iterator[Store]:
    store = open_store(request.bucket, local=request.local, run=plan.run, **request.options)
    try:
        yield store
    finally:
        try:
            store.abandon()
        except StoreClosed as exc:
            LOGGER.warning("%s", exc)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worked:
    """What the workers came to."""

    ok: int
    error: DurastoreError | None = None
    is_abandoned: bool = False
    was_asked_to_stop: bool = False
    local_only: tuple[str, ...] = ()
    left_behind: tuple[LeftSpool, ...] = ()
    checks: CheckReport = field(default_factory=CheckReport)


class _Job:
    def __init__(
        self,
        request: ExtractRequest,
        survey: Survey,
        *,
        plan: RunPlan,
        shared: tuple[str, LeaseQueue, Records],
        bookkeeping: tuple[StopSwitch, Clock],
    ) -> None:
        self._request = request
        self._survey = survey
        self._plan = plan
        self._job, self._queue, self._records = shared
        self._switch, self._clock = bookkeeping
        self._start_s = self._clock.monotonic()
        settle = self._records.book.settle
        self._tally = Tally(
            survey.inputs, record=self._records.failure, settle=lambda row, _: settle(str(row.sample_id), row.line)
        )
        self._done_before = 0
        self.crew: Crew = run_crew

    def begin(self) -> None:
        request, run = self._request, Run.of(self._plan.run).digest.hex
        self._records.ledger.start(
            run=run, inputs=self._survey.inputs, input=str(request.input), workers=request.workers
        )
        start = start_of(request, self._plan, clock=self._clock)
        begin_job(
            request.local,
            KnownJob(job=self._job, start=start, workers=request.workers or 1, inputs=self._survey.inputs),
        )

    def fill(self, store: Store) -> None:
        """Everything that is not done goes into the queue; what can never be done is a failure at once."""
        left: list[Task] = []
        done: list[str] = []
        for place, raw in read_placed(self._survey):
            if self._switch.signal is not None:
                break
            row = raw if isinstance(raw, RowFailure) else tokenise(raw, self._plan.tokenizer, rule=self._plan.rule)
            if self._request.is_retry and not is_wanted_again(row, store=store, book=self._records.book):
                continue
            if isinstance(row, RowFailure):
                self._tally.add_failed(row)
            elif store.contains(str(row.sample_id), input_digest=row.input_digest.hex):  # INV-8
                self._tally.add_skipped(row)
                done.append(str(row.sample_id))
            else:
                left.append(_task_of(row, place))
            if len(left) + len(done) >= _GROUP_ROWS:
                self._note(left, done)
                left, done = [], []
        self._note(left, done)
        self._done_before = self._queue.standing().done
        note_found(self._request.local, self._job, counts=self._tally.counts(), done_before=self._done_before)

    def _note(self, left: list[Task], done: list[str]) -> None:
        self._queue.add(left)
        self._queue.found_done(done)

    def work_off(self, orders: list[WorkerOrder]) -> _Worked:
        """Workers until all is done, then a look at the manifest: what it does not have is done again."""
        worked, left = _Worked(ok=0), 0
        with self._progress():
            for _ in range(_MOST_ROUNDS):
                crew = CrewEnd(left_behind=worked.left_behind)
                if self._switch.signal is None and self._left():
                    crew = self.crew(orders, self._queue, switch=self._switch, clock=self._clock)
                if self._is_over(crew):
                    return self._stopped(crew)
                worked = replace(
                    self._proven(),
                    checks=crew.checks,
                    is_abandoned=crew.is_abandoned,
                    left_behind=crew.left_behind,
                )
                left = self._left()
                if worked.error is not None or not (worked.local_only or left):
                    return worked
                LOGGER.warning(
                    "%d samples were stored but are in no manifest, %d were left: again", len(worked.local_only), left
                )
                self._queue.reopen(worked.local_only)
        return worked if worked.local_only else replace(worked, error=_unworked(left))

    def _left(self) -> int:
        standing = self._queue.standing()
        return standing.open + standing.leased

    def _is_over(self, crew: CrewEnd) -> bool:
        if self._switch.signal is not None or crew.error is not None:
            return True
        return crew.was_asked_to_stop and self._left() > 0

    def _stopped(self, crew: CrewEnd) -> _Worked:
        """The workers' own word, without the manifest's: there is no time for that."""
        standing = self._queue.standing()
        return _Worked(
            ok=standing.stored + standing.done - self._done_before,
            error=crew.error,
            is_abandoned=crew.is_abandoned,
            was_asked_to_stop=crew.was_asked_to_stop,
            left_behind=crew.left_behind,
            checks=crew.checks,
            local_only=tuple(self._queue.unflushed_ids()),
        )

    def _proven(self) -> _Worked:
        """What the manifest says, after what killed workers left in their spools was brought to the bucket.

        `local_only` are samples that are nowhere, or could not be brought there.
        """
        self._await_others()
        with _opened(self._request, self._plan) as store:
            error = self._flush(store)
            ok = -self._done_before
            missing: list[str] = []
            for task in self._queue.each_in(TaskState.STORED, TaskState.DONE):
                if store.contains(task.sample_id, input_digest=task.input_digest):
                    ok += 1
                else:
                    missing.append(task.sample_id)
            if error is not None or self._switch.signal is not None:
                missing = [*missing, *store.status().only_local_ids]
        return _Worked(ok=ok, error=error, local_only=tuple(missing))

    def _await_others(self) -> None:
        """Another command's workers still flush, or work. Those that did not notice for a lease that all is done are
        not waited for: what they stored is on disk, and the next store that opens their spool brings it to the bucket.
        """
        give_up_s = self._clock.monotonic() + self._request.lease_s
        while (living := self._queue.living()) and self._switch.signal is None:
            is_late = self._clock.monotonic() > give_up_s and not self._queue.has_work()
            if is_late and self._queue.lagging().keys() >= set(living):
                LOGGER.warning("workers %s no longer answer and are not waited for", living)
                return
            self._clock.sleep(_POLL_S)

    def _flush(self, store: Store) -> DurastoreError | None:
        while not self._switch.is_expired:
            try:
                store.flush(_POLL_S)
            except TimeoutError:
                continue
            except DurastoreError as exc:
                return exc
            return None
        return None

    def finish(self, worked: _Worked) -> ExtractReport:
        found = self._tally.counts()
        tokens, tensor_bytes = self._queue.sums()
        standing = self._queue.standing()
        report = ExtractReport(
            run=Run.of(self._plan.run).digest.hex,
            counts=replace(
                found, ok=worked.ok, failed=found.failed + standing.failed, tokens=tokens, tensor_bytes=tensor_bytes
            ),
            rows=self._survey.rows,
            duplicates=len(self._survey.duplicate_lines),
            failures=self._failures(),
            failures_file=str(self._records.ledger.failures_path),
            elapsed_s=self._clock.monotonic() - self._start_s,
            shard=str(self._survey.shard),
            signal=SIGTERM if worked.was_asked_to_stop else self._switch.signal,
            error=worked.error,
            local_only=worked.local_only,
            is_abandoned=worked.is_abandoned,
            left_behind=worked.left_behind,
            checks=worked.checks,
        )
        self._records.ledger.end(report)
        end_job(self._request.local, self._job, report=report, clock=self._clock)
        return report

    def _failures(self) -> tuple[RowFailure, ...]:
        """Those found when the input was read, then the workers'; at most as many as a tally shows."""
        failed = {task.sample_id for task in self._queue.each_in(TaskState.FAILED, TaskState.FAILED)}
        theirs = [
            RowFailure(
                line=known.line,
                sample_id=SampleId(known.sample_id),
                stage=known.stage,
                reason=known.reason,
                attempts=known.attempts,
            )
            for known in self._records.book.failures()
            if known.sample_id is not None and known.sample_id in failed
        ]
        return (*self._tally.failures(), *theirs)[:SHOWN_FAILURES]

    def _progress(self) -> AbstractContextManager[None]:
        def counts() -> Counts:
            standing, (tokens, _) = self._queue.standing(), self._queue.sums()
            found = self._tally.counts()
            ok = standing.stored + standing.done - self._done_before
            return replace(found, ok=ok, failed=found.failed + standing.failed, tokens=tokens)

        if not self._request.is_progress_shown:
            return nullcontext()
        return shown_progress(counts, local_bytes=lambda: None, clock=self._clock)


def _unworked(left: int) -> DurastoreError | None:
    """Workers that end well and leave samples must not look like an end that nobody has to see to."""
    if not left:
        return None
    return EngineFailed(f"all workers ended {_MOST_ROUNDS} times and left {left} samples", hint="run it again")


def _task_of(row: TokenRow, place: LinePlace) -> Task:
    return Task(
        sample_id=str(row.sample_id),
        input_digest=row.input_digest.hex,
        line=row.line,
        offset=place.offset,
        size_bytes=place.size_bytes,
        tokens=len(row.input_ids),
    )
