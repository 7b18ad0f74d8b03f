"""Rows in, samples stored: the loop of an extraction.

Duty: leave out what is done, batch the rest, run the model, hand the states to the writer, and account for every row.
Must never decide from a file's existence that something is done, and must never let one bad sample end the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from durastore.errors import ConfigError, DurastoreError, EngineFailed
from durastore.extract.audit import Audit
from durastore.extract.batching import batches
from durastore.extract.engine import Engine, Extracted, Refused, StreamEngine
from durastore.extract.ports import SampleStore
from durastore.extract.rows import RowFailure, TokenRow
from durastore.extract.semantic import CheckReport
from durastore.extract.switch import StopSwitch
from durastore.extract.tally import Tally
from durastore.extract.writer import StoreWriter

__all__ = ["Outcome", "RunnerLimits", "run_batches", "run_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """How much is in work at once."""

    batch_tokens: int = 8192
    """Tokens of a batch, padding included."""
    queue_bytes: int = 1 << 30
    """Memory for states that wait to be stored."""
    audit_share: float = 0.0
    """Of the samples, 0 to 1: those that go through the model alone as well, to compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What ended the loop, if not the end of the input."""

    error: DurastoreError | None
    is_flushed: bool
    """Everything that was put is in the bucket's manifest."""
    is_abandoned: bool
    """The grace time ended before the flush did."""
    checks: CheckReport = field(default_factory=CheckReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    store: SampleStore
    engine: Engine
    tally: Tally
    switch: StopSwitch
    writer: StoreWriter
    audit: Audit

    @property
    def is_over(self) -> bool:
        return self.switch.signal is not None or self.writer.error is not None


def run_rows(
    rows: Iterable[TokenRow | RowFailure],
    store: SampleStore,
    *,
    engine: Engine,
    bookkeeping: tuple[Tally, StopSwitch],
    limits: RunnerLimits,
) -> Outcome:
    """Extract and store every row that is not done, then flush. Every row ends in exactly one count of the tally.

    Never raises for a sample. What ends the run early (the store, the model, the input, a signal) is in the outcome;
    what was stored until then is whole. Same call again: goes on with what is not done.
    """

    def cut(work: _Work) -> Iterator[list[TokenRow]]:
        return batches(_not_done(work, rows), batch_tokens=limits.batch_tokens)

    return _run(cut, store, engine=engine, bookkeeping=bookkeeping, limits=limits)


def run_batches(
    source: Iterable[Sequence[TokenRow | RowFailure]],
    store: SampleStore,
    *,
    engine: Engine,
    bookkeeping: tuple[Tally, StopSwitch],
    limits: RunnerLimits,
) -> Outcome:
    """As `run_rows`, for rows that somebody else cut into batches; a batch is asked for when the last one is handed on.

    The source is asked no more once the run is over, so it may wait for as long as its own look at the switch allows.
    """

    def cut(work: _Work) -> Iterator[list[TokenRow]]:
        for batch in source:
            rows = list(_not_done(work, batch))
            if rows or not batch:
                yield rows

    return _run(cut, store, engine=engine, bookkeeping=bookkeeping, limits=limits)


def _run(
    cut: Callable[[_Work], Iterator[list[TokenRow]]],
    store: SampleStore,
    *,
    engine: Engine,
    bookkeeping: tuple[Tally, StopSwitch],
    limits: RunnerLimits,
) -> Outcome:
    tally, switch = bookkeeping
    writer = StoreWriter(store, tally, limit_bytes=limits.queue_bytes)
    tally.queued, tally.audited = writer.queued, lambda: writer.watch.audit_count
    audit = Audit(share=limits.audit_share, note=writer.watch.audited)
    work = _Work(store=store, engine=engine, tally=tally, switch=switch, writer=writer, audit=audit)
    writer.start()
    error: Exception | None = None
    try:
        _work_off(work, cut(work))
    except Exception as exc:  # noqa: BLE001 - reported after the queue is stored: what the model has done must not be lost with it
        error = exc
    writer.finish()
    is_done = False
    while not is_done and not switch.is_expired:
        is_done = writer.wait()
    return Outcome(
        error=_as_reported(error or writer.error),
        is_flushed=is_done and writer.error is None,
        is_abandoned=not is_done,
        checks=writer.watch.report(),
    )


def _as_reported(error: Exception | None) -> DurastoreError | None:
    if error is None or isinstance(error, DurastoreError):
        return error
    wrapped = DurastoreError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _work_off(work: _Work, cut: Iterator[list[TokenRow]]) -> None:
    if isinstance(work.engine, StreamEngine):
        _stream_off(work, work.engine, cut=cut)
        return
    is_started = False
    for batch in cut:
        if work.is_over:
            return
        if not batch:  # none at the moment
            continue
        if not is_started:  # a finished run costs no model load
            work.engine.start()
            is_started = True
        results = work.audit.with_second_look(work.engine, batch, results=_extract(work.engine, batch))
        for row, result in zip(batch, results, strict=True):
            if isinstance(result, Refused):
                work.tally.add_failed(_failed(row, result))
            elif not work.writer.submit(row, result, may_wait=lambda: not work.switch.is_expired):
                return


def _stream_off(work: _Work, engine: StreamEngine, *, cut: Iterator[list[TokenRow]]) -> None:
    """As `_work_off`, with a server that is asked for row after row."""
    batches_left = iter(cut)
    first = next((batch for batch in batches_left if batch or work.is_over), [])
    if not first or work.is_over:  # a finished run needs no server
        return
    engine.start()

    def rows() -> Iterator[TokenRow | None]:
        yield from first
        for batch in batches_left:
            if work.is_over:
                return
            if not batch:  # none at the moment
                yield None
            yield from batch

    def may_wait() -> bool:
        return not work.switch.is_half_over and work.writer.error is None

    for row, result in work.audit.over_stream(lambda each: engine.stream(each, may_wait=may_wait), rows()):
        if isinstance(result, Refused):
            work.tally.add_failed(_failed(row, result))
        elif not work.writer.submit(row, result, may_wait=lambda: not work.switch.is_expired):
            return


def _not_done(work: _Work, rows: Iterable[TokenRow | RowFailure]) -> Iterator[TokenRow]:
    for row in rows:
        if work.is_over:
            return
        if isinstance(row, RowFailure):
            work.tally.add_failed(row)
        elif work.store.contains(str(row.sample_id), input_digest=row.input_digest.hex):  # INV-8
            work.tally.add_skipped(row)
        else:
            yield row


def _extract(engine: Engine, batch: Sequence[TokenRow], *, attempts: int = 1) -> list[Extracted | Refused]:
    """The batch's results; a batch that raises is halved until the sample that cannot be done stands alone."""
    outcome = _attempt(engine, batch)
    if not isinstance(outcome, str):
        return outcome
    # Out of the except block, so that the failed pass's tensors are no longer held by its traceback.
    sickness = engine.health()
    if sickness is not None:
        raise EngineFailed(f"the model cannot go on: {sickness}", hint=f"the last batch failed with {outcome}")
    if len(batch) == 1:
        return [Refused(reason=outcome, attempts=attempts)]
    halves = batch[: len(batch) // 2], batch[len(batch) // 2 :]
    return [result for half in halves for result in _extract(engine, half, attempts=attempts + 1)]


def _attempt(engine: Engine, batch: Sequence[TokenRow]) -> list[Extracted | Refused] | str:
    try:
        results = engine.extract(batch)
    except (ConfigError, EngineFailed):
        raise  # not about these samples
    except Exception as exc:  # noqa: BLE001 - out of memory, a model's own check, ...: the reason of a failed sample
        return " ".join(f"{type(exc).__name__}: {exc}".split())[:500]
    if len(results) != len(batch):
        raise EngineFailed(f"the engine gave {len(results)} results for {len(batch)} samples")
    return results


def _failed(row: TokenRow, refused: Refused) -> RowFailure:
    return RowFailure(
        line=row.line,
        sample_id=row.sample_id,
        stage="states",
        reason=refused.reason,
        attempts=refused.attempts,
        input_digest=row.input_digest,
    )
