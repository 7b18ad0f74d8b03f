"""The work of one worker, wherever it is: lease samples at its seat, store them, hand back what it did not do.

Duty: an engine and a loop over leased batches. Must never tell a sample as stored before its put has returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from durastore.clock import Clock
from durastore.errors import DurastoreError
from durastore.extract.job import EngineFactory, ExtractRequest, RunPlan
from durastore.extract.reporting import ReportedWorker, reported
from durastore.extract.rows import RowFailure, TokenRow
from durastore.extract.runner import Outcome, run_batches
from durastore.extract.seat import LeasedRow, Seat, StoredSample
from durastore.extract.semantic import CheckReport
from durastore.extract.switch import StopSwitch
from durastore.extract.tally import Tally
from durastore.extract.tokens import tokenise
from durastore.extract.transformers_engine import ModelSettings
from durastore.extract.watched_passes import watched
from durastore.model import Run, SampleId
from durastore.store.store import Store

__all__ = ["WorkerEnd", "WorkerOrder", "leased_batches", "work_off_leases"]

_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """What a worker is told. Everything in it can be sent to another process."""

    request: ExtractRequest
    job: str
    """The queue's name for run and input."""
    run: str
    """The digest of the run, as the command sees the model."""
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
    ok: int = 0
    handed_back: int = 0
    checks: CheckReport = field(default_factory=CheckReport)


def work_off_leases(
    seat: Seat,
    order: WorkerOrder,
    *,
    opened: tuple[RunPlan, Store],
    bookkeeping: tuple[StopSwitch, Clock],
    settings: ModelSettings,
) -> WorkerEnd:
    """Work until nothing is left, or a stop. What it leased and did not do is handed back."""
    (plan, store), (switch, clock), request = opened, bookkeeping, order.request
    engine = watched(
        order.engine_factory(plan.source, plan.layers, settings=settings), clock=clock, lease_s=request.lease_s
    )
    told = ReportedWorker(spool=store.spool_path, run=Run.of(plan.run).digest.hex, job=order.job, number=seat.number)
    tally = Tally(0, record=seat.failed, settle=lambda row, size: seat.stored(_stored(row, size)))
    try:
        with engine.renewing(seat.renew), reported(told, tally, engine=engine, clock=clock):
            outcome: Outcome = run_batches(
                leased_batches(seat, plan, request=request, switch=switch, clock=clock),
                store,
                engine=engine,
                bookkeeping=(tally, switch),
                limits=request.limits,
            )
    finally:
        engine.close()
    handed_back = seat.hand_back()
    if outcome.is_flushed:
        seat.flushed()
    return WorkerEnd(
        number=seat.number,
        signal=switch.signal,
        error=outcome.error,
        is_flushed=outcome.is_flushed,
        is_abandoned=outcome.is_abandoned,
        ok=tally.counts().ok,
        handed_back=handed_back,
        checks=outcome.checks,
    )


def leased_batches(
    seat: Seat, plan: RunPlan, *, request: ExtractRequest, switch: StopSwitch, clock: Clock
) -> Iterator[list[TokenRow | RowFailure]]:
    """Batch after batch of leased samples, until there is none to lease and none that another might hand back. An empty
    one: none at the moment.
    """
    while switch.signal is None:
        rows, hopeless = seat.take(batch_tokens=request.limits.batch_tokens)
        if not rows and not hopeless:
            if not seat.has_work_of_others():
                seat.leaving()
                return
            yield []  # a server's answers go on being stored meanwhile
            clock.sleep(_POLL_S)
            continue
        yield [*hopeless, *(_row_of(row, plan=plan) for row in rows)]


def _stored(row: TokenRow, tensor_bytes: int) -> StoredSample:
    return StoredSample(
        sample_id=str(row.sample_id), line=row.line, input_digest=row.input_digest.hex, tensor_bytes=tensor_bytes
    )


def _row_of(leased: LeasedRow, *, plan: RunPlan) -> TokenRow | RowFailure:
    """The sample as the model sees it, if it is still what was put into the queue."""
    task, row = leased.task, leased.row
    wanted = row if isinstance(row, RowFailure) else tokenise(row, plan.tokenizer, rule=plan.rule)
    if isinstance(wanted, TokenRow) and str(wanted.sample_id) == task.sample_id:
        if wanted.input_digest.hex == task.input_digest:
            return wanted
        reason = "has other tokens than when the input was read first"
    else:
        reason = wanted.reason if isinstance(wanted, RowFailure) else "is another sample than when it was read first"
    name = SampleId(task.sample_id)
    return RowFailure(line=task.line, sample_id=name, stage="read", reason=reason, attempts=task.attempts)
