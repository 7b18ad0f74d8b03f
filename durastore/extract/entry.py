"""`extract`, whichever way it is to be done.

Duty: one process by itself, or a crew; the launcher's part of the input and its GPU. Must never decide what is done.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from durastore.extract.crew_job import run_shared_extract
from durastore.extract.job import ExtractRequest, run_extract
from durastore.extract.report import ExtractReport
from durastore.extract.shards import parse_shard, shard_of_environment
from durastore.extract.worker import settings_of_slot

__all__ = ["extract", "with_shard"]

_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")


def extract(request: ExtractRequest) -> ExtractReport:
    """Extract every input that is not done. Raises and reports as `run_extract`."""
    return run_extract(request) if request.workers is None else run_shared_extract(request)


def with_shard(request: ExtractRequest, text: str | None, *, environ: Mapping[str, str] = os.environ) -> ExtractRequest:
    """The request for the part of the input that `text` names, else for the launcher's, with the launcher's GPU."""
    if text is not None:
        return replace(request, shard=parse_shard(text))
    shard = shard_of_environment(environ)
    rank = next((environ[name] for name in _LOCAL_RANKS if environ.get(name, "").isdecimal()), None)
    if shard.count == 1 or rank is None or request.workers is not None:
        return replace(request, shard=shard)
    return replace(request, shard=shard, settings=settings_of_slot(request.settings, slot=int(rank), workers=1))
