"""JSON over HTTP to a model server, and what its answers mean for a sample.

Duty: one request, one parsed answer, a time limit for all of it; connections that can be cut from another thread, which
a server takes as the end of a request. Must never retry, and never call an answer that did not come whole an answer.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from durastore.clock import Clock
from durastore.errors import EngineFailed
from durastore.texts import checked_address

__all__ = ["LOOK_S", "AskAgain", "JsonServer", "Unusable", "sickness_of"]

LOOK_S = 10.0
"""For answers that need no model."""

_BLOCK_BYTES = 1 << 20
_CONNECT_S = 10.0
_SHOWN_CHARACTERS = 300
_PASSING = frozenset({408, 425, 429})


class AskAgain(Exception):
    """This request came to nothing; another one may work. The message is the reason."""


class Unusable(Exception):
    """The server will not do this sample. The message is the reason."""


class JsonServer:
    """One server. Thread-safe; a connection for each request."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        """`url`: scheme, host, port and perhaps a path that all others are below. `ConfigError` if it is none."""
        self._parts = checked_address(url, name="the address of the model server")
        self.url = url.rstrip("/")
        self._clock = clock
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_hung_up = False

    def health(self) -> str | None:
        """None if the server says that it works, else the reason."""
        try:
            self.get("/health", timeout_s=LOOK_S)
        except (AskAgain, Unusable, EngineFailed) as exc:
            return f"{self.url}: {exc}"
        return None

    def get(self, path: str, *, timeout_s: float) -> Any:
        """The answer to a GET. `AskAgain`, `Unusable`, `EngineFailed` as `post`."""
        return self._ask("GET", path, timeout_s=timeout_s)

    def post(self, path: str, body: Any, *, timeout_s: float, headers: Mapping[str, str] | None = None) -> Any:
        """The answer to a POST of JSON. `AskAgain` for no whole answer in time, no connection or a server's error;
        `Unusable` for a request that it refuses; `EngineFailed` where it wants other credentials.
        """
        return self._ask("POST", path, timeout_s=timeout_s, sent=(json.dumps(body).encode(), dict(headers or {})))

    def hang_up(self) -> None:
        """Cut every connection, now and from now on: whoever waits gets `AskAgain`. Safe to repeat."""
        with self._lock:
            self._is_hung_up = True
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _ask(self, verb: str, path: str, *, timeout_s: float, sent: tuple[bytes, dict[str, str]] = (b"", {})) -> Any:
        deadline_s = self._clock.monotonic() + timeout_s
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=min(timeout_s, _CONNECT_S))
        body, headers = sent
        headers = {"Content-Type": "application/json", **headers} if body else headers
        try:
            with self._connected(connection) as wire:
                wire.settimeout(timeout_s)
                connection.request(verb, f"{self._parts.path.rstrip('/')}{path}", body or None, headers)
                response = connection.getresponse()
                data = self._whole(response, wire, deadline_s=deadline_s)
        except TimeoutError as exc:
            raise AskAgain(f"no answer in {timeout_s:g} s") from exc
        except (OSError, http.client.HTTPException) as exc:
            raise AskAgain(f"no answer: {type(exc).__name__}: {exc}") from exc
        finally:
            connection.close()
        return _parsed(response.status, data, url=f"{self.url}{path}")

    @contextmanager
    def _connected(self, connection: http.client.HTTPConnection) -> Iterator[socket.socket]:
        """The connection's socket, which `hang_up` can cut as long as the block lasts."""
        with self._lock:
            if self._is_hung_up:
                raise AskAgain("the run is ending")
        connection.connect()
        wire: socket.socket = connection.sock
        with self._lock:
            if self._is_hung_up:
                raise AskAgain("the run is ending")
            self._open.add(wire)
        try:
            yield wire
        finally:
            with self._lock:
                self._open.discard(wire)

    def _whole(self, response: http.client.HTTPResponse, wire: socket.socket, *, deadline_s: float) -> bytes:
        blocks: list[bytes] = []
        while block := response.read1(_BLOCK_BYTES):
            blocks.append(block)
            if response.isclosed():  # since Python 3.13 with the last byte, and its socket is closed, too
                break
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0:
                raise TimeoutError
            wire.settimeout(left_s)  # else a server that sends a byte now and then would be waited for for ever
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        return b"".join(blocks)


def sickness_of(servers: Iterable[JsonServer]) -> str | None:
    """Why the first of them that does not work does not; None if all work."""
    return next((said for server in servers if (said := server.health()) is not None), None)


def _parsed(status: int, data: bytes, *, url: str) -> Any:
    if status in (401, 403):
        raise EngineFailed(f"{url} wants other credentials ({status})")
    if status != 200:
        said = " ".join(data[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "replace").split())[:_SHOWN_CHARACTERS]
        reason = f"the server answered {status}: {said}" if said else f"the server answered {status}"
        raise Unusable(reason) if 400 <= status < 500 and status not in _PASSING else AskAgain(reason)
    if not data:
        return None
    try:
        return json.loads(data)
    except ValueError as exc:
        raise AskAgain(f"the answer of {url} is not JSON") from exc
