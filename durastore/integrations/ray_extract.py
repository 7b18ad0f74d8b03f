"""`durastore extract --ray`: the workers of a shared extraction on the machines of a Ray cluster.

Duty: make the request one that means the same on every machine, connect, and let the job run. Must never send a
credential: each machine has its own.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import durastore
from durastore.config import resolve_options
from durastore.errors import ConfigError
from durastore.extract.cluster_crew import ClusterCrew
from durastore.extract.crew_job import run_shared_extract
from durastore.extract.engine_choice import engine_factory
from durastore.extract.job import EngineFactory, ExtractRequest, transformers_engine
from durastore.extract.report import ExtractReport
from durastore.integrations.ray_cluster import Needs, connected
from durastore.objectstore.location import BucketUrl
from durastore.store.opening import OptionOverrides

__all__ = ["RaySettings", "extract_on_ray"]

_FILES_A_WORKER = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Where, and what each worker gets."""

    address: str
    """`local`, `auto`, or host:port of a cluster that this machine is part of."""
    num_gpus: float | None = None
    """By default one, where the cluster has any and the engine can use it."""
    num_cpus: float = 1.0


def extract_on_ray(
    request: ExtractRequest, settings: RaySettings, *, engine: EngineFactory | None = None
) -> ExtractReport:
    """As `run_shared_extract`, with `request.workers` actors; by default one for each that the cluster has room for."""
    wanted = _everywhere_the_same(request)
    needs = Needs(
        workers=request.workers,
        num_gpus=settings.num_gpus,
        num_cpus=settings.num_cpus,
        wants_gpu=request.engine == "transformers" and request.settings.device != "cpu",
    )
    with connected(settings.address, needs) as cluster:
        _allow_files(cluster.workers)
        factory = engine or engine_factory(request.engine, server=request.server, workers=cluster.workers)
        return run_shared_extract(
            replace(wanted, workers=cluster.workers),
            engine_factory=factory or transformers_engine,
            crew=ClusterCrew(cluster, version=durastore.__version__),
        )


def _everywhere_the_same(request: ExtractRequest) -> ExtractRequest:
    """Paths without this process's folder, and options without its environment and files: machines have others."""
    place = BucketUrl.parse(request.bucket)
    if place.kind == "memory":
        raise ConfigError("a bucket in the memory of one process cannot be shared", hint="use s3://bucket/prefix")
    device = request.settings.device or "cuda"
    if ":" in device and not device.endswith(":0"):
        raise ConfigError(
            f"device {device} names a GPU of one machine", hint="leave --device out: Ray gives each worker its own"
        )
    model = Path(request.model)
    options = asdict(resolve_options(dict(request.options)))
    server = request.server
    staging = server.staging.absolute() if server.staging is not None else None
    return replace(
        request,
        bucket=place.render(),
        local=request.local.absolute(),
        model=str(model.absolute()) if model.exists() else request.model,
        options=cast(OptionOverrides, options),
        server=replace(server, staging=staging),
    )


def _allow_files(workers: int) -> None:
    """Each worker's seat has the queue and the records open once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = soft + workers * _FILES_A_WORKER
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(hard, wanted), hard))
