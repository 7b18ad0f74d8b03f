"""A small HTTP server that answers S3 requests as a test scripts them, so that the real adapter meets odd answers.

Duty: keep what was sent, answer what the script says, on loopback, in one thread of its own. It checks nothing.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qsl, urlsplit

__all__ = ["DATE_S", "Answer", "ScriptedS3", "SeenRequest", "error_body", "listing"]

DATE = "Sun, 06 Nov 1994 08:49:37 GMT"
DATE_S = 784111777.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """One request as it came over the wire; header names in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to send back. `send_bytes` sends only so much of the body and then closes; `is_dropped` closes at once."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    has_length: bool = True
    send_bytes: int | None = None
    is_dropped: bool = False
    has_date: bool = True
    delay_s: float = 0.0


Step = Answer | Callable[[SeenRequest], Answer]


def error_body(code: str) -> bytes:
    document = f"<Error><Code>{code}</Code><Message>scripted</Message></Error>"
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + document.encode()


def listing(keys: list[str], *, truncated: bool = False, token: str | None = None, encoding: str = "") -> bytes:
    """A ListObjectsV2 page; the keys go in as they are given."""
    rows = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2024-01-02T03:04:05.000Z</LastModified><ETag>&quot;e{n}&quot;</ETag>"
        f"<Size>{n}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for n, key in enumerate(keys)
    )
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    encoded = f"<EncodingType>{encoding}</EncodingType>" if encoding else ""
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>bucket</Name><KeyCount>{len(keys)}</KeyCount><MaxKeys>1000</MaxKeys>"
        f"<IsTruncated>{'true' if truncated else 'false'}</IsTruncated>{encoded}{more}{rows}</ListBucketResult>"
    ).encode()


class ScriptedS3:
    """Use as a context manager. `script` starts a scene: its steps are used in order, and the last one repeats."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.seen: list[SeenRequest] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._steps: deque[Step] = deque()
        self._last: Step = Answer(status=501, body=error_body("NotImplemented"))
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.scripted = self
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def endpoint_url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def script(self, *steps: Step) -> None:
        with self._lock:
            self._steps = deque(steps)
            self.seen = []

    def next_answer(self, request: SeenRequest) -> Answer:
        with self._lock:
            self.seen.append(request)
            if self._steps:
                self._last = self._steps.popleft()
            step = self._last
        return step if isinstance(step, Answer) else step(request)

    def __enter__(self) -> ScriptedS3:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    scripted: ScriptedS3

    def handle_error(self, request: object, client_address: object) -> None:
        """Silent: clients that leave in the middle are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    timeout = 20

    def setup(self) -> None:
        super().setup()
        self.server.scripted.connections += 1

    def log_message(self, format: str, *args: object) -> None:
        """Silent: a test prints what it needs."""

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        url = urlsplit(self.path)
        request = SeenRequest(
            method=self.command,
            path=url.path,
            query=dict(parse_qsl(url.query, keep_blank_values=True)),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self.rfile.read(size),
        )
        answer = self.server.scripted.next_answer(request)
        time.sleep(answer.delay_s)
        if answer.is_dropped:
            self.close_connection = True
            return
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        if answer.has_date:
            self.send_header("Date", DATE)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.has_length and "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(answer.body)))
        if not answer.has_length or answer.send_bytes is not None:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: answer.send_bytes])

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve
