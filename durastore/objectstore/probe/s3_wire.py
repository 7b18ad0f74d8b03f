"""The probe's requests on the wire: signed by botocore, sent as they are, each on a connection of its own.

Duty: send exactly the headers and bytes asked for (a client library would correct a wrong checksum or refuse to send
it), and hand back whatever came. Never repeats a request; must never show a credential, a signature or a URL's secret.
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from xml.sax.saxutils import escape

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.objectstore.classify import classify
from durastore.objectstore.location import S3Options
from durastore.objectstore.probe.port import (
    NO_CLAIMS,
    NO_CONDITION,
    Answer,
    Claims,
    Condition,
    ListQuery,
    PartClaim,
    WholeClaim,
)
from durastore.objectstore.probe.result import ChecksumKind
from durastore.objectstore.probe.s3_answers import (
    CHECKSUM_HEADERS,
    Reply,
    parse_completed,
    parse_created,
    parse_lifecycle,
    parse_page,
    parse_plain,
    parse_versioning,
)
from durastore.objectstore.s3_client import OWNER_HEADER, Connector

__all__ = ["S3Wire"]

MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    method: str
    key: str | None = None
    """None: the bucket itself."""
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Place:
    """Where and as whom to send: resolved once, as the store's own client resolves it."""

    base_url: str
    region: str
    credentials: Any
    authority: str | bool


