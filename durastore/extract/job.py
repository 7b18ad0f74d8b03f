"""One extraction from request to report.

Duty: put the parts together in the order in which a mistake costs least: check the whole input, identify the model,
parse the layers, open the store (another run at the prefix is refused here), and only then load the model and work.
Must never write to the store itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.config import resolve_options
from durastore.errors import DurastoreError, StoreClosed
from durastore.extract.engine import Engine
from durastore.extract.failure_book import FailureBook
from durastore.extract.failure_teller import FailureTeller, hear_failures, opened_bucket, telling_failures
from durastore.extract.inputs import Survey, read_selected, survey_input
from durastore.extract.job_book import KnownJob, begin_job, end_job
from durastore.extract.layers import LayerPlan, parse_layers
from durastore.extract.model_identity import ModelIdentity, ModelSource, identify_model, resolve_model
from durastore.extract.ports import SampleStore
from durastore.extract.progress import shown_progress
from durastore.extract.records import Records
from durastore.extract.report import ExtractReport
from durastore.extract.reporting import ReportedWorker, reported
from durastore.extract.rows import RowFailure, TokenRow
from durastore.extract.runner import RunnerLimits, run_rows
from durastore.extract.server_settings import ServerSettings
from durastore.extract.shards import WHOLE, Shard
from durastore.extract.starts import Start, environment_of, without_user_info
from durastore.extract.switch import StopSwitch
from durastore.extract.tally import Tally
from durastore.extract.tokens import LengthRule, TransformersTokenizer, ensure_tokenisable, tokenise
from durastore.extract.transformers_engine import ModelSettings, TransformersEngine
from durastore.extract.watched_passes import WatchedEngine, watched
from durastore.model import Digest, Run, render_json
from durastore.observe.events import LOGGER
from durastore.store.opening import OptionOverrides, open_store

__all__ = [
    "EngineFactory",
    "ExtractRequest",
    "RunPlan",
    "describe_run",
    "is_wanted_again",
    "plan_run",
    "run_extract",
    "start_of",
    "transformers_engine",
    "wanted_rows",
]


class EngineFactory(Protocol):
    """Makes the engine, without loading anything yet."""

    def __call__(self, source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> Engine: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractRequest:
    """Everything an extraction is told."""

    input: Path
    model: str
    layers: str
    bucket: str
    local: Path
    options: OptionOverrides = field(default_factory=OptionOverrides)
    """What was asked for explicitly; environment and files fill in the rest."""
    settings: ModelSettings = field(default_factory=ModelSettings)
    engine: str = "transformers"
    server: ServerSettings = field(default_factory=ServerSettings)
    """Of an engine that asks one."""
    limits: RunnerLimits = field(default_factory=RunnerLimits)
    max_tokens: int | None = None
    """Longest sample; by default what the model was made for."""
    is_truncated: bool = False
    is_last_normed: bool = False
    grace_s: float = 60.0
    limit: int | None = None
    shard: Shard = WHOLE
    is_retry: bool = False
    """Only samples that are recorded as failed."""
    workers: int | None = None
    """Processes of this machine that share the input; None: this process alone."""
    lease_s: float = 900.0
    """A worker that says nothing for so long loses its samples to the others."""
    is_progress_shown: bool = False
    handles_signals: bool = False
    """Only the main thread of a process that does nothing else may set it."""
    command: tuple[str, ...] = ()
    """What was typed, for whoever has to go on after a crash."""


def describe_run(
    identity: ModelIdentity, plan: LayerPlan, *, request: ExtractRequest, rule: LengthRule
) -> dict[str, Any]:
    """The `run` of the store: everything that changes the stored states of a given row, and nothing else.

    The length limit is part of it only where rows are truncated to it: otherwise it decides which rows fail, and
    raising it must not cost the ones that are done.
    """
    return {
        "kind": "hidden_states",
        "engine": request.engine,
        "model": identity.description,
        "dtype": request.settings.dtype,
        **plan.describe(),
        "truncated_to_tokens": rule.max_tokens if rule.is_truncated else None,
        "special_tokens": "as the tokeniser's settings say",
        "chat_generation_prompt": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What a request comes to, before anything is loaded or opened."""

    source: ModelSource
    layers: LayerPlan
    rule: LengthRule
    run: dict[str, Any]
    tokenizer: TransformersTokenizer


