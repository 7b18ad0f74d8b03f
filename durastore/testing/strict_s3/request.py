"""Which S3 operation a request asks for, on which bucket and key.

Duty: parse path and query of path-style addressing, exactly once decoded, into a `Request`. Must never look at what
is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPMethod
from urllib.parse import unquote_plus, unquote_to_bytes

from durastore.testing.strict_s3.answers import S3Refusal
from durastore.testing.strict_s3.operations import UNSUPPORTED
from durastore.testing.strict_s3.rules import Lie, Rule
from durastore.testing.strict_s3.wire import HttpHead

__all__ = ["Request", "parse_request"]

_KEY_LIMIT_BYTES = 1024
_BUCKET_READS = {
    "location": "get_location",
    "versioning": "get_versioning",
    "lifecycle": "get_lifecycle",
    "versions": "list_versions",
    "uploads": "list_uploads",
}
_BUCKET_WRITES = {"versioning": "put_versioning", "lifecycle": "put_lifecycle"}
_FOREIGN = frozenset(
    [
        "accelerate",
        "acl",
        "analytics",
        "attributes",
        "cors",
        "delete",
        "encryption",
        "inventory",
        "legal-hold",
        "logging",
        "metrics",
        "notification",
        "object-lock",
        "ownershipControls",
        "policy",
        "policyStatus",
        "publicAccessBlock",
        "replication",
        "requestPayment",
        "restore",
        "retention",
        "select",
        "tagging",
        "torrent",
        "website",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One S3 request. `body` is empty until it has been read."""

    op: str
    bucket: str
    key: str
    query: Mapping[str, str]
    head: HttpHead
    body: bytes = b""
    told: Mapping[Lie, Rule] = field(default_factory=dict)
    """The lies that are due in this request."""
    trailers: Mapping[str, str] = field(default_factory=dict)
    is_other_turn: bool = False
    """Every second request that a lagging replica may answer."""
    now_s: float = 0.0
    """The server's clock, Unix seconds."""

    @property
    def headers(self) -> Mapping[str, str]:
        return self.head.headers

    @property
    def resource(self) -> str:
        return f"/{self.bucket}/{self.key}" if self.key else f"/{self.bucket}"

    def number(self, name: str, *, default: int, least: int = 0) -> int:
        """A whole number of the query; `InvalidArgument` on anything else."""
        text = self.query.get(name)
        if text is None or text == "":
            return default
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise S3Refusal("InvalidArgument", f"Argument {name} must be an integer of at least {least}")
        return int(text)


def parse_request(head: HttpHead) -> Request:
    """`InvalidURI` on a path that is no UTF-8, `KeyTooLongError` on one that is too long."""
    bucket_text, _, key_text = head.path[1:].partition("/")
    try:
        bucket, key = _decode(bucket_text), _decode(key_text)
        query = dict(_pairs(head.query))
    except UnicodeDecodeError:
        raise S3Refusal("InvalidURI", "Couldn't parse the specified URI.") from None
    if len(key.encode()) > _KEY_LIMIT_BYTES:
        raise S3Refusal("KeyTooLongError", "Your key is too long")
    op = _operation(head, bucket=bucket, key=key, query=query)
    return Request(op=op, bucket=bucket, key=key, query=query, head=head)


def _decode(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8") if "%" in text or not text.isascii() else text


def _pairs(query: str) -> list[tuple[str, str]]:
    parts = [part.partition("=") for part in query.split("&") if part]
    return [(unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict")) for name, _, value in parts]


def _operation(head: HttpHead, *, bucket: str, key: str, query: Mapping[str, str]) -> str:
    if not bucket:
        return "list_buckets" if head.method == HTTPMethod.GET and not key else UNSUPPORTED
    if not _FOREIGN.isdisjoint(query):
        return UNSUPPORTED
    return _object_operation(head, query) if key else _bucket_operation(head.method, query)


def _bucket_operation(method: str, query: Mapping[str, str]) -> str:
    if method == HTTPMethod.HEAD:
        return "head_bucket"
    if method == HTTPMethod.PUT:
        return next((op for name, op in _BUCKET_WRITES.items() if name in query), "create_bucket")
    if method != HTTPMethod.GET:
        return UNSUPPORTED
    op = next((op for name, op in _BUCKET_READS.items() if name in query), None)
    return op or ("list" if query.get("list-type") == "2" else "list_v1")


def _object_operation(head: HttpHead, query: Mapping[str, str]) -> str:
    has_upload, is_copy = "uploadId" in query, "x-amz-copy-source" in head.headers
    match head.method:
        case HTTPMethod.GET:
            return "list_parts" if has_upload else "get"
        case HTTPMethod.HEAD:
            return "head"
        case HTTPMethod.PUT if has_upload:
            return "copy_part" if is_copy else "upload_part"
        case HTTPMethod.PUT:
            return "copy" if is_copy else "put"
        case HTTPMethod.POST if has_upload:
            return "complete_upload"
        case HTTPMethod.POST if "uploads" in query:
            return "create_upload"
        case HTTPMethod.DELETE:
            return "abort_upload" if has_upload else "delete"
    return UNSUPPORTED
