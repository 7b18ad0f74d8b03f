"""A server that behaves as vLLM's `extract_hidden_states` does, with the ways in which that goes wrong.

As vLLM: one file for each request, `cmpl-<X-Request-Id>-0-<8 hex>.safetensors`, whose `.lock` is held from the
first scheduling on; the answer comes before the write; the write goes straight to the final name, and one that fails
only lets go of the lock; a request whose client hangs up is saved all the same, with all token ids and states that are
not its own (here: `poisoned`); nothing is ever taken away.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = [
    "JsonHandler",
    "Plan",
    "SglangServer",
    "States",
    "VllmServer",
    "file_bytes",
    "random_states",
    "serving",
]

Array = npt.NDArray[Any]
States = Callable[[Sequence[int]], Array]
_LATE_S = 0.4
_CHUNK_BYTES = 1 << 20


def poisoned(states: Array) -> Array:
    """States that look like any others, and must never be stored."""
    return -states


@dataclass(slots=True)
class Plan:
    """What goes wrong with the requests for some token ids: each request takes the next fault of its list."""

    faults: dict[tuple[int, ...], list[str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, ids: Sequence[int], *faults: str) -> None:
        self.faults[tuple(ids)] = list(faults)

    def take(self, ids: Sequence[int]) -> str:
        with self.lock:
            left = self.faults.get(tuple(ids))
            return left.pop(0) if left else ""


def file_bytes(tensors: Mapping[str, Array]) -> bytes:
    """A safetensors file as vLLM's own: token_ids first, no metadata."""
    names = {"int64": "I64", "bfloat16": "BF16", "float32": "F32"}
    header: dict[str, Any] = {}
    at = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": names[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values())


class JsonHandler(BaseHTTPRequestHandler):
    """Answers with JSON; silent."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def answer(self, value: Any, *, status: int = 200) -> None:
        data = b"" if value is None else json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True

    def waits_for_hang_up(self, limit_s: float = 30.0) -> None:
        """Until the client has cut the connection."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if select.select([self.connection], [], [], 0.05)[0]:
                try:
                    if not self.connection.recv(1, socket.MSG_PEEK):
                        return
                except OSError:
                    return


@contextmanager
def serving(handler: type[JsonHandler]) -> Iterator[str]:
    """The address of a server on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Requests:
    """Those under way. Each has a thread that nobody joins, and that may be about to start a writer: a server that ends
    waits for them before it waits for its writers.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._is_over = False

    def begin(self) -> None:
        self._is_over = False

    @contextmanager
    def one_more(self, handler: JsonHandler) -> Iterator[bool]:
        """False: the server has ended, and the request came too late."""
        with self._changed:
            is_served = not self._is_over
            self._under_way += is_served
        handler.close_connection |= not is_served
        try:
            yield is_served
        finally:
            with self._changed:
                self._under_way -= is_served
                self._changed.notify_all()

    def end(self) -> None:
        """Returns once none is under way; none begins after that."""
        with self._changed:
            self._is_over = True
            self._changed.wait_for(lambda: self._under_way == 0)


