"""A strict S3 server in one process with scripted faults: what the upload engine's fault suite runs against.

Duty: keep objects and multipart uploads, check every checksum and size that is sent, and do at the n-th request of an
operation what the script says. It is honest except where a fault tells it not to be.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree as ET

from durastore.objectstore.crc import crc64nvme_b64

__all__ = ["FaultyS3", "StoredObject"]

_CRC = "x-amz-checksum-crc64nvme"
_META = "x-amz-meta-"


@dataclass(kw_only=True)
class StoredObject:
    """An object, or the parts of an upload that may become one."""

    body: bytes = b""
    etag: str = ""
    crc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


def error(status: int, code: str) -> Reply:
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>scripted</Message></Error>"
    return Reply(status=status, body=body.encode(), headers={"Content-Type": "application/xml"})


def _xml(name: str, inner: str) -> bytes:
    return f"<?xml version='1.0' encoding='UTF-8'?><{name} xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{inner}</{name}>".encode()


Act = Callable[[], Reply]
Fault = Callable[[Act], Reply | None]
"""Given the honest action, what to do instead. None closes the connection without an answer."""


def drop_request(act: Act) -> Reply | None:
    """The request is never carried out, and no answer comes."""
    return None


def drop_answer(act: Act) -> Reply | None:
    """The request is carried out, and no answer comes."""
    act()
    return None


def answer(reply: Reply) -> Fault:
    """That answer instead of the action."""
    return lambda act: reply


SLOW_DOWN = answer(error(503, "SlowDown"))
INTERNAL = answer(error(500, "InternalError"))


class FaultyS3:
    """Use as a context manager. `fault("put", 1, SLOW_DOWN)` hits the first PUT; operations are put, create, part,
    complete, abort, head, parts. `always(op, fault)` hits every one."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.busy = 0
        self.reset()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.faulty = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def reset(self) -> None:
        """As new, at the same address."""
        with self.lock:
            self.objects: dict[str, StoredObject] = {}
            self.uploads: dict[str, StoredObject] = {}
            self.calls: Counter[str] = Counter()
            self.received_bytes = 0
            self.signed_at: list[str] = []
            self.page_parts = 1000
            self.honours_if_none_match = True
            self.peak = 0
            self._faults: dict[tuple[str, int], Fault] = {}
            self._always: dict[str, Fault] = {}

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fault(self, op: str, nth: int, fault: Fault) -> None:
        self._faults[op, nth] = fault

    def always(self, op: str, fault: Fault | None) -> None:
        if fault is None:
            self._always.pop(op, None)
        else:
            self._always[op] = fault

    def __enter__(self) -> FaultyS3:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    # --- requests --------------------------------------------------------------------------------------------------

    def handle(self, request: _Request) -> Reply | None:
        op = request.op()
        with self.lock:
            self.calls[op] += 1
            nth = self.calls[op]
            self.received_bytes += len(request.body)
            fault = self._faults.get((op, nth)) or self._always.get(op)

        def act() -> Reply:
            with self.lock:
                return self._act(op, request)

        return act() if fault is None else fault(act)

    def _act(self, op: str, request: _Request) -> Reply:
        actions: dict[str, Callable[[_Request], Reply]] = {
            "put": self._put,
            "get": self._get,
            "create": self._create,
            "part": self._part,
            "complete": self._complete,
            "abort": self._abort,
            "head": self._head,
            "parts": self._parts,
        }
        return actions[op](request)

    def _put(self, request: _Request) -> Reply:
        if request.headers.get("if-none-match") == "*":
            if not self.honours_if_none_match:
                return error(501, "NotImplemented")
            if request.key in self.objects:
                return error(412, "PreconditionFailed")
        crc = crc64nvme_b64(request.body)
        if request.headers.get(_CRC, crc) != crc:
            return error(400, "BadDigest")
        stored = StoredObject(
            body=request.body, etag=_etag(request.body), crc=crc, metadata=request.metadata(), key=request.key
        )
        self.objects[request.key] = stored
        return Reply(status=200, headers={"ETag": stored.etag, _CRC: crc})

    def _create(self, request: _Request) -> Reply:
        upload_id = f"upload-{self.calls['create']}"
        self.uploads[upload_id] = StoredObject(metadata=request.metadata(), key=request.key)
        inner = f"<Bucket>bucket</Bucket><Key>{request.key}</Key><UploadId>{upload_id}</UploadId>"
        return Reply(status=200, body=_xml("InitiateMultipartUploadResult", inner))

    def _part(self, request: _Request) -> Reply:
        upload = self.uploads.get(request.query["uploadId"])
        if upload is None:
            return error(404, "NoSuchUpload")
        crc = crc64nvme_b64(request.body)
        if request.headers.get(_CRC, crc) != crc:
            return error(400, "BadDigest")
        upload.parts[int(request.query["partNumber"])] = (_etag(request.body), request.body)
        return Reply(status=200, headers={"ETag": _etag(request.body), _CRC: crc})

    def _complete(self, request: _Request) -> Reply:
        upload = self.uploads.get(request.query["uploadId"])
        if upload is None:
            return error(404, "NoSuchUpload")
        named = [
            (int(part.findtext("{*}PartNumber") or 0), part.findtext("{*}ETag") or "")
            for part in ET.fromstring(request.body).findall("{*}Part")  # noqa: S314 -- our own client wrote it
        ]
        known = {number: etag for number, (etag, _) in upload.parts.items()}
        if not named or any(known.get(number, "").strip('"') != etag.strip('"') for number, etag in named):
            return error(400, "InvalidPart")
        body = b"".join(upload.parts[number][1] for number, _ in named)
        crc = crc64nvme_b64(body)
        if request.headers.get(_CRC, crc) != crc or int(request.headers.get("x-amz-mp-object-size", len(body))) != len(
            body
        ):
            return error(400, "BadDigest")
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}-{len(named)}"'
        stored = StoredObject(body=body, etag=etag, crc=crc, metadata=upload.metadata, key=upload.key)
        self.objects[upload.key] = stored
        self.uploads.pop(request.query["uploadId"])
        inner = f"<Key>{upload.key}</Key><ETag>{etag}</ETag><ChecksumCRC64NVME>{crc}</ChecksumCRC64NVME>"
        return Reply(status=200, body=_xml("CompleteMultipartUploadResult", inner))

    def _abort(self, request: _Request) -> Reply:
        return Reply(status=204) if self.uploads.pop(request.query["uploadId"], None) else error(404, "NoSuchUpload")

    def _head(self, request: _Request) -> Reply:
        stored = self.objects.get(request.key)
        if stored is None:
            return Reply(status=404)
        headers = {"ETag": stored.etag, "Content-Length": str(len(stored.body)), _CRC: stored.crc}
        headers |= {_META + name: value for name, value in stored.metadata.items()}
        return Reply(status=200, headers=headers)

    def _get(self, request: _Request) -> Reply:
        stored = self.objects.get(request.key)
        return error(404, "NoSuchKey") if stored is None else Reply(status=200, body=stored.body)

    def _parts(self, request: _Request) -> Reply:
        upload = self.uploads.get(request.query["uploadId"])
        if upload is None:
            return error(404, "NoSuchUpload")
        after = int(request.query.get("part-number-marker") or 0)
        numbers = sorted(number for number in upload.parts if number > after)
        page = numbers[: self.page_parts]
        rows = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{upload.parts[n][0]}</ETag><Size>{len(upload.parts[n][1])}</Size></Part>"
            for n in page
        )
        more = "true" if len(page) < len(numbers) else "false"
        marker = f"<NextPartNumberMarker>{page[-1] if page else 0}</NextPartNumberMarker>"
        inner = f"<IsTruncated>{more}</IsTruncated>{marker}{rows}"
        return Reply(status=200, body=_xml("ListPartsResult", inner))


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


