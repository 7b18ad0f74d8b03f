"""What one process of an extraction tells of itself, in `worker.status` of its spool.

Duty: put a `WorkerRecord` together once a second, and notice a model that says nothing. Reads only. Must never be in
the way of a pass or a put (see `Heartbeat`), nor fail the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from durastore.clock import Clock
from durastore.extract.tally import Counts, Tally
from durastore.extract.watched_passes import WatchedEngine
from durastore.formats.status import SLOT_BYTES, WORKER_STATUS_NAME, render_slot
from durastore.fsio.folder import Folder
from durastore.fsio.status_file import StatusFile
from durastore.observe.events import LOGGER, Silent
from durastore.observe.heartbeat import Heartbeat
from durastore.observe.stalls import STALL_AFTER_S, StageLook, StallWatch
from durastore.observe.status import Amount, Happening, Teller, WorkerRecord, clipped
from durastore.spool.last_words import load_unended_pid

__all__ = ["ReportedWorker", "reported"]

_SHOWN_FAILURES = 5
_LONG_PASS = 5.0
"""A pass this many times longer than the longest before is called silent."""
_LOAD_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedWorker:
    """What does not change."""

    spool: Path
    run: str
    job: str
    number: int = 0


@contextmanager
def reported(worker: ReportedWorker, tally: Tally, *, engine: WatchedEngine, clock: Clock) -> Iterator[None]:
    """Tell once a second while the block runs. A disk that does not take it costs the run nothing."""
    try:
        folder = Folder.open(worker.spool)
    except OSError as exc:
        LOGGER.warning("the progress of this process is not told: %s", exc)
        yield
        return
    file = StatusFile(folder, WORKER_STATUS_NAME, slot_bytes=SLOT_BYTES)
    reporter = _Reporter(worker, tally, engine=engine, clock=clock)
    heartbeat = Heartbeat(reporter.render, file, clock=clock, after_pid=load_unended_pid(folder, WorkerRecord))
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()
        file.close()
        folder.close()


class _Reporter:
    def __init__(self, worker: ReportedWorker, tally: Tally, *, engine: WatchedEngine, clock: Clock) -> None:
        self._worker = worker
        self._tally = tally
        self._engine = engine
        self._clock = clock
        self._watch = StallWatch(Silent())
        self._shown: dict[int, Happening] = {}

    def render(self, teller: Teller, number: int) -> bytes:
        counts, (samples, size_bytes) = self._tally.counts(), self._tally.queued()
        pass_s = self._engine.pass_s
        record = WorkerRecord(
            teller=teller,
            spool=self._worker.spool.name,
            number=self._worker.number,
            job=self._worker.job,
            run=self._worker.run,
            phase=self._phase(counts, is_ended=teller.is_ended, has_queue=samples > 0),
            inputs=counts.inputs,
            ok=counts.ok,
            failed=counts.failed,
            skipped=counts.skipped,
            tokens=counts.tokens,
            tensor_bytes=counts.tensor_bytes,
            queued=Amount(samples=samples, size_bytes=size_bytes),
            passes=self._engine.passes,
            pass_s=pass_s,
            longest_pass_s=self._engine.longest_s,
            audited=self._tally.audited(),
            happenings=self._failures(teller.written_ns),
            stall=self._watch.look([self._look()], now_ns=teller.written_ns),
        )
        return render_slot(record, number=number)

    def _phase(self, counts: Counts, *, is_ended: bool, has_queue: bool) -> str:
        if is_ended:
            return "ended"
        if self._engine.is_loading:
            return "loading"
        if self._engine.pass_s is not None:
            return "extracting"
        if not self._engine.passes:
            return "starting"
        is_done = counts.inputs > 0 and counts.left == 0
        return "flushing" if is_done and not has_queue else "extracting"

    def _look(self) -> StageLook:
        longest_s = max(STALL_AFTER_S, _LONG_PASS * self._engine.longest_s)
        return StageLook(
            name="extracted",
            is_waited_for=self._engine.pass_s is not None or self._engine.is_loading,
            progress=self._engine.passes,
            silent="the model does not load" if self._engine.is_loading else "the model says nothing",
            after_s=_LOAD_S if self._engine.is_loading else longest_s,
        )

    def _failures(self, now_ns: int) -> tuple[Happening, ...]:
        failures = self._tally.failures()
        first = max(0, len(failures) - _SHOWN_FAILURES)
        shown = {}
        for at, failure in enumerate(failures[first:], start=first):
            name = failure.sample_id or f"line {failure.line}"
            text = clipped(f"{name}: {failure.reason}")
            shown[at] = self._shown.get(at) or Happening(at_ns=now_ns, what=f"failed at {failure.stage}", text=text)
        self._shown = shown
        return tuple(shown.values())
