"""Listening, connections and threads: the running server.

Duty: one thread a connection, on loopback only, for the S3 side. Must never serve control requests on the S3 port.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from durastore.testing.strict_s3.answers import S3Refusal, error_answer
from durastore.testing.strict_s3.service import Service
from durastore.testing.strict_s3.wire import Connection

__all__ = ["HOST", "S3Listener"]

HOST = "127.0.0.1"
_BACKLOG = 1024


class S3Listener:
    """Accepts S3 connections for a `Service`, from `start` on, until the process ends."""

    def __init__(self, service: Service, *, port: int = 0) -> None:
        self._service = service
        self._socket = socket.create_server((HOST, port), backlog=_BACKLOG)
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self.port: int = self._socket.getsockname()[1]
        service.on_restart = self.close_connections

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True, name="accept").start()

    def close_connections(self) -> None:
        """What a restart does to them."""
        with self._lock:
            open_now = list(self._open)
        for connection in open_now:
            connection.close()

    def _accept(self) -> None:
        while True:
            sock, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        connection = Connection(sock)
        with self._lock:
            self._open.add(connection)
        try:
            # A peer that goes away, in whatever state, is no fault of the server's.
            with contextlib.suppress(OSError, ValueError):
                while self._serve_one(connection):
                    pass
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _serve_one(self, connection: Connection) -> bool:
        try:
            head = connection.read_head()
        except ValueError as exc:
            refusal = S3Refusal("BadRequest", str(exc))
            connection.send(error_answer(refusal, resource="", has_body=True))
            return False
        if head is None:
            return False
        return connection.send(self._service.answer(head, connection))
