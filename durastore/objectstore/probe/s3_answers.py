"""From an HTTP answer of an S3 endpoint to an `Answer`: headers, error code, and the few documents the probe reads.

Duty: find what is there, strictly and bounded. A document that is not what was asked for is left out, so the checks see
"unknown"; must never raise, whatever the endpoint sends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from durastore.objectstore.probe.port import Answer, ExpiryRule, ListedPage
from durastore.objectstore.probe.result import ChecksumKind

__all__ = [
    "CHECKSUM_HEADERS",
    "Reply",
    "parse_completed",
    "parse_created",
    "parse_lifecycle",
    "parse_page",
    "parse_plain",
    "parse_versioning",
]

CHECKSUM_HEADERS: Mapping[ChecksumKind, str] = {
    ChecksumKind.CRC64NVME: "x-amz-checksum-crc64nvme",
    ChecksumKind.CRC32: "x-amz-checksum-crc32",
    ChecksumKind.SHA256: "x-amz-checksum-sha256",
    ChecksumKind.CONTENT_MD5: "content-md5",
}
_TOLD = (ChecksumKind.CRC64NVME, ChecksumKind.CRC32, ChecksumKind.SHA256)
# Errors that say "not now", in a document that follows a 200 which was sent too early.
_NOT_NOW = frozenset(("InternalError", "SlowDown", "ServiceUnavailable", "OperationAborted", "RequestTimeout"))
_MAX_RULES = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    round_trip_s: float = 0.0


def parse_plain(reply: Reply) -> Answer:
    """Status, headers and body; for a refusal also its code."""
    headers = reply.headers
    is_success = 200 <= reply.status < 300
    return Answer(
        status=reply.status,
        code="" if is_success else _error_code(reply.body),
        etag=headers.get("etag", ""),
        size_bytes=_whole(headers.get("content-length")),
        checksums={k: headers[CHECKSUM_HEADERS[k]] for k in _TOLD if CHECKSUM_HEADERS[k] in headers},
        checksum_type=headers.get("x-amz-checksum-type", "").upper()[:40],
        version_id=headers.get("x-amz-version-id"),
        server_time_s=_date(headers.get("date")),
        round_trip_s=reply.round_trip_s,
        expiration=headers.get("x-amz-expiration") or None,
        content_range=headers.get("content-range"),
        body=reply.body if is_success else b"",
    )


def parse_created(reply: Reply) -> Answer:
    answer = parse_plain(reply)
    root = _document(reply.body, "InitiateMultipartUpload") if answer.is_success else None
    upload_id = _text(root, "UploadId") if root is not None else None
    return replace(answer, upload_id=upload_id or None)


def parse_completed(reply: Reply) -> Answer:
    """Success only with a document that names the object's etag: a 200 may still be followed by an error."""
    answer = parse_plain(reply)
    if not answer.is_success:
        return answer
    root = _document(reply.body, "CompleteMultipartUpload")
    etag = _text(root, "ETag") if root is not None else None
    if etag:
        return replace(answer, etag=etag)
    code = _error_code(reply.body)
    if not code:
        return replace(answer, status=None, code="OddAnswer")
    return replace(answer, status=500 if code in _NOT_NOW else 400, code=code)


def parse_page(reply: Reply) -> Answer:
    answer = parse_plain(reply)
    root = _document(reply.body, "ListBucketResult") if answer.is_success else None
    return replace(answer, body=b"", page=_quiet(_page, root) if root is not None else None)


def parse_versioning(reply: Reply) -> Answer:
    answer = parse_plain(reply)
    root = _document(reply.body, "Versioning") if answer.is_success else None
    return replace(answer, body=b"", versioning=None if root is None else (_text(root, "Status") or "")[:40])


def parse_lifecycle(reply: Reply) -> Answer:
    answer = parse_plain(reply)
    if answer.status == 404 and answer.code == "NoSuchLifecycleConfiguration":
        return replace(answer, rules=())
    root = _document(reply.body, "LifecycleConfiguration") if answer.is_success else None
    return replace(answer, body=b"", rules=_quiet(_rules, root) if root is not None else None)


def _document(body: bytes, name: str) -> ET.Element | None:
    """The root if `body` is a document whose name holds `name`, namespaces taken off; else None.

    Servers vary the endings, and the clients that write here do not look at the name at all.
    """
    try:
        root = ET.fromstring(body.lstrip())  # noqa: S314  # expat limits entity growth itself, and resolves no external one
    except (ET.ParseError, ValueError, LookupError):
        return None
    for element in root.iter():
        if isinstance(element.tag, str):
            element.tag = element.tag.rpartition("}")[2]
    return root if name in str(root.tag) else None


def _error_code(body: bytes) -> str:
    root = _document(body, "Error")
    code = (_text(root, "Code") or "") if root is not None else ""
    return code[:80] if code.isascii() and code.isprintable() else ""


def _text(root: ET.Element, path: str) -> str | None:
    text = root.findtext(path)
    return None if text is None else text.strip()


def _quiet(parse: Callable[[ET.Element], T], root: ET.Element) -> T | None:
    """None for a document that lacks what it must have: the check then does not know, which is the safe side."""
    try:
        return parse(root)
    except (ValueError, LookupError):
        return None


def _page(root: ET.Element) -> ListedPage:
    is_encoded = _text(root, "EncodingType") == "url"
    is_truncated = {"true": True, "false": False}[_text(root, "IsTruncated") or ""]
    texts = [element.findtext("Key") or "" for element in root.iterfind("Contents")]
    keys = tuple(unquote_plus(text, errors="strict") if is_encoded else text for text in texts)
    return ListedPage(keys=keys, is_truncated=is_truncated, next_token=root.findtext("NextContinuationToken") or None)


def _rules(root: ET.Element) -> tuple[ExpiryRule, ...]:
    elements = root.findall("Rule")
    if len(elements) > _MAX_RULES:
        raise ValueError("more rules than S3 allows")
    return tuple(_rule(element) for element in elements if _is_acting(element))


def _is_acting(rule: ET.Element) -> bool:
    is_enabled = (_text(rule, "Status") or "").lower() != "disabled"  # an odd word counts as enabled
    return is_enabled and (rule.find("Expiration") is not None or rule.find("Transition") is not None)


def _rule(rule: ET.Element) -> ExpiryRule:
    expiration = rule.find("Expiration")
    acting = expiration if expiration is not None else rule.find("Transition")
    values = [] if acting is None else [f"{child.tag} {(child.text or '').strip()}" for child in acting]
    prefixes = [p.text or "" for p in rule.iter("Prefix")]
    # Taking away a left-over delete marker takes no object away.
    is_marker_only = values == ["ExpiredObjectDeleteMarker true"]
    return ExpiryRule(
        name=(_text(rule, "ID") or "unnamed")[:80],
        prefix=prefixes[0] if prefixes else "",
        is_expiring=expiration is not None and not is_marker_only,
        is_tagged=next(rule.iter("Tag"), None) is not None,
        what=", ".join(values)[:120],
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None


def _date(text: str | None) -> float | None:
    if not text:
        return None
    try:
        seconds = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return seconds if math.isfinite(seconds) else None
