"""The facts of a preflight: the tokens of what is not done, the disk, the bucket.

Duty: read the whole input as the model will see it, and the manifest. Must never write, make a spool, or load weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from durastore.config import StoreOptions
from durastore.errors import ConfigError
from durastore.extract.held import fetch_held, plain_options
from durastore.extract.inputs import read_selected, survey_input
from durastore.extract.job import ExtractRequest, RunPlan, plan_run
from durastore.extract.preflight import Budget, Limits, Preflight, SampleShape, Workload, plan_preflight
from durastore.extract.rows import RawRow, RowFailure, TokenRow
from durastore.extract.tokens import tokenise
from durastore.fsio.space import disk_bytes, free_bytes
from durastore.manifest.index import IdIndex
from durastore.model import Run
from durastore.objectstore.location import BucketUrl
from durastore.upload.job import UploadLimits

__all__ = ["look_ahead"]

_SHOWN = 10
_VALUE_BYTES = {"float32": 4}


def look_ahead(request: ExtractRequest, budget: Budget) -> Preflight:
    """Estimate what the request would take now. Raises as `run_extract` for a wrong request, bucket or run."""
    if budget.deadline_s is not None and not budget.tokens_per_s:
        raise ConfigError("a deadline needs a rate", hint="give --tokens-per-s, as an earlier run's progress told it")
    options = plain_options(request.options)
    plan = plan_run(request)
    held = fetch_held(request.bucket, request.options, run=Run.of(plan.run))
    work = _work_of(_left(request, plan, held=held))
    shape = SampleShape(
        layers=len(plan.layers.indices),
        hidden_size=int(plan.run["model"]["hidden_size"]),
        value_bytes=_VALUE_BYTES.get(request.settings.dtype, 2),
    )
    return plan_preflight(work, shape, limits=_limits(request, options), budget=budget)


def _work_of(rows: Iterable[TokenRow | RowFailure]) -> Workload:
    lengths: list[int] = []
    unusable, first = 0, list[RowFailure]()
    for row in rows:
        if isinstance(row, TokenRow):
            lengths.append(len(row.input_ids))
            continue
        unusable += 1
        if len(first) < _SHOWN:
            first.append(row)
    return Workload(
        samples=len(lengths),
        tokens=sum(lengths),
        longest_tokens=max(lengths, default=0),
        unusable=unusable,
        first_unusable=tuple(first),
    )


def _left(request: ExtractRequest, plan: RunPlan, *, held: IdIndex | None) -> Iterator[TokenRow | RowFailure]:
    """What is not done, and what can never be."""
    for raw in read_selected(survey_input(request.input, limit=request.limit, shard=request.shard)):
        row = tokenise(raw, plan.tokenizer, rule=plan.rule) if isinstance(raw, RawRow) else raw
        if isinstance(row, RowFailure) or held is None or not held.contains(row.sample_id, row.input_digest):
            yield row


def _limits(request: ExtractRequest, options: StoreOptions) -> Limits:
    place = BucketUrl.parse(request.bucket)
    spool, bucket = _existing(request.local), _existing(Path(place.bucket)) if place.kind == "file" else None
    return Limits(
        pack_bytes=options.pack_target_bytes,
        single_pack_bytes=options.single_pack_bytes,
        part_bytes=UploadLimits().part_bytes,
        high_watermark_bytes=options.high_watermark_bytes,
        disk_bytes=max(0, disk_bytes(spool) - options.reserve_bytes),
        kept_bytes=max(0, free_bytes(spool) - options.reserve_bytes) if options.reclaim == "never" else None,
        bucket_bytes=free_bytes(bucket) if bucket is not None else None,
    )


def _existing(path: Path) -> Path:
    path = Path(os.path.realpath(path))  # a link may lead to what is not there yet, on another disk
    while not path.exists():
        path = path.parent
    return path
