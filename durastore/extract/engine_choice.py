"""Which engine a command uses, by its name.

Duty: name and settings -> a factory that can be sent to worker processes. Loads nothing and asks no server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from durastore.errors import ConfigError
from durastore.extract.dump_engine import DumpEngine
from durastore.extract.engine import Engine
from durastore.extract.layers import LayerPlan
from durastore.extract.model_identity import ModelSource, identify_model
from durastore.extract.server_settings import ServerSettings
from durastore.extract.sglang_engine import SglangEngine
from durastore.extract.staged_states import served_digest, shape_of
from durastore.extract.transformers_engine import ModelSettings
from durastore.extract.vllm_engine import VllmEngine
from durastore.extract.watch_engine import WatchEngine
from durastore.extras import ensure_extra
from durastore.model import render_json

__all__ = ["ENGINES", "ServerEngines", "engine_factory"]

ENGINES = ("transformers", "vllm", "sglang", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEngines:
    """A factory of engines that ask a server."""

    name: str
    server: ServerSettings

    def __call__(self, source: ModelSource, plan: LayerPlan, *, settings: ModelSettings) -> Engine:
        identity = identify_model(source, is_remote_code_trusted=settings.is_remote_code_trusted)
        description = identity.description
        hidden_size = int(description["hidden_size"])
        if self.name == "sglang":
            return SglangEngine(
                self.server, plan, model=(str(description["architecture"]), hidden_size, settings.dtype)
            )
        shape = shape_of(plan, dtype=settings.dtype, hidden_size=hidden_size)
        served = served_digest(shape, model=render_json(description))
        if self.name == "vllm":
            return VllmEngine(self.server, shape, served=served)
        kind = WatchEngine if self.server.endpoints else DumpEngine
        return kind(self.server, shape, served=served)


def engine_factory(name: str, *, server: ServerSettings, workers: int | None) -> ServerEngines | None:
    """The factory of a server's engine, for one of so many workers; None for the engine that runs in the process.

    `ConfigError` for an unknown name, or for settings of a server where there is none.
    """
    if name not in ENGINES:
        raise ConfigError(f"engine {name!r} is unknown", hint=f"use one of {', '.join(ENGINES)}")
    if name == "transformers":
        if server.endpoints or server.staging is not None:
            raise ConfigError("the engine transformers asks no server", hint="name the server's kind with --engine")
        ensure_extra("extract", "torch", "transformers", what="running a model in this process")
        return None
    _refuse_incomplete(name, server)
    if name == "watch" and not server.endpoints and workers is not None:
        raise ConfigError("a folder without a server is watched by one process", hint="leave --workers out")
    share = max(workers or 1, 1)
    limit = server.staging_limit_bytes
    pace = replace(server.pace, concurrency=max(1, server.pace.concurrency // share))
    per_worker = replace(
        server,
        pace=pace,
        staging_limit_bytes=limit // share if limit is not None else None,
        staging_share=server.staging_share / share,
    )
    return ServerEngines(name=name, server=per_worker)


def _refuse_incomplete(name: str, server: ServerSettings) -> None:
    """The engines ask again; here nothing was made yet, and no prefix is bound to a run that cannot begin."""
    if name == "sglang" and not server.endpoints:
        raise ConfigError("an SGLang server needs --endpoint")
    if name == "vllm" and (not server.endpoints or server.staging is None):
        raise ConfigError("a server that writes files needs --endpoint and --staging")
    if name == "watch" and server.staging is None:
        raise ConfigError("a folder to watch needs --staging")
