"""`extract`, whichever way it is to be done.

Duty: one process by itself, or a crew; the launcher's part of the input and its GPU. Must never decide what is done.
"""

from __future__ import annotations

import os
from dataclasses import replace

from durastore.config import resolve_options
from durastore.errors import ConfigError
from durastore.extract.crew_job import run_shared_extract
from durastore.extract.engine_choice import engine_factory
from durastore.extract.job import ExtractRequest, run_extract, transformers_engine
from durastore.extract.preflight import Budget
from durastore.extract.preflight_look import look_ahead
from durastore.extract.report import ExtractReport
from durastore.extract.shards import parse_shard, shard_of_environment
from durastore.objectstore.location import BucketUrl

__all__ = ["extract", "refuse_hopeless", "with_shard"]

_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")


def extract(request: ExtractRequest) -> ExtractReport:
    """Extract every input that is not done, with the engine that was asked for. Raises and reports as `run_extract`."""
    factory = engine_factory(request.engine, server=request.server, workers=request.workers) or transformers_engine
    if request.workers is None:
        return run_extract(request, engine_factory=factory)
    return run_shared_extract(request, engine_factory=factory)


def refuse_hopeless(request: ExtractRequest, budget: Budget) -> None:
    """`ConfigError` where the work cannot be done in time, or its bytes cannot fit; before anything is written.

    Reads the whole input once more, so only where something speaks for it: a deadline, or a place that only fills up.
    """
    options = resolve_options(dict(request.options))
    only_fills = options.reclaim == "never" or BucketUrl.parse(request.bucket).kind == "file"
    if budget.deadline_s is None and not only_fills:
        return
    found = look_ahead(request, budget)
    if found.refusals:
        raise ConfigError("; ".join(found.refusals), hint="`durastore extract --preflight` shows the whole estimate")


def with_shard(request: ExtractRequest, text: str | None) -> ExtractRequest:
    """The request for the part of the input that `text` names, else for the launcher's, with the launcher's GPU."""
    if text is not None:
        return replace(request, shard=parse_shard(text))
    shard = shard_of_environment(os.environ)
    rank = next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name, "").isdecimal()), None)
    if shard.count == 1 or rank is None or request.workers is not None:
        return replace(request, shard=shard)
    return replace(request, shard=shard, settings=replace(request.settings, slot=int(rank)))