@dataclass(frozen=True, kw_only=True)
class _Request:
    method: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def op(self) -> str:
        is_upload = "uploadId" in self.query
        table = {
            "PUT": ("put", "part"),
            "POST": ("create", "complete"),
            "DELETE": ("remove", "abort"),
            "GET": ("get", "parts"),
        }
        return "head" if self.method == "HEAD" else table[self.method][is_upload]

    def metadata(self) -> dict[str, str]:
        return {name.removeprefix(_META): value for name, value in self.headers.items() if name.startswith(_META)}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    faulty: FaultyS3


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    timeout = 20
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Silent: a test asserts what it needs."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        if "aws-chunked" in headers.get("content-encoding", "") or headers.get("transfer-encoding"):
            self._send(error(501, "NotImplemented"))
            self.close_connection = True
            return
        request = _Request(
            method=self.command,
            key=unquote(url.path).removeprefix("/bucket/"),
            query=dict(parse_qsl(url.query, keep_blank_values=True)),
            headers=headers,
            body=self.rfile.read(int(headers.get("content-length") or 0)),
        )
        faulty = self.server.faulty
        with faulty.lock:
            faulty.busy += 1
            faulty.peak = max(faulty.peak, faulty.busy)
            faulty.signed_at.append(headers.get("x-amz-date", ""))
        try:
            reply = faulty.handle(request)
        finally:
            with faulty.lock:
                faulty.busy -= 1
        if reply is None:
            self.close_connection = True
            return
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in reply.headers:
            self.send_header("Content-Length", str(len(reply.body) + (20 if reply.delay_s else 0)))
        self.end_headers()
        if reply.delay_s:  # white space while the server still makes up its mind, as S3 does on Complete
            for _ in range(20):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(reply.delay_s / 20)
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve
