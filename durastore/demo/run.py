"""`durastore demo`: the whole way of a sample, on parts that come with packages.

Duty: start the server, run the same `extract` that users run, wait until the disk is free, read all back through
`Dataset`, and compare some with a forward pass of their own. Kept in one folder, so the same call resumes. Deletes
nothing itself: the folder is the user's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK
from durastore.dataset.dataset import Dataset
from durastore.demo.material import find_model, write_prompts
from durastore.demo.reference import compare
from durastore.demo.report import DemoReport
from durastore.demo.seaweed import SeaweedServer
from durastore.demo.serve import DEMO_BUCKET
from durastore.errors import DurastoreError
from durastore.extract.job import ExtractRequest, run_extract
from durastore.extract.report import ExtractReport
from durastore.extract.runner import RunnerLimits
from durastore.fsio.folder import Folder
from durastore.observe.events import LOGGER
from durastore.store.opening import OptionOverrides, open_store
from durastore.store.status import StoreStatus

__all__ = ["DemoOptions", "run_demo"]

LAYERS = "2,15,27,last"
ALL_PROMPTS = 164
_SETTLE_S = 5.0
_DRAIN_TIMEOUT_S = 120.0
_COMPARED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What `durastore demo` can be told."""

    samples: int = ALL_PROMPTS
    keep: Path | None = None
    """Folder for server data, spool and logs; the same folder again resumes. Default: a new temporary folder."""
    bucket: str | None = None
    """A bucket of the user's own instead of the embedded server."""
    endpoint_url: str | None = None
    handles_signals: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    url: str
    path: Path
    model: Path
    start: float
    drain_s: float


def run_demo(options: DemoOptions) -> DemoReport:
    """Run it all; see the module. Raises what its parts raise; a wrong result is a finding in the report."""
    start = SYSTEM_CLOCK.monotonic()
    model = find_model()
    path = options.keep.absolute() if options.keep else Path(tempfile.mkdtemp(prefix="durastore-demo-"))
    with Folder.create(path) as folder:
        prompts = write_prompts(folder, count=options.samples)
        with _bucket(options, path) as (url, endpoint_url):
            overrides = _overrides(endpoint_url)
            extract = run_extract(_request(options, prompts, model=model, url=url, overrides=overrides))
            drained_from = SYSTEM_CLOCK.monotonic()
            status = _drain(url, path / "spool", overrides=overrides) if extract.signal is None else None
            drain_s = SYSTEM_CLOCK.monotonic() - drained_from
            facts = _Facts(url=url, path=path, model=model, start=start, drain_s=drain_s)
            style = "path" if endpoint_url is not None else "auto"
            with Dataset(url, endpoint_url=endpoint_url, addressing_style=style) as dataset:
                return _examine(dataset, extract, status=status, facts=facts)


@contextmanager
def _bucket(options: DemoOptions, path: Path) -> Iterator[tuple[str, str | None]]:
    """The bucket URL and endpoint: the user's own, or a new one on an embedded server."""
    if options.bucket is not None:
        yield options.bucket, options.endpoint_url
        return
    LOGGER.info("starting an S3 server in %s", path / "server")
    with SeaweedServer.start(path / "server", log=path / "server.log") as server, _credentials(server):
        server.make_bucket(DEMO_BUCKET)
        yield f"s3://{DEMO_BUCKET}/run", server.endpoint_url


@contextmanager
def _credentials(server: SeaweedServer) -> Iterator[None]:
    """The embedded server's keys for this process only, through the standard chain; nothing is written down."""
    ours = {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_REGION": server.region,
    }
    hidden = ("AWS_PROFILE", "AWS_SESSION_TOKEN")
    before = {name: os.environ.get(name) for name in (*ours, *hidden)}
    os.environ.update(ours)
    for name in hidden:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _overrides(endpoint_url: str | None) -> OptionOverrides:
    overrides = OptionOverrides(reclaim="eager", settle_s=_SETTLE_S, seal_age_s=3.0, pack_target_bytes=8 << 20)
    if endpoint_url is not None:
        overrides["endpoint_url"] = endpoint_url
        overrides["addressing_style"] = "path"
    return overrides


def _request(
    options: DemoOptions, prompts: Path, *, model: Path, url: str, overrides: OptionOverrides
) -> ExtractRequest:
    return ExtractRequest(
        input=prompts,
        model=str(model),
        layers=LAYERS,
        bucket=url,
        local=prompts.parent / "spool",
        options=overrides,
        limits=RunnerLimits(batch_tokens=1024),
        is_progress_shown=True,
        handles_signals=options.handles_signals,
    )


def _drain(url: str, local: Path, *, overrides: OptionOverrides) -> StoreStatus:
    """Wait until every local pack was proven once more and reclaimed."""
    with open_store(url, local=local, **overrides) as store:
        try:
            store.drain(timeout_s=_DRAIN_TIMEOUT_S)
        except (DurastoreError, TimeoutError) as exc:
            LOGGER.error("draining: %s", exc)
        return store.status()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What reading everything back gave."""

    samples: int
    size_bytes: int
    elapsed_s: float
    findings: tuple[str, ...]


def _read_all(dataset: Dataset) -> _Reading:
    begun = SYSTEM_CLOCK.monotonic()
    findings: list[str] = []
    count = size_bytes = 0
    for sample_id in dataset.ids:
        try:
            sample = dataset[sample_id]
        except DurastoreError as exc:
            findings.append(f"{sample_id}: {exc}")
            continue
        count += 1
        size_bytes += sum(tensor.nbytes for tensor in sample.tensors.values())
    elapsed_s = SYSTEM_CLOCK.monotonic() - begun
    return _Reading(samples=count, size_bytes=size_bytes, elapsed_s=elapsed_s, findings=tuple(findings))


def _examine(dataset: Dataset, extract: ExtractReport, *, status: StoreStatus | None, facts: _Facts) -> DemoReport:
    """Read all back, compare some, and put what is not as it should be into `findings`."""
    reading = _read_all(dataset)
    findings = list(reading.findings)
    expected = extract.counts.inputs - extract.counts.failed
    if reading.samples < expected:
        findings.append(f"{reading.samples} of {expected} samples could be read back")
    is_whole = extract.signal is None
    comparisons = compare(dataset, model=facts.model, layers=LAYERS, count=_COMPARED) if is_whole else ()
    findings += [
        f"{one.sample_id}: states differ from a fresh forward pass"
        for one in comparisons
        if not one.is_equal_within_tolerance
    ]
    if status is not None and status.local_bytes:
        why = ", ".join(status.failures) or "not settled yet"
        findings.append(f"{status.local_bytes} bytes are still local: {why}")
    objects = {row.object.key: row.object.size_bytes for row in map(dataset.row, range(len(dataset)))}
    return DemoReport(
        extract=extract,
        bucket=facts.url,
        folder=str(facts.path),
        samples_read=reading.samples,
        samples_expected=expected,
        bytes_read=reading.size_bytes,
        object_bytes=sum(objects.values()),
        read_s=reading.elapsed_s,
        total_s=SYSTEM_CLOCK.monotonic() - facts.start,
        drain_s=facts.drain_s,
        local_bytes=status.local_bytes if status is not None else None,
        quarantined_bytes=status.quarantined_bytes if status is not None else 0,
        comparisons=comparisons,
        findings=tuple(findings),
        snapshot=dataset.snapshot_id,
    )
