"""One sample asked of an extraction server over HTTP, as vLLM and SGLang answer it.

Duty: tell which server it is, ask, and hand out what came back: token ids, states, and the file that it left. Sends no
credential. Must never follow a path that the server names out of the staging folder, and never judge the states.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from durastore.adopt.foreign_formats.containers import parse_foreign
from durastore.adopt.foreign_formats.contents import Unparsed
from durastore.clock import Clock
from durastore.errors import ConfigError, EndpointUnreachable, EngineFailed, SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.lock import FlockedFile

__all__ = ["Answer", "ExtractionServer", "identify_server"]

_CONNECT_S = 10.0
_ANSWER_S = 300.0
"""A server that compiles or loads at its first request takes its time."""
_WRITTEN_S = 10.0
_POLL_S = 0.1
_ANSWER_BYTES = 1 << 30
_FILE_BYTES = 8 << 30

Ids = npt.NDArray[np.int64]
States = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server gave for one sample."""

    token_ids: tuple[int, ...]
    """That it says it saw."""
    states: States
    """[T, L, H], or [T, L·H] where the server does not tell layers apart."""
    file: Path | None = None
    """What it wrote into its staging folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionServer:
    """A server that answered, and what it is."""

    url: str
    kind: str
    """`vllm` or `sglang`."""
    model: str
    settings: Mapping[str, Any]
    """What it tells of how it was started, where it does."""

    def ask(self, ids: Ids, *, staging: Path | None, clock: Clock, request: str | None = None) -> Answer:
        """The states of this prompt, asked under the id `request`. `EndpointUnreachable` where nothing comes,
        `EngineFailed` for an answer that is none. Each call is one forward pass; safe to repeat.
        """
        if self.kind == "sglang":
            return _ask_sglang(self.url, ids)
        return _ask_vllm(self, ids, staging=staging, clock=clock, request=request)


def identify_server(url: str) -> ExtractionServer:
    """Look whether it is up, and which kind it is. `EndpointUnreachable`, `EngineFailed` where it is neither kind."""
    base = url.rstrip("/").removesuffix("/v1")
    status, _ = _call(base, "/health")
    if status != 200:
        raise EngineFailed(f"the server at {base} is up and not healthy: /health answers {status}")
    status, told = _call(base, "/get_model_info")
    if status == 200 and isinstance(told, dict) and "model_path" in told:
        status, settings = _call(base, "/get_server_info")
        known = settings if status == 200 and isinstance(settings, dict) else {}
        return ExtractionServer(url=base, kind="sglang", model=str(told["model_path"]), settings=known)
    status, told = _call(base, "/v1/models")
    models = told.get("data") if status == 200 and isinstance(told, dict) else None
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        raise EngineFailed(f"the server at {base} is neither vLLM nor SGLang: it names no model")
    return ExtractionServer(url=base, kind="vllm", model=str(models[0].get("id")), settings={})


def _call(
    base: str, path: str, *, body: Mapping[str, Any] | None = None, request: str | None = None
) -> tuple[int, Any]:
    """Status and JSON (None for none) of a GET, with a body of a POST. `ConfigError`, `EndpointUnreachable`."""
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise ConfigError("--server is no http(s)://host[:port] without credentials")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=_CONNECT_S)
    try:
        with closing(connection):
            connection.connect()
            connection.sock.settimeout(_ANSWER_S)
            data = json.dumps(body).encode() if body is not None else None
            headers = {"Content-Type": "application/json"} if data is not None else {}
            headers |= {"X-Request-Id": request} if request is not None else {}
            connection.request("GET" if data is None else "POST", parts.path + path, body=data, headers=headers)
            answer = connection.getresponse()
            text = answer.read(_ANSWER_BYTES + 1)
            status = answer.status
    except (OSError, http.client.HTTPException) as exc:
        raise EndpointUnreachable(
            f"the extraction server at {base} does not answer: {str(exc) or type(exc).__name__}",
            hint="start it, or leave --server out",
        ) from exc
    if len(text) > _ANSWER_BYTES:
        raise EngineFailed(f"the server's answer to {path} is longer than {_ANSWER_BYTES} bytes")
    try:
        return status, json.loads(text)
    except ValueError:
        return status, None


def _asked(base: str, path: str, *, body: Mapping[str, Any], request: str | None = None) -> dict[str, Any]:
    status, told = _call(base, path, body=body, request=request)
    if status != 200 or not isinstance(told, dict):
        raise EngineFailed(f"{path} answers {status} to one sample of {base}'s own length: {str(told)[:200]}")
    return told


# --- vLLM ------------------------------------------------------------------------------------------------------------


def _ask_vllm(server: ExtractionServer, ids: Ids, *, staging: Path | None, clock: Clock, request: str | None) -> Answer:
    body = {
        "model": server.model,
        "prompt": ids.tolist(),
        "max_tokens": 1,
        "temperature": 0,
        "return_token_ids": True,
    }
    told = _asked(server.url, "/v1/completions", body=body, request=request)
    try:
        seen = tuple(int(i) for i in told["choices"][0]["prompt_token_ids"])
        file = Path(str(told["kv_transfer_params"]["hidden_states_path"]))
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise EngineFailed(
            "the server completes text, and writes no hidden states",
            hint="it was not started with the extract_hidden_states connector",
        ) from exc
    if staging is not None and file.resolve().parent != staging.resolve():
        raise EngineFailed(f"the server writes to {file.parent}, and --staging is {staging}")
    token_ids, states = _read_written(file, clock=clock)
    if token_ids != seen:
        raise EngineFailed("the file's token ids are not those of the server's answer")
    return Answer(token_ids=seen, states=states, file=file)


def _read_written(file: Path, *, clock: Clock) -> tuple[tuple[int, ...], States]:
    """The file once its writer has let its lock go: the answer comes before the file is whole."""
    deadline = clock.monotonic() + _WRITTEN_S
    try:
        with Folder.open(file.parent) as folder:
            while not _is_written(folder, file.name):
                if clock.monotonic() > deadline:
                    raise EngineFailed(f"{file} is not written {_WRITTEN_S:.0f} s after the answer that names it")
                clock.sleep(_POLL_S)
            data = folder.read_bytes(file.name, limit_bytes=_FILE_BYTES)
        arrays = parse_foreign(data, path=file.name).arrays
        return tuple(arrays["token_ids"].tolist()), arrays["hidden_states"]
    except (OSError, SpoolUnreadable, Unparsed) as exc:
        raise EngineFailed(f"the server answers, and {file} cannot be read: {exc}") from exc
    except KeyError as exc:
        raise EngineFailed(f"{file} has no tensor {exc}") from exc


def _is_written(folder: Folder, name: str) -> bool:
    try:
        lock = FlockedFile.try_lock_existing(folder, f"{name}.lock", is_shared=True)
    except FileNotFoundError:
        return folder.has(name)  # a server without locks, or one whose lock was taken away with an earlier file
    if lock is None:
        return False
    lock.close()
    return folder.has(name)


# --- SGLang ----------------------------------------------------------------------------------------------------------


def _ask_sglang(base: str, ids: Ids) -> Answer:
    body = {
        "input_ids": ids.tolist(),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_hidden_states": True,
    }
    told = _asked(base, "/generate", body=body)
    try:
        block = told["meta_info"]["hidden_states"][0]
        states = np.array(block, dtype=np.float32)
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise EngineFailed(
            "the server generates text, and returns no hidden states",
            hint="start it with --enable-return-hidden-states",
        ) from exc
    if states.ndim == 1:  # "last" mode: one vector
        states = states[None]
    count = told["meta_info"].get("prompt_tokens")
    is_told = isinstance(count, int) and count != len(ids)
    return Answer(token_ids=tuple(ids.tolist()[:count]) if is_told else tuple(ids.tolist()), states=states)
