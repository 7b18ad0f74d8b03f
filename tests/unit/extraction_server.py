"""A small HTTP server that speaks vLLM's and SGLang's protocol for hidden states, and can be told to lie.

Duty: for each prompt the states that follow from its token ids, as `[T, L, H]` in a file (vLLM) or in JSON (SGLang).
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save

__all__ = ["HIDDEN", "LAYERS", "LabServer", "states_of"]

LAYERS, HIDDEN = 3, 8


def states_of(ids: list[int]) -> Any:
    """[T, L, H] float32."""
    at = np.arange(len(ids) * LAYERS * HIDDEN, dtype=np.float32).reshape(len(ids), LAYERS, HIDDEN)
    return at / 64 + np.array(ids, dtype=np.float32)[:, None, None]


class LabServer:
    """`lie` is one of the words below; the second ask of a prompt is what a cache would answer."""

    def __init__(self, kind: str, staging: Path, *, lie: str = "", settings: dict[str, Any] | None = None) -> None:
        self.kind = kind
        self.staging = staging
        self.lie = lie
        self.settings = {"disable_radix_cache": True, "chunked_prefill_size": -1, **(settings or {})}
        self.is_newer = False
        """Whether it answers at the paths of newer SGLang servers, which wrap their flags."""
        self.asked: list[list[int]] = []
        self.request: str | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False  # it is closed once the last request and its writer have ended
        self._writers: list[threading.Thread] = []
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator[LabServer]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
            for writer in self._writers:
                writer.join()

    def get(self, path: str) -> tuple[int, Any]:
        if path == "/health":
            return (503 if self.lie == "sick" else 200), None
        if self.kind == "vllm" and path == "/v1/models":
            return 200, {"data": [{"id": "lab-model"}]}
        if self.kind == "sglang" and path == ("/model_info" if self.is_newer else "/get_model_info"):
            return 200, {"model_path": "lab-model"}
        if self.kind == "sglang" and path == ("/server_info" if self.is_newer else "/get_server_info"):
            return 200, {"server_args": self.settings} if self.is_newer else self.settings
        return 404, None

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self.lie == "error":
            return 500, {"error": "out of memory"}
        if self.kind == "vllm" and path == "/v1/completions":
            assert (body["model"], body["max_tokens"], body["return_token_ids"]) == ("lab-model", 1, True)
            return 200, self._complete(body["prompt"])
        if self.kind == "sglang" and path == "/generate":
            assert (body["return_hidden_states"], body["sampling_params"]["max_new_tokens"]) == (True, 1)
            return 200, self._generate(body["input_ids"])
        return 404, None

    def _states(self, ids: list[int]) -> Any:
        is_seen = ids in self.asked
        self.asked.append(ids)
        states = states_of(ids)
        match self.lie:
            case "short":
                states = states[len(states) // 2 :]
            case "cached" if is_seen:
                states = states[-1:]
            case "nan":
                states[-1, 1, 2] = np.nan
            case "zero":
                states[:, 0] = 0
            case "layers":
                states = states[:, :2]
            case _:
                pass
        return states

    def _complete(self, ids: list[int]) -> dict[str, Any]:
        states = self._states(ids)
        name = f"cmpl-{self.request or len(self.asked)}-0-0000000a.safetensors"
        kept = [ids[0], *ids[1:]] if self.lie != "tokens" else [ids[0] + 1, *ids[1:]]
        tensors = {"token_ids": np.array(kept, np.int64), "hidden_states": states.astype(ml_dtypes.bfloat16)}
        lock = os.open(self.staging / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # before the answer; the file comes after it
        writer = threading.Thread(target=self._write, args=(name, save(tensors), lock))
        self._writers.append(writer)
        writer.start()
        if self.lie == "no states":
            return {"choices": [{"text": "x", "prompt_token_ids": ids}]}
        where = {"hidden_states_path": str(self.staging / name)}
        if self.lie == "elsewhere":
            where = {"hidden_states_path": "/etc/hostname"}
        return {"choices": [{"text": "x", "prompt_token_ids": kept}], "kv_transfer_params": where}

    def _write(self, name: str, data: bytes, lock: int) -> None:
        try:
            if self.lie == "full":
                return  # a write that fails lets the lock go and tells nobody
            with (self.staging / name).open("xb") as file:
                file.write(data[: len(data) // 2])
                file.flush()
                file.write(data[len(data) // 2 :] if self.lie != "torn" else b"")
        finally:
            os.close(lock)

    def _generate(self, ids: list[int]) -> dict[str, Any]:
        states = self._states(ids)
        block = states.reshape(len(states), -1).tolist()
        meta: dict[str, Any] = {"prompt_tokens": len(ids), "hidden_states": [block, block[-1]]}
        if self.lie == "no states":
            meta.pop("hidden_states")
        if self.lie == "last":
            meta["hidden_states"] = [block[-1]]
        return {"text": "x", "meta_info": meta}


def _handler(lab: LabServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*lab.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            lab.request = self.headers.get("X-Request-Id")
            self._answer(*lab.post(self.path, body))

        def _answer(self, status: int, told: Any) -> None:
            data = json.dumps(told).encode() if told is not None else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