class VllmServer:
    """Files go to `folder`. `states` gives [T, L, H] for token ids."""

    def __init__(self, folder: Path, states: States) -> None:
        self.folder = folder
        self.plan = Plan()
        self.asked: list[tuple[int, ...]] = []
        self.errors: list[OSError] = []
        """Of writes: what a real server only logs."""
        self.peak_bytes = 0
        self.is_sick = False
        self.after_write: Callable[[], object] = lambda: None
        self._states = states
        self._writers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._requests = _Requests()

    @contextmanager
    def running(self) -> Iterator[str]:
        owner = self

        class Handler(JsonHandler):
            def do_GET(self) -> None:
                if self.path == "/health":
                    self.answer(None, status=500 if owner.is_sick else 200)
                else:
                    self.answer({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

            def do_POST(self) -> None:
                body = self.body()
                with owner._requests.one_more(self) as is_served:
                    if is_served:
                        owner.complete(self, body)

        self._requests.begin()
        with serving(Handler) as url:
            yield url
        self._requests.end()
        for writer in self._writers:
            writer.join()

    def complete(self, handler: JsonHandler, body: dict[str, Any]) -> None:
        ids = body["prompt"]
        assert (body["max_tokens"], body["return_token_ids"], body["model"]) == (1, True, "tiny")
        self.asked.append(tuple(ids))
        fault = self.plan.take(ids)
        if fault == "refused":
            handler.answer({"error": {"message": "too long"}}, status=400)
            return
        name = f"cmpl-{handler.headers.get('X-Request-Id') or uuid.uuid4().hex}-0-{uuid.uuid4().hex[:8]}.safetensors"
        path = self.folder / name
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if fault == "slow":
            handler.waits_for_hang_up()
        writer = threading.Thread(target=self._write, args=(path, ids, lock), kwargs={"fault": fault})
        self._writers.append(writer)
        writer.start()
        if fault == "error":
            handler.answer({"error": {"message": "internal"}}, status=500)
        elif fault == "slow":
            handler.close_connection = True
        else:
            said = [*ids[:-1], (ids[-1] + 1) % 60] if fault == "other answer" else ids
            shown = self.folder.parent / path.name if fault == "elsewhere" else path
            if fault == "stale":
                shown = self.folder / "old.safetensors"
            choice = {"index": 0, "text": "", "prompt_token_ids": said, "finish_reason": "length"}
            handler.answer({"choices": [choice], "kv_transfer_params": {"hidden_states_path": str(shown)}})

    def _write(self, path: Path, ids: Sequence[int], lock: int, *, fault: str) -> None:
        try:
            if fault == "late":
                time.sleep(_LATE_S)
            if fault == "failed":
                return
            data = self.bytes_of(ids, fault=fault)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                view = memoryview(data)[: len(data) // 2 if fault == "partial" else None]
                while view:
                    view = view[os.write(fd, view[:_CHUNK_BYTES]) :]
            finally:
                os.close(fd)
        except OSError as exc:
            self.errors.append(exc)
        finally:
            with self._lock:
                stat = os.statvfs(self.folder)
                self.peak_bytes = max(self.peak_bytes, (stat.f_blocks - stat.f_bfree) * stat.f_frsize)
                self.after_write()
            os.close(lock)

    def bytes_of(self, ids: Sequence[int], *, fault: str = "") -> bytes:
        """The file of one request."""
        states = self._states(ids)
        tokens = np.array(ids, dtype=np.int64)
        if fault in ("slow", "error", "other answer", "other ids", "stale", "poison"):
            states = poisoned(states)
        if fault == "nan":
            states = states.copy()
            states[-1, 0, 0] = np.nan
        if fault == "other ids":
            tokens = tokens[::-1].copy() if len(set(ids)) > 1 else tokens + 1
        if fault == "short":
            tokens, states = tokens[2:], states[2:]
        return file_bytes({"token_ids": tokens, "hidden_states": states})


def random_states(shape: tuple[int, int]) -> States:
    """States [T, L, H] made up from the token ids alone."""

    def states(ids: Sequence[int]) -> Array:
        rng = np.random.default_rng(list(ids))
        return rng.standard_normal((len(ids), *shape), dtype=np.float32).astype(ml_dtypes.bfloat16)

    return states


class SglangServer:
    """SGLang's `/generate`, with states in the answer, or dumped into `folder` as a patched server does.

    Entries are files or folders, named by the request's id or by a counter that begins anew with each start. As with
    any dump: it may come late, in part or not at all, and a request whose client hangs up is dumped all the same.
    """

    def __init__(self, states: States, *, folder: Path | None = None, is_entry_a_folder: bool = False) -> None:
        self.plan = Plan()
        self.asked: list[tuple[int, ...]] = []
        self.flags: dict[str, Any] = {
            "enable_return_hidden_states": True,
            "enable_return_aux_hidden_states": True,
            "return_aux_hidden_state_layer_ids": [0, 2],
            "speculative_algorithm": "DFLASH",
            "disable_radix_cache": True,
            "chunked_prefill_size": -1,
        }
        self.order: list[int] | None = None
        """Of the slots in the answer; by default as `states` gives them."""
        self.is_counting = False
        self.is_sick = False
        self.info_path = "/get_server_info"
        self._states = states
        self._folder = folder
        self.is_entry_a_folder = is_entry_a_folder
        self._number = 0
        self._lock = threading.Lock()
        self._writers: list[threading.Thread] = []
        self._requests = _Requests()

    @contextmanager
    def running(self) -> Iterator[str]:
        owner = self

        class Handler(JsonHandler):
            def do_GET(self) -> None:
                if self.path == "/health":
                    self.answer(None, status=503 if owner.is_sick else 200)
                elif self.path == owner.info_path:
                    self.answer(owner.flags)
                else:
                    self.answer({"error": "no such path"}, status=404)

            def do_POST(self) -> None:
                body = self.body()
                with owner._requests.one_more(self) as is_served:
                    if is_served:
                        owner.generate(self, body)

        self._requests.begin()
        with serving(Handler) as url:
            yield url
        self._requests.end()
        for writer in self._writers:
            writer.join()

    def generate(self, handler: JsonHandler, body: dict[str, Any]) -> None:
        ids, rid = body["input_ids"], body["rid"]
        assert body["extra_key"] == rid  # or the radix cache leaves rows out
        self.asked.append(tuple(ids))
        fault = self.plan.take(ids)
        with self._lock:
            self._number += 1
            name = str(self._number) if self.is_counting else rid
        if fault == "refused":
            handler.answer({"error": {"message": "too long"}}, status=400)
            return
        if fault == "slow":
            handler.waits_for_hang_up()
        facts: dict[str, Any] = {"id": name, "prompt_tokens": len(ids)}
        if self._folder is not None:
            writer = threading.Thread(target=self.dump, args=(name, ids), kwargs={"fault": fault})
            self._writers.append(writer)
            writer.start()
            if fault != "late":
                writer.join()
        if body["return_hidden_states"]:
            facts["hidden_states"] = [self._as_json(ids, fault), [0.0]]
        if fault == "error":
            handler.answer({"error": {"message": "internal"}}, status=500)
        elif fault == "slow":
            handler.close_connection = True
        else:
            handler.answer({"text": "", "meta_info": facts})

    def _as_json(self, ids: Sequence[int], fault: str) -> list[list[float]]:
        states = self._states(ids)
        if self.order is not None:
            states = states[:, self.order]
        numbers = states.astype(np.float32).reshape(len(ids), -1)
        if fault == "short":  # the last chunk only
            numbers = numbers[len(ids) // 2 :]
        if fault == "other dtype":
            numbers = numbers + np.float32(2**-20)
        if fault == "nan":
            numbers[0, 0] = np.nan
        rows: list[list[float]] = numbers.tolist()
        return rows

    def dump(self, name: str, ids: Sequence[int], *, fault: str = "") -> None:
        """The entry of one request."""
        assert self._folder is not None
        if fault == "late":
            time.sleep(_LATE_S)
        if fault == "never":
            return
        states, tokens = self._states(ids), np.array(ids, dtype=np.int64)
        if fault in ("slow", "error", "other ids", "poison"):
            states = poisoned(states)
        if fault == "other ids":
            tokens = tokens + 1
        if fault == "short":
            tokens, states = tokens[1:], states[1:]
        parts: dict[str, dict[str, Array]] = {
            "ids": {} if fault == "no ids" else {"input_ids": tokens},
            "hidden": {"hidden_states": states},
        }
        if self.is_entry_a_folder:
            entry = self._folder / f"req_{name}"
            entry.mkdir(exist_ok=True)
            files = {entry / f"{part}.safetensors": tensors for part, tensors in parts.items() if tensors}
        else:
            files = {self._folder / f"req_{name}.safetensors": {**parts["ids"], **parts["hidden"]}}
        for path, tensors in files.items():
            data = file_bytes(tensors)
            path.write_bytes(data[: len(data) // 2] if fault == "partial" else data)
