"""The view as Prometheus metrics: base units, and labels with few values (roots, spools, stages, states).

Duty: one collector over the newest view. No sample id, pack, key or text of an error is ever a label: their number has
no bound.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from durastore.monitor.view import View

__all__ = ["CONTENT_TYPE", "render_metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SEVERITIES = ("bad", "warn", "info")
_STATES = (
    "working",
    "loading",
    "flushing",
    "storing",
    "waiting",
    "stalled",
    "silent",
    "killed",
    "ended",
)


def render_metrics(view: View) -> bytes:
    """The text that a Prometheus server reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(view))
    return generate_latest(registry)


class _Collector:
    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view
        yield from _jobs(view)
        yield from _stages(view)
        yield from _spools(view)
        yield from _rooms(view)
        yield from _requests(view)
        yield from _state(view)


def _gauge(name: str, text: str, *, labels: tuple[str, ...] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"durastore_{name}", text, labels=labels)


def _counter(name: str, text: str, *, labels: tuple[str, ...] = ()) -> CounterMetricFamily:
    return CounterMetricFamily(f"durastore_{name}", text, labels=labels)


def _jobs(view: View) -> Iterator[Metric]:
    inputs = _gauge("job_inputs", "Inputs of the extraction that is shown first.")
    done = _gauge("job_samples", "Its inputs with an outcome.", labels=("outcome",))
    left = _gauge("job_eta_seconds", "Until all have one, at the speed of the last five minutes.")
    if (job := view.job) is not None:
        inputs.add_metric((), job.inputs)
        for outcome, number in (("ok", job.ok), ("failed", job.failed), ("skipped", job.skipped)):
            done.add_metric((outcome,), number)
        if job.eta_s is not None:
            left.add_metric((), job.eta_s)
    yield from (inputs, done, left)


def _stages(view: View) -> Iterator[Metric]:
    samples = _counter("stage_samples", "Samples through a stage, of the processes that were seen.", labels=("stage",))
    size_bytes = _counter("stage_bytes", "Bytes through a stage, of the processes that were seen.", labels=("stage",))
    packs = _gauge("stage_waiting_packs", "Packs before a stage.", labels=("stage",))
    waiting = _gauge("stage_waiting_bytes", "Bytes before a stage.", labels=("stage",))
    limits = _gauge("stage_is_limit", "1 for the stage that sets the pace.", labels=("stage",))
    for stage in view.stages:
        samples.add_metric((stage.name,), stage.done.samples)
        size_bytes.add_metric((stage.name,), stage.done.size_bytes)
        packs.add_metric((stage.name,), stage.waiting.packs)
        waiting.add_metric((stage.name,), stage.waiting.size_bytes)
        limits.add_metric((stage.name,), float(view.limit.stage == stage.name))
    yield from (samples, size_bytes, packs, waiting, limits)


def _spools(view: View) -> Iterator[Metric]:
    used = _gauge("spool_used_bytes", "Pack files in a spool.", labels=("spool",))
    high = _gauge("spool_high_watermark_bytes", "Puts wait above it.", labels=("spool",))
    local = _gauge("spool_only_local_samples", "Samples that are in no manifest segment yet.", labels=("spool",))
    age = _gauge("spool_last_word_seconds", "Since its process told anything.", labels=("spool",))
    states = _gauge("workers", "Spools by what their process does.", labels=("state",))
    for worker in view.workers:
        label = (worker.spool,)
        used.add_metric(label, worker.used_bytes)
        high.add_metric(label, worker.high_bytes)
        local.add_metric(label, worker.only_local)
        age.add_metric(label, worker.age_s)
    for state in _STATES:
        states.add_metric((state,), sum(worker.state == state for worker in view.workers))
    yield from (used, high, local, age, states)


def _rooms(view: View) -> Iterator[Metric]:
    free = _gauge("disk_free_bytes", "Free on the disk under a root.", labels=("root",))
    size = _gauge("disk_size_bytes", "Size of that disk.", labels=("root",))
    quarantined = _gauge("quarantined_bytes", "Files that were set aside.", labels=("root",))
    for room in view.rooms:
        free.add_metric((room.root,), room.free_bytes or 0)
        size.add_metric((room.root,), room.disk_bytes or 0)
        quarantined.add_metric((room.root,), room.quarantined_bytes)
    yield from (free, size, quarantined)


def _requests(view: View) -> Iterator[Metric]:
    transfers, proofs = view.transfers, view.proofs
    for name, text, value in (
        ("upload_retries", "Upload requests tried again.", transfers.retries),
        ("upload_slowdowns", "Answers that asked for less (503 SlowDown and its like).", transfers.slowdowns),
        ("upload_stuck_requests", "Upload requests given up because nothing came.", transfers.stuck),
        ("upload_failures", "Uploads given up for now.", transfers.failed),
        ("proofs_mismatched", "Copies in the bucket that were found wrong.", proofs.mismatches),
    ):
        counter = _counter(name, text)
        counter.add_metric((), value)
        yield counter
    made = _counter("proofs", "Copies proven.", labels=("level",))
    made.add_metric(("attested",), proofs.attested)
    made.add_metric(("read_back",), proofs.read_back)
    yield made


def _state(view: View) -> Iterator[Metric]:
    risk = _gauge("only_local_samples", "Samples that are only on this machine.")
    risk.add_metric((), view.risk.samples)
    oldest = _gauge("only_local_oldest_seconds", "How long the oldest of them has been.")
    if view.risk.oldest_ns is not None:
        oldest.add_metric((), max(0.0, (view.at_ns - view.risk.oldest_ns) / 1e9))
    failures = _gauge("failures", "Samples and packs recorded as failed.")
    failures.add_metric((), view.failure_count)
    deaths = _counter("process_deaths", "Processes that ended without saying so, since watching began.")
    deaths.add_metric((), view.deaths)
    banners = _gauge("banners", "Things that have to be seen.", labels=("severity",))
    for severity in _SEVERITIES:
        banners.add_metric((severity,), sum(banner.severity == severity for banner in view.banners))
    stalled = _gauge("stage_is_stalled", "1 where nothing moves at a stage.", labels=("stage",))
    at = {banner.stage for banner in view.banners if banner.what == "stall"}
    for stage in view.stages:
        stalled.add_metric((stage.name,), float(stage.name in at))
    yield from (risk, oldest, failures, deaths, banners, stalled)
