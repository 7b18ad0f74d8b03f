"""HTTP/1.1 on one connection: request heads, request bodies, answers.

Duty: bytes to values and back, fast enough for thousands of small requests a second (the standard library's handler
parses headers as e-mail). Knows nothing of S3.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from durastore.clock import SYSTEM_CLOCK
from durastore.testing.strict_s3.answers import NO_LENGTH, Answer, S3Refusal

__all__ = ["Connection", "HttpHead"]

_LINE_LIMIT = 65_536
_HEADER_LIMIT = 200
_BODY_LIMIT = 5 << 30
_PIECE = 1 << 20
_DRAIN_LIMIT = 64 << 20
_NUMBERS = itertools.count(1)
_REASONS = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpHead:
    """A request without its body. Header names in lower case; repeated ones joined by a comma."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]

    def content_length(self) -> int | None:
        text = self.headers.get("content-length")
        return int(text) if text is not None and text.isascii() and text.isdigit() else None


@lru_cache(maxsize=64)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)


class Connection:
    """One accepted connection. Used by one thread, except for `close`."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._stream = sock.makefile("rb", buffering=_LINE_LIMIT)
        self._unread = 0
        self._is_waiting = False
        self.number = next(_NUMBERS)
        self.received_bytes = 0
        self.sent_bytes = 0

    def close(self) -> None:
        """End the connection now, whatever it is doing. Safe to repeat, and from another thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def read_head(self) -> HttpHead | None:
        """The next request's head; None where the peer closed. ValueError on what is no HTTP/1.1."""
        line = self._stream.readline(_LINE_LIMIT)
        while line == b"\r\n":
            line = self._stream.readline(_LINE_LIMIT)
        if not line:
            return None
        method, target, version = line.decode("latin-1").rstrip("\r\n").split(" ")
        if version != "HTTP/1.1" or not target.startswith("/"):
            raise ValueError("not an HTTP/1.1 request in origin form")
        headers: dict[str, str] = {}
        for _ in range(_HEADER_LIMIT):
            raw = self._stream.readline(_LINE_LIMIT)
            if raw in (b"\r\n", b"\n", b""):
                break
            name, colon, value = raw.decode("utf-8", "surrogateescape").partition(":")
            if not colon or not name or name != name.strip():
                raise ValueError("not a header line")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        else:
            raise ValueError("too many headers")
        path, _, query = target.partition("?")
        head = HttpHead(method=method, path=path, query=query, headers=headers)
        self._unread = head.content_length() or 0
        self._is_waiting = headers.get("expect", "").lower() == "100-continue"
        return head

    def read_body(self, head: HttpHead, *, bytes_per_s: float | None = None, limit: int | None = None) -> bytes:
        """The request's body, or its first `limit` bytes; fewer where the peer stopped sending."""
        if "transfer-encoding" in head.headers:
            raise S3Refusal("NotImplemented", "Transfer-Encoding is not implemented", status=501)
        size = self._unread if limit is None else min(limit, self._unread)
        if size > _BODY_LIMIT:
            raise S3Refusal("EntityTooLarge")
        if self._is_waiting:
            self._is_waiting = False
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not size:
            return b""
        if bytes_per_s is None:
            data: bytes = self._stream.read(size)
        else:
            data = self._read_slowly(size, bytes_per_s)
        self._unread -= len(data)
        self.received_bytes += len(data)
        return data

    def _read_slowly(self, size: int, bytes_per_s: float) -> bytes:
        pieces, left, step = [], size, max(1, int(bytes_per_s / 10))
        while left:
            piece = self._stream.read(min(step, left))
            pieces.append(piece)
            left -= len(piece)
            if not piece:
                break
            SYSTEM_CLOCK.sleep(len(piece) / bytes_per_s)
        return b"".join(pieces)

    def send(self, answer: Answer) -> bool:
        """Deliver `answer`; False where the connection is over."""
        if answer.delay_s:
            SYSTEM_CLOCK.sleep(answer.delay_s)
        if answer.is_lost:
            return False
        is_last = answer.is_last or not self._drain() or answer.sent_bytes is not None
        head = self._render_head(answer, is_last=is_last)
        body = memoryview(answer.body)[: answer.sent_bytes]
        self.sent_bytes += len(body)
        if answer.white_space_s:
            self._socket.sendall(head)
            self._send_white_space(body.tobytes(), answer.white_space_s)
        elif answer.bytes_per_s is not None:
            self._socket.sendall(head)
            self._send_slowly(body, answer.bytes_per_s)
        elif len(body) <= _LINE_LIMIT:
            self._socket.sendall(head + body)
        else:
            self._socket.sendall(head)
            self._socket.sendall(body)
        return not is_last

    def _render_head(self, answer: Answer, *, is_last: bool) -> bytes:
        lines = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Odd')}", "Server: strict-s3"]
        if answer.has_date:
            now_s = SYSTEM_CLOCK.now_ns() / 1e9 + answer.clock_offset_s
            lines.append(f"Date: {_http_date(int(now_s))}")
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        if answer.white_space_s:
            lines.append("Transfer-Encoding: chunked")
        elif answer.said_length != NO_LENGTH and answer.status not in (204, 304):
            length = len(answer.body) if answer.said_length is None else answer.said_length
            lines.append(f"Content-Length: {length}")
        if is_last:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")

    def _drain(self) -> bool:
        """Read what is left of the request, so that the next one can follow; False where that cannot be."""
        # A client that was never told to go on may or may not send its body now: S3 closes, and some clients need it.
        if self._is_waiting or self._unread > _DRAIN_LIMIT:
            return False
        while self._unread:
            piece = self._stream.read(min(_PIECE, self._unread))
            if not piece:
                return False
            self._unread -= len(piece)
        return True

    def _send_white_space(self, body: bytes, seconds: float) -> None:
        """As S3 does while it completes a long upload: the status is out long before the result is known."""
        first, _, rest = body.partition(b"\n")
        self._send_chunk(first + b"\n")
        end = SYSTEM_CLOCK.monotonic() + seconds
        while SYSTEM_CLOCK.monotonic() < end:
            self._send_chunk(b" ")
            SYSTEM_CLOCK.sleep(min(0.1, seconds))
        self._send_chunk(rest)
        self._socket.sendall(b"0\r\n\r\n")

    def _send_chunk(self, data: bytes) -> None:
        self._socket.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def _send_slowly(self, body: memoryview, bytes_per_s: float) -> None:
        step = max(1, int(bytes_per_s / 10))
        for start in range(0, len(body), step):
            piece = body[start : start + step]
            self._socket.sendall(piece)
            SYSTEM_CLOCK.sleep(len(piece) / bytes_per_s)