class S3Wire:
    """`ProbePort` for one bucket. Not thread-safe."""

    def __init__(
        self, bucket: str, *, options: S3Options, clock: Clock = SYSTEM_CLOCK, connector: Connector | None = None
    ) -> None:
        """`connector`: of a store that is open with the same options; None: one of its own."""
        self.bucket = bucket
        self._options = options
        self._clock = clock
        self._connector = connector or Connector(bucket, options)
        self._client = self._connector.connect()
        self._place = _resolve(self._connector, self._client)
        self._session: Any = None

    def __repr__(self) -> str:
        return f"S3Wire(s3://{self.bucket})"

    @property
    def endpoint(self) -> str:
        parts = urlsplit(self._place.base_url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def account(self) -> str:
        access_key = str(self._place.credentials.get_frozen_credentials().access_key)
        settings = (self._options.storage_class, self._options.sse, self._options.kms_key)
        # What objects are written with decides what their etag is, so it belongs to "who writes".
        return hashlib.sha256(repr((access_key, settings)).encode()).hexdigest()[:32]

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:  # once: given back twice, it would have two users at a time
            self._connector.give_back(client)
        if self._session is not None:
            self._session.close()
            self._session = None

    def put(self, key: str, body: bytes, *, claims: Claims = NO_CLAIMS, condition: Condition = NO_CONDITION) -> Answer:
        headers = {**self._creation(), **_claimed(claims), **_conditions(condition)}
        return self._ask(_Request(method="PUT", key=key, headers=headers, body=body), parse_plain)

    def put_truncated(self, key: str, body: bytes, *, sent_bytes: int) -> Answer:
        request = self._signed(_Request(method="PUT", key=key, headers=self._creation(), body=body))
        if _has_proxy(request.url):
            return Answer(status=None, code="NotThroughProxy")
        return self._send_short(request, body[:sent_bytes])

    def head(self, key: str) -> Answer:
        headers = {"x-amz-checksum-mode": "ENABLED"}
        return self._ask(_Request(method="HEAD", key=key, headers=headers), parse_plain)

    def get(self, key: str, *, span: tuple[int, int] | None = None, condition: Condition = NO_CONDITION) -> Answer:
        headers = dict(_conditions(condition))
        if span is not None:
            headers["range"] = f"bytes={span[0]}-{span[1] - 1}"
        return self._ask(_Request(method="GET", key=key, headers=headers), parse_plain)

    def create_upload(self, key: str, *, kind: ChecksumKind | None) -> Answer:
        headers = self._creation()
        if kind is not None:
            headers["x-amz-checksum-algorithm"] = kind.name
            headers["x-amz-checksum-type"] = "FULL_OBJECT" if kind is ChecksumKind.CRC64NVME else "COMPOSITE"
        return self._ask(_Request(method="POST", key=key, query=(("uploads", ""),), headers=headers), parse_created)

    def upload_part(self, key: str, upload_id: str, *, number: int, body: bytes, claims: Claims) -> Answer:
        query = (("partNumber", str(number)), ("uploadId", upload_id))
        return self._ask(_Request(method="PUT", key=key, query=query, headers=_claimed(claims), body=body), parse_plain)

    def complete_upload(self, key: str, upload_id: str, *, parts: Sequence[PartClaim], whole: WholeClaim) -> Answer:
        headers: dict[str, str] = {}
        if whole.crc64nvme is not None:
            headers["x-amz-checksum-crc64nvme"] = whole.crc64nvme
            headers["x-amz-checksum-type"] = "FULL_OBJECT"
        if whole.size_bytes is not None:
            headers["x-amz-mp-object-size"] = str(whole.size_bytes)
        query = (("uploadId", upload_id),)
        body = _render_parts(parts)
        return self._ask(_Request(method="POST", key=key, query=query, headers=headers, body=body), parse_completed)

    def abort_upload(self, key: str, upload_id: str) -> Answer:
        # Through boto3's own call for it: there is no request in this module that could take an object away.
        try:
            answer = self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)
        except Exception as exc:  # noqa: BLE001  # every failure is an answer here
            facts = classify(exc, write=True, what="abort upload of", key=key).facts
            return Answer(status=facts.get("status"), code=str(facts.get("server_code") or type(exc).__name__))
        return Answer(status=answer["ResponseMetadata"]["HTTPStatusCode"])

    def list_page(self, query: ListQuery) -> Answer:
        pairs = [("list-type", "2"), ("prefix", query.prefix), ("max-keys", str(query.max_keys))]
        pairs.append(("encoding-type", "url"))
        if query.token is not None:
            pairs.append(("continuation-token", query.token))
        if query.start_after is not None:
            pairs.append(("start-after", query.start_after))
        return self._ask(_Request(method="GET", query=tuple(sorted(pairs))), parse_page)

    def fetch_versioning(self) -> Answer:
        return self._ask(_Request(method="GET", query=(("versioning", ""),)), parse_versioning)

    def fetch_lifecycle(self) -> Answer:
        return self._ask(_Request(method="GET", query=(("lifecycle", ""),)), parse_lifecycle)

    def _creation(self) -> dict[str, str]:
        """The settings the store itself writes with: they decide, for one, whether an etag is an MD5."""
        options, headers = self._options, dict[str, str]()
        if options.storage_class:
            headers["x-amz-storage-class"] = options.storage_class
        if options.sse:
            headers["x-amz-server-side-encryption"] = options.sse
        if options.kms_key:
            headers["x-amz-server-side-encryption-aws-kms-key-id"] = options.kms_key
        return headers

    def _ask(self, request: _Request, parse: Callable[[Reply], Answer]) -> Answer:
        import botocore.exceptions

        prepared = self._signed(request)
        # After signing, since a proxy may change it. A connection for each request: what one answer leaves behind
        # cannot be taken for another's, and a look is never made on the connection of the write.
        prepared.headers["Connection"] = "close"
        started = self._clock.monotonic()
        try:
            response = self._opened_session().send(prepared)
            body = response.raw.read(MAX_BODY_BYTES)
            response.raw.close()
        except botocore.exceptions.BotoCoreError as exc:
            return Answer(status=None, code=type(exc).__name__)
        except Exception as exc:  # noqa: BLE001  # a broken answer is an answer here; its text may hold a URL
            return Answer(status=None, code=type(exc).__name__)
        headers = {str(name).lower(): str(value) for name, value in response.headers.items()}
        took_s = self._clock.monotonic() - started
        announced = headers.get("content-length", "0") if request.method != "HEAD" else "0"
        if len(body) < MAX_BODY_BYTES and announced.isdigit() and int(announced) > len(body):
            return Answer(status=None, code="IncompleteAnswer")
        return parse(Reply(status=response.status_code, headers=headers, body=body, round_trip_s=took_s))

    def _opened_session(self) -> Any:
        if self._session is None:
            from botocore.httpsession import URLLib3Session
            from botocore.utils import get_environ_proxies

            self._session = URLLib3Session(
                verify=self._place.authority,  # type: ignore[arg-type]  # takes a path, too; the stub does not know
                proxies=get_environ_proxies(self._place.base_url),
                timeout=(self._options.connect_timeout_s, self._options.read_timeout_s),  # type: ignore[arg-type]  # a pair
            )
        return self._session

    def _signed(self, request: _Request) -> Any:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.config import Config

        url = self._place.base_url + ("" if request.key is None else "/" + quote(request.key, safe="/-._~"))
        if request.key is None:
            url += "" if urlsplit(url).path else "/"
        if request.query:
            url += "?" + urlencode(request.query, quote_via=quote, safe="-._~")
        headers = dict(request.headers)
        signed = AWSRequest(method=request.method, url=url, data=request.body, headers=headers, stream_output=True)
        if request.method in ("PUT", "POST"):
            signed.headers["Content-Length"] = str(len(request.body))
        if self._options.bucket_owner is not None:
            signed.headers[OWNER_HEADER] = self._options.bucket_owner
        signed.context["client_config"] = Config(s3={"payload_signing_enabled": False})  # as the store's own writes
        frozen = self._place.credentials.get_frozen_credentials()
        S3SigV4Auth(frozen, "s3", self._place.region).add_auth(signed)
        return signed.prepare()

    def _send_short(self, request: Any, part: bytes) -> Answer:
        """Send the head of `request` and `part` of its body, then end; what the server makes of it is the check."""
        parts = urlsplit(request.url)
        connection = self._connection(parts.scheme, parts.hostname or "", port=parts.port)
        try:
            connection.putrequest(
                "PUT",
                parts.path + (f"?{parts.query}" if parts.query else ""),
                skip_host=True,
                skip_accept_encoding=True,
            )
            connection.putheader("Host", parts.netloc)
            for name, value in request.headers.items():
                connection.putheader(name, value)
            connection.endheaders(part)
            if parts.scheme == "https" or connection.sock is None:
                return Answer(status=None, code="CutOff")  # TLS has no half-close to read an answer through
            connection.sock.shutdown(socket.SHUT_WR)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return parse_plain(Reply(status=response.status, headers=headers, body=response.read(MAX_BODY_BYTES)))
        except (OSError, http.client.HTTPException) as exc:
            return Answer(status=None, code=type(exc).__name__)
        finally:
            connection.close()

    def _connection(self, scheme: str, host: str, *, port: int | None) -> http.client.HTTPConnection:
        limit_s = min(self._options.read_timeout_s, _SHORT_LIMIT_S)
        if scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=limit_s)
        from botocore.httpsession import get_cert_path

        authority = get_cert_path(self._place.authority)  # type: ignore[arg-type]  # takes a path, too
        context = ssl.create_default_context(cafile=authority)
        return http.client.HTTPSConnection(host, port, timeout=limit_s, context=context)


