"""One sample asked of an extraction server over HTTP, as vLLM and SGLang answer it.

Duty: tell which server it is, ask, and hand out what came back: token ids, states, and the file that it left. Sends no
credential. Must never follow a path that the server names out of the staging folder, and never judge the states.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from durastore.adopt.foreign_formats.containers import parse_foreign
from durastore.adopt.foreign_formats.contents import Unparsed
from durastore.clock import Clock
from durastore.errors import EndpointUnreachable, EngineFailed, SpoolUnreadable
from durastore.extract.json_server import AskAgain, JsonServer, Unusable
from durastore.extract.sglang_client import SglangClient
from durastore.extract.vllm_engine import VllmClient
from durastore.fsio.folder import Folder
from durastore.fsio.lock import FlockedFile

__all__ = ["Answer", "ExtractionServer", "identify_server"]

_HINT = "start it, or leave --server out"
_ANSWER_S = 300.0
"""A server that compiles or loads at its first request takes its time."""
_WRITTEN_S = 10.0
_POLL_S = 0.1
_FILE_BYTES = 8 << 30

Ids = npt.NDArray[np.int64]
_T = TypeVar("_T")
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

    client: VllmClient | SglangClient
    model: str
    settings: Mapping[str, Any]
    """What it tells of how it was started, where it does."""

    @property
    def kind(self) -> str:
        return "sglang" if isinstance(self.client, SglangClient) else "vllm"

    def ask(self, ids: Ids, *, staging: Path | None, clock: Clock, request: str | None = None) -> Answer:
        """The states of this prompt, asked under the id `request`. `EndpointUnreachable` where nothing comes,
        `EngineFailed` for an answer that is none. Each call is one forward pass; safe to repeat.
        """
        if isinstance(self.client, SglangClient):
            return _ask_sglang(self.client.server, ids)
        name = request or f"doctor-{secrets.token_hex(8)}"
        with _asking(self.client.server):
            file = Path(self.client.extract(ids.tolist(), model=self.model, request=name, timeout_s=_ANSWER_S))
        return _written_answer(file, staging=staging, clock=clock)


def identify_server(url: str, *, clock: Clock) -> ExtractionServer:
    """Look whether it is up, and which kind it is. `ConfigError`, `EndpointUnreachable`; `EngineFailed` where it is
    neither kind.
    """
    vllm = VllmClient(url, clock=clock)
    sglang = SglangClient(vllm.server.url, clock=clock)
    said = vllm.server.health()
    if said is not None:
        raise EndpointUnreachable(f"the extraction server cannot be used: {said}", hint=_HINT)
    path = _told(sglang.model)
    if path is not None:
        return ExtractionServer(client=sglang, model=path, settings=_told(sglang.flags) or {})
    models = _told(vllm.models)
    if not models:
        raise EngineFailed(f"the server at {vllm.server.url} is neither vLLM nor SGLang: it names no model")
    return ExtractionServer(client=vllm, model=models[0], settings={})


def _told(question: Callable[[], _T]) -> _T | None:
    """What it answers to a question that only one of the kinds knows; None where it does not."""
    try:
        return question()
    except (AskAgain, Unusable):
        return None


@contextmanager
def _asking(server: JsonServer) -> Iterator[None]:
    """Errors of one request as the doctor tells them."""
    try:
        yield
    except AskAgain as exc:
        raise EndpointUnreachable(f"{server.url} gives nothing for one sample: {exc}", hint=_HINT) from exc
    except Unusable as exc:
        raise EngineFailed(f"{server.url} refuses one sample: {exc}") from exc


# --- vLLM ------------------------------------------------------------------------------------------------------------


def _written_answer(file: Path, *, staging: Path | None, clock: Clock) -> Answer:
    if staging is not None and file.resolve().parent != staging.resolve():
        raise EngineFailed(f"the server writes to {file.parent}, and --staging is {staging}")
    token_ids, states = _read_written(file, clock=clock)
    return Answer(token_ids=token_ids, states=states, file=file)


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


def _ask_sglang(server: JsonServer, ids: Ids) -> Answer:
    """Without the key that keeps an extraction's requests out of each other's cache: whether there is one is the
    question.
    """
    body = {
        "input_ids": ids.tolist(),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_hidden_states": True,
    }
    with _asking(server):
        told = server.post("/generate", body, timeout_s=_ANSWER_S)
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
