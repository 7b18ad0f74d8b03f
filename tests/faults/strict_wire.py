"""Raw requests to the strict server, signed by botocore but with any body, headers and payload mode."""

from __future__ import annotations

import hashlib
import hmac
import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from durastore.testing.strict_s3 import StrictS3

__all__ = ["Chunks", "RawAnswer", "WireClient"]


@dataclass(frozen=True, kw_only=True)
class RawAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        text = self.body.decode(errors="replace")
        return text.partition("<Code>")[2].partition("</Code>")[0]


class _Auth(S3SigV4Auth):
    chosen: str | None = None

    def payload(self, request: Any) -> Any:
        return super().payload(request) if self.chosen is None else self.chosen


class WireClient:
    """One connection a request. `sign` gives headers that can be spoilt before `send`."""

    def __init__(self, server: StrictS3) -> None:
        self.server = server
        self.region = server.region
        self.host = urlsplit(server.endpoint_url).netloc

    def sign(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, payload: str | None = None
    ) -> dict[str, str]:
        """Headers for a request without body, or one whose body `payload` speaks of."""
        request = AWSRequest(method, f"{self.server.endpoint_url}{path}", headers=dict(headers or {}))
        auth = _Auth(Credentials(self.server.access_key, self.server.secret_key), "s3", self.region)
        auth.chosen = payload
        auth.add_auth(request)
        return dict(request.headers.items())

    def send(self, method: str, path: str, *, headers: Mapping[str, str], body: bytes = b"") -> RawAnswer:
        connection = http.client.HTTPConnection(self.host, timeout=20)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            if "Content-Length" not in headers and method in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return RawAnswer(status=answer.status, headers=dict(answer.getheaders()), body=answer.read())
        finally:
            connection.close()

    def put(
        self, bucket: str, key: str, *, body: bytes, headers: Mapping[str, str] | None = None, payload: str = ""
    ) -> RawAnswer:
        path = f"/{bucket}/{quote(key)}"
        chosen = payload or hashlib.sha256(body).hexdigest()
        return self.send("PUT", path, headers=self.sign("PUT", path, headers=headers, payload=chosen), body=body)

    def get(self, path: str, *, headers: Mapping[str, str] | None = None) -> RawAnswer:
        return self.send("GET", path, headers=self.sign("GET", path, headers=headers))


class Chunks:
    """aws-chunked framing, signed from a seed signature, written from the specification."""

    def __init__(self, server: StrictS3, headers: Mapping[str, str]) -> None:
        self.time = headers["X-Amz-Date"]
        self.previous = headers["Authorization"].rpartition("Signature=")[2]
        self.scope = f"{self.time[:8]}/{server.region}/s3/aws4_request"
        key = f"AWS4{server.secret_key}".encode()
        for part in (self.time[:8], server.region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        self.key = key

    def frame(self, data: bytes) -> bytes:
        empty = hashlib.sha256(b"").hexdigest()
        lines = (
            "AWS4-HMAC-SHA256-PAYLOAD",
            self.time,
            self.scope,
            self.previous,
            empty,
            hashlib.sha256(data).hexdigest(),
        )
        self.previous = hmac.new(self.key, "\n".join(lines).encode(), hashlib.sha256).hexdigest()
        return f"{len(data):x};chunk-signature={self.previous}\r\n".encode() + data + b"\r\n"