def plan_run(request: ExtractRequest) -> RunPlan:
    """Identify the model and parse what is wanted of it. `ConfigError`, `InvalidInput`. Reads a few MB."""
    is_trusted = request.settings.is_remote_code_trusted
    source = resolve_model(request.model)
    identity = identify_model(source, is_remote_code_trusted=is_trusted)
    layers = parse_layers(request.layers, num_layers=identity.num_layers, is_last_normed=request.is_last_normed)
    rule = LengthRule(max_tokens=request.max_tokens or identity.max_positions, is_truncated=request.is_truncated)
    return RunPlan(
        source=source,
        layers=layers,
        rule=rule,
        run=describe_run(identity, layers, request=request, rule=rule),
        tokenizer=TransformersTokenizer(source, is_remote_code_trusted=is_trusted),
    )


def start_of(request: ExtractRequest, plan: RunPlan, *, clock: Clock) -> Start:
    """What is to be kept of this start of the request, by the process that makes it."""
    return Start(
        stamp=clock.stamp(),
        pid=os.getpid(),
        command=tuple(map(without_user_info, request.command)),
        folder=without_user_info(str(Path.cwd())),
        environment=environment_of(),
        run=Run.of(plan.run).digest.hex,
        bucket=without_user_info(request.bucket),
        local=without_user_info(str(request.local)),
        input=without_user_info(str(request.input)),
        model=without_user_info(request.model),
        is_remote_code_trusted=request.settings.is_remote_code_trusted,
        max_tokens=plan.rule.max_tokens,
        is_truncated=plan.rule.is_truncated,
        limit=request.limit,
        shard=str(request.shard),
    )


def wanted_rows(
    survey: Survey, plan: RunPlan, *, store: SampleStore, book: FailureBook | None
) -> Iterator[TokenRow | RowFailure]:
    """The rows of the survey as the model sees them; with a book only those that it knows as failed, and what is done.

    The others then stay without an outcome, which the report tells.
    """
    for row in read_selected(survey):
        wanted = row if isinstance(row, RowFailure) else tokenise(row, plan.tokenizer, rule=plan.rule)
        if book is None or is_wanted_again(wanted, store=store, book=book):
            yield wanted


def is_wanted_again(row: TokenRow | RowFailure, *, store: SampleStore, book: FailureBook) -> bool:
    """Whether `--retry-failed` looks at this row: it failed, or it is done."""
    if book.knows(str(row.sample_id) if row.sample_id is not None else None, row.line):
        return True
    return isinstance(row, TokenRow) and store.contains(str(row.sample_id), input_digest=row.input_digest.hex)