_SHORT_LIMIT_S = 5.0  # a server that waits for the rest of a body has said enough by then


def _resolve(connector: Connector, client: Any) -> _Place:
    endpoint, is_path_style = str(client.meta.endpoint_url).rstrip("/"), connector.is_path_style(client)
    parts = urlsplit(endpoint)
    base_url = (
        f"{endpoint}/{connector.bucket}"
        if is_path_style
        else f"{parts.scheme}://{connector.bucket}.{parts.netloc}{parts.path}"
    )
    return _Place(
        base_url=base_url,
        region=str(client.meta.region_name),
        credentials=connector.credentials(),
        authority=connector.ca_bundle() or True,
    )


def _claimed(claims: Claims) -> dict[str, str]:
    return {CHECKSUM_HEADERS[kind]: value for kind, value in claims.items()}


def _conditions(condition: Condition) -> dict[str, str]:
    headers = {"if-none-match": "*"} if condition.is_create_only else {}
    return headers | ({"if-match": condition.if_match} if condition.if_match is not None else {})


def _render_parts(parts: Sequence[PartClaim]) -> bytes:
    names = {ChecksumKind.CRC64NVME: "ChecksumCRC64NVME", ChecksumKind.SHA256: "ChecksumSHA256"}
    rows = []
    for part in parts:
        told = "".join(f"<{names[k]}>{escape(v)}</{names[k]}>" for k, v in part.claims.items() if k in names)
        rows.append(f"<Part><PartNumber>{part.number}</PartNumber><ETag>{escape(part.etag)}</ETag>{told}</Part>")
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{space}">{"".join(rows)}</CompleteMultipartUpload>'.encode()


def _has_proxy(url: str) -> bool:
    from botocore.utils import get_environ_proxies

    return urlsplit(url).scheme in get_environ_proxies(url)
