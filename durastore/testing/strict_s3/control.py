"""The side door: how a test tells the server what to do, and looks at what is really stored.

Duty: a second loopback port that takes JSON lines and opens only to the server's random token. Bytes follow a line as
they are. Never reachable by an S3 request.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import astuple
from io import BufferedRWPair
from typing import Any

from durastore.errors import InvalidInput
from durastore.testing.strict_s3.answers import S3Refusal
from durastore.testing.strict_s3.committing import damaged
from durastore.testing.strict_s3.populated import PopulatedRange
from durastore.testing.strict_s3.rules import Lie, parse_rules
from durastore.testing.strict_s3.server import HOST
from durastore.testing.strict_s3.service import Service
from durastore.testing.strict_s3.storage import ACCOUNT

__all__ = ["ControlListener"]

Facts = dict[str, Any]
_LINE_LIMIT = 16 << 20


class ControlListener:
    """Accepts control connections for a `Service`."""

    def __init__(self, service: Service, *, token: str) -> None:
        self._service = service
        self._token = token
        self._socket = socket.create_server((HOST, 0))
        self.port: int = self._socket.getsockname()[1]
        self._calls: Mapping[str, Callable[[Facts], tuple[Facts, bytes]]] = {
            "script": self._script,
            "stored": self._stored,
            "counts": self._counts,
            "requests": self._requests,
            "make_bucket": self._make_bucket,
            "populate": self._populate,
            "keys": self._keys,
            "lose": self._lose,
            "damage": self._damage,
            "restart": self._restart,
        }

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True, name="control").start()

    def _accept(self) -> None:
        while True:
            sock, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock, sock.makefile("rwb") as stream:
            token = stream.readline(_LINE_LIMIT).strip()
            if not hmac.compare_digest(token, self._token.encode()):
                return
            while line := stream.readline(_LINE_LIMIT):
                self._serve_line(line, stream)

    def _serve_line(self, line: bytes, stream: BufferedRWPair) -> None:
        data = b""
        try:
            asked = json.loads(line)
            facts, data = self._calls[asked.pop("call")](asked)
        except (S3Refusal, InvalidInput, KeyError, ValueError, TypeError) as exc:
            facts = {"error": f"{type(exc).__name__}: {exc}"}
        stream.write(json.dumps({**facts, "size_bytes": len(data)}).encode() + b"\n" + data)
        stream.flush()

    def _script(self, asked: Facts) -> tuple[Facts, bytes]:
        self._service.rules.write(parse_rules(json.dumps(asked["rules"])))
        return {}, b""

    def _stored(self, asked: Facts) -> tuple[Facts, bytes]:
        with self._service.storage.lock:
            version = self._service.storage.bucket(asked["bucket"]).latest(asked["key"])
        if version is None or version.is_marker or version.is_hollow:
            return {"is_there": False}, b""
        return {"is_there": True}, version.remains()

    def _counts(self, asked: Facts) -> tuple[Facts, bytes]:
        del asked
        service = self._service
        return {"counts": dict(service.counts), "peak": service.peak}, b""

    def _requests(self, asked: Facts) -> tuple[Facts, bytes]:
        del asked
        rows = [astuple(row) for row in self._service.seen.copy()]
        return {}, json.dumps(rows).encode()

    def _make_bucket(self, asked: Facts) -> tuple[Facts, bytes]:
        owner = asked.get("owner") or ACCOUNT
        versioning = "Enabled" if asked.get("is_versioned") else ""
        self._service.storage.make_bucket(asked["bucket"], owner=owner, versioning=versioning)
        return {}, b""

    def _populate(self, asked: Facts) -> tuple[Facts, bytes]:
        group = PopulatedRange(**asked["group"])
        with self._service.storage.lock:
            self._service.storage.bucket(asked["bucket"]).populated.append(group)
        return {}, b""

    def _keys(self, asked: Facts) -> tuple[Facts, bytes]:
        with self._service.storage.lock:
            bucket = self._service.storage.bucket(asked["bucket"])
            found = [key for key in bucket.keys_from("") if bucket.is_there(key)]
        return {}, json.dumps(found).encode()

    def _lose(self, asked: Facts) -> tuple[Facts, bytes]:
        with self._service.storage.lock:
            self._service.storage.bucket(asked["bucket"]).vanish(asked["key"])
        return {}, b""

    def _damage(self, asked: Facts) -> tuple[Facts, bytes]:
        lie = Lie.named(asked["lie"])
        with self._service.storage.lock:
            version = self._service.storage.bucket(asked["bucket"]).latest(asked["key"])
            if version is None or version.is_marker:
                raise S3Refusal("NoSuchKey")
            if lie is Lie.HOLLOW:
                version.is_hollow = True
            else:
                version.body = damaged(version.body, lie, at=asked.get("at"))
        return {}, b""

    def _restart(self, asked: Facts) -> tuple[Facts, bytes]:
        self._service.restart_losing(float(asked["seconds"]))
        return {}, b""