def transformers_engine(source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> Engine:
    return TransformersEngine(source, plan, settings=settings)


def run_extract(
    request: ExtractRequest, *, engine_factory: EngineFactory = transformers_engine, clock: Clock = SYSTEM_CLOCK
) -> ExtractReport:
    """Extract every input that is not done yet and bring it to the bucket.

    Raises `InvalidInput` or `ConfigError` before anything is written if the request is wrong. Afterwards it always
    reports: failed samples, an early end and samples that are only local are in the report and in its exit code. Safe
    to repeat: the same call goes on where this one ended.
    """
    resolve_options(dict(request.options))
    survey = survey_input(request.input, limit=request.limit, shard=request.shard)
    plan = plan_run(request)
    ensure_tokenisable(survey.to_tokenise, plan.tokenizer)
    store = open_store(request.bucket, local=request.local, run=plan.run, **request.options)
    try:
        engine = engine_factory(plan.source, plan.layers, settings=request.settings)
        session = _Session(
            request=request, survey=survey, run=Run.of(plan.run), clock=clock, spool_path=store.spool_path
        )
        return session.work_off(plan, store, engine=watched(engine, clock=clock))
    finally:
        # The flush is behind us, or was given up, or an error is on its way: do not wait for the network again.
        try:
            store.abandon()
        except StoreClosed as exc:  # a thread still waits for the network; the report or error in hand says more
            LOGGER.warning("%s", exc)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    request: ExtractRequest
    survey: Survey
    run: Run
    clock: Clock
    spool_path: Path

    @property
    def job(self) -> str:
        """The name that this run has among those of the root."""
        return Digest.of(render_json(["alone", self.run.digest.hex, self.survey.digest.hex]).encode()).hex

    def work_off(self, plan: RunPlan, store: SampleStore, *, engine: WatchedEngine) -> ExtractReport:
        with Records(self.request.local, run=self.run.digest.hex, clock=self.clock) as records:
            ledger = records.ledger
            ledger.start(run=self.run.digest.hex, inputs=self.survey.inputs, input=str(self.request.input))
            start = start_of(self.request, plan, clock=self.clock)
            begin_job(self.request.local, KnownJob(job=self.job, start=start, workers=0, inputs=self.survey.inputs))
            try:
                with ledger.hearing(LOGGER):
                    report = self._work_off_told(plan, store, engine=engine, records=records)
            finally:
                engine.close()
            ledger.end(report)
            end_job(self.request.local, self.job, report=report, clock=self.clock)
            return report

    def _work_off_told(
        self, plan: RunPlan, store: SampleStore, *, engine: WatchedEngine, records: Records
    ) -> ExtractReport:
        """The bucket says what failed elsewhere, and is told what fails here."""
        bucket, run = partial(opened_bucket, self.request), self.run.digest
        if self.request.is_retry:
            hear_failures(records.book, bucket, run=run)
        switch = StopSwitch(grace_s=self.request.grace_s, clock=self.clock)
        teller = FailureTeller(records.book, bucket, run=run)
        telling = telling_failures(
            teller, is_stopping=lambda: switch.signal is not None, is_out_of_time=lambda: switch.is_expired
        )
        # Around the telling: a signal that comes while the last list is told must not cost the report.
        with self._signals(switch), telling:
            book = records.book if self.request.is_retry else None
            rows = wanted_rows(self.survey, plan, store=store, book=book)
            return self._work_off(rows, store, engine=engine, bookkeeping=(records, switch))

    def _work_off(
        self,
        rows: Iterator[TokenRow | RowFailure],
        store: SampleStore,
        *,
        engine: WatchedEngine,
        bookkeeping: tuple[Records, StopSwitch],
    ) -> ExtractReport:
        records, switch = bookkeeping
        start = self.clock.monotonic()
        settle = records.book.settle
        tally = Tally(
            self.survey.inputs, record=records.failure, settle=lambda row, _: settle(str(row.sample_id), row.line)
        )
        told = ReportedWorker(spool=self.spool_path, run=self.run.digest.hex, job=self.job)
        with (
            self._progress(tally, store),
            reported(told, tally, engine=engine, clock=self.clock),
        ):
            outcome = run_rows(rows, store, engine=engine, bookkeeping=(tally, switch), limits=self.request.limits)
        return ExtractReport(
            run=self.run.digest.hex,
            counts=tally.counts(),
            rows=self.survey.rows,
            duplicates=len(self.survey.duplicate_lines),
            failures=tally.failures(),
            failures_file=str(records.ledger.failures_path),
            shard=str(self.request.shard),
            elapsed_s=self.clock.monotonic() - start,
            signal=switch.signal,
            error=outcome.error,
            local_only=() if outcome.is_flushed else tuple(store.status().only_local_ids),
            is_abandoned=outcome.is_abandoned,
            checks=outcome.checks,
        )

    def _signals(self, switch: StopSwitch) -> AbstractContextManager[object]:
        return switch.installed() if self.request.handles_signals else nullcontext()

    def _progress(self, tally: Tally, store: SampleStore) -> AbstractContextManager[None]:
        def local_bytes() -> int | None:
            try:
                return store.status().local_bytes
            except DurastoreError:
                return None  # the number is a courtesy; whatever is wrong with the store ends the run by itself

        if not self.request.is_progress_shown:
            return nullcontext()
        return shown_progress(tally.counts, local_bytes=local_bytes, clock=self.clock)
