"""Pages of a bucket: ListObjects, ListObjectsV2, ListObjectVersions, ListMultipartUploads.

Duty: byte order, at most 1000 a page, prefixes and delimiters as S3 has them, keys url-encoded where asked for.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

from durastore.testing.strict_s3.answers import Answer, S3Refusal, tag, xml_answer
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.rules import Lie
from durastore.testing.strict_s3.storage import ACCOUNT, Bucket, Version

__all__ = ["Page", "iso_time", "list_uploads", "list_v1", "list_v2", "list_versions"]

_PAGE = 1000


@dataclass(slots=True, kw_only=True)
class Page:
    """Keys and common prefixes in order, and where the next page starts."""

    rows: list[tuple[str, Version]] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    last: str = ""
    is_truncated: bool = False


def iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def list_v2(bucket: Bucket, request: Request) -> Answer:
    token = request.query.get("continuation-token")
    after = _parse_token(token) if token is not None else request.query.get("start-after", "")
    if Lie.V2_BROKEN in request.told:
        after = ""
    page = _page(bucket, request, after=after)
    encode = _encoder(request)
    more = _next("NextContinuationToken", _token(page.last), page=page, request=request)
    inner = [tag("Name", bucket.name), tag("Prefix", encode(request.query.get("prefix", "")))]
    inner += [tag("MaxKeys", _page_size(request)), tag("KeyCount", len(page.rows) + len(page.prefixes)), more]
    if token is not None:
        inner.append(tag("ContinuationToken", token))
    if "start-after" in request.query:
        inner.append(tag("StartAfter", encode(request.query["start-after"])))
    return xml_answer("ListBucketResult", "".join(inner) + _rows(page, request))


def list_v1(bucket: Bucket, request: Request) -> Answer:
    encode = _encoder(request)
    page = _page(bucket, request, after=request.query.get("marker", ""))
    more = _next("NextMarker", encode(page.last), page=page, request=request)
    inner = [tag("Name", bucket.name), tag("Prefix", encode(request.query.get("prefix", "")))]
    inner += [tag("Marker", encode(request.query.get("marker", ""))), tag("MaxKeys", _page_size(request)), more]
    return xml_answer("ListBucketResult", "".join(inner) + _rows(page, request))


def list_versions(bucket: Bucket, request: Request) -> Answer:
    """Every version and delete marker, newest first within a key. A key's versions are never split over two pages."""
    prefix, limit = request.query.get("prefix", ""), _page_size(request)
    after, encode = request.query.get("key-marker", ""), _encoder(request)
    rows: list[str] = []
    last, is_truncated = "", False
    for key in bucket.keys_from(max(prefix, f"{after}\0" if after else "")):
        if not key.startswith(prefix):
            break
        if len(rows) >= limit:
            is_truncated = True
            break
        rows += _version_rows(bucket, key, encode=encode)
        last = key
    inner = [tag("Name", bucket.name), tag("Prefix", encode(prefix)), tag("KeyMarker", encode(after))]
    inner += [tag("MaxKeys", limit), tag("IsTruncated", str(is_truncated).lower())]
    if is_truncated:
        inner.append(tag("NextKeyMarker", encode(last)))
    return xml_answer("ListVersionsResult", "".join(inner) + _encoding(request) + "".join(rows))


def _version_rows(bucket: Bucket, key: str, *, encode: Callable[[str], str]) -> list[str]:
    history = bucket.history(key)
    shown = history if bucket.versioning else [version for version in history[-1:] if not version.is_marker]
    rows = []
    for version in reversed(shown):
        inner = tag("Key", encode(key)) + tag("VersionId", version.version_id)
        inner += tag("IsLatest", str(version is history[-1]).lower()) + tag(
            "LastModified", iso_time(version.modified_s)
        )
        if version.is_marker:
            rows.append(f"<DeleteMarker>{inner}</DeleteMarker>")
            continue
        inner += (
            tag("ETag", version.etag) + tag("Size", version.size_bytes) + tag("StorageClass", version.storage_class)
        )
        rows.append(f"<Version>{inner}</Version>")
    return rows


def list_uploads(bucket: Bucket, request: Request) -> Answer:
    prefix, limit, encode = request.query.get("prefix", ""), _page_size(request, "max-uploads"), _encoder(request)
    after = (request.query.get("key-marker", ""), request.query.get("upload-id-marker", ""))
    found = sorted((upload.key, upload.upload_id) for upload in bucket.uploads.values())
    if "upload-id-marker" in request.query:
        found = [row for row in found if row > after]
    else:
        found = [row for row in found if row[0] > after[0] or not after[0]]
    found = [row for row in found if row[0].startswith(prefix)]
    page = found[:limit]
    inner = [tag("Bucket", bucket.name), tag("Prefix", encode(prefix)), tag("MaxUploads", limit)]
    inner.append(tag("IsTruncated", str(len(page) < len(found)).lower()))
    if page and len(page) < len(found):
        inner += [tag("NextKeyMarker", encode(page[-1][0])), tag("NextUploadIdMarker", page[-1][1])]
    for key, upload_id in page:
        row = tag("Key", encode(key)) + tag("UploadId", upload_id)
        row += tag("Initiated", iso_time(bucket.uploads[upload_id].initiated_s)) + tag("StorageClass", "STANDARD")
        inner.append(f"<Upload>{row}</Upload>")
    return xml_answer("ListMultipartUploadsResult", "".join(inner) + _encoding(request))


def _page(bucket: Bucket, request: Request, *, after: str) -> Page:
    """Up to a page of what follows `after`."""
    prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
    limit, page = _page_size(request), Page()
    keys = bucket.keys_from(max(prefix, _beyond(after, prefix=prefix, delimiter=delimiter)))
    while (key := next(keys, None)) is not None and key.startswith(prefix):
        version = bucket.latest(key)
        if version is None or version.is_marker:
            continue
        if len(page.rows) + len(page.prefixes) >= limit:
            page.is_truncated = limit > 0
            break
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            page.rows.append((key, version))
            page.last = key
        else:
            page.last = key[: cut + len(delimiter)]
            page.prefixes.append(page.last)
            keys = bucket.keys_from(_successor(page.last))
    _bend(page, request)
    return page


def _beyond(after: str, *, prefix: str, delimiter: str) -> str:
    """The least key that may follow `after`; past all of its keys where it is a common prefix of this listing."""
    if not after:
        return ""
    if delimiter and after.endswith(delimiter) and after.startswith(prefix) and len(after) > len(prefix):
        return _successor(after)
    return f"{after}\0"


def _successor(prefix: str) -> str:
    """The least text above every text that starts with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _page_size(request: Request, name: str = "max-keys") -> int:
    rule = request.told.get(Lie.PAGE_SIZE)
    most = int(rule.amount) if rule is not None and rule.amount else _PAGE
    return min(request.number(name, default=most), most)


def _encoder(request: Request) -> Callable[[str], str]:
    kind = request.query.get("encoding-type")
    if kind not in (None, "url"):
        raise S3Refusal("InvalidArgument", "Invalid Encoding Method specified in Request")
    if kind is None or Lie.LIST_UNENCODED in request.told:
        return str
    return lambda text: quote(text, safe="/-_.~*") if not text.isalnum() or not text.isascii() else text


def _encoding(request: Request) -> str:
    is_encoded = "encoding-type" in request.query and Lie.LIST_UNENCODED not in request.told
    return tag("EncodingType", "url") if is_encoded else ""


def _next(name: str, value: str, *, page: Page, request: Request) -> str:
    text = tag("IsTruncated", str(page.is_truncated).lower())
    return text + tag(name, value) if page.is_truncated and Lie.LIST_NO_TOKEN not in request.told else text


def _rows(page: Page, request: Request) -> str:
    encode = _encoder(request)
    has_owner = request.op == "list_v1" or request.query.get("fetch-owner") == "true"
    owner = f"<Owner>{tag('ID', ACCOUNT)}</Owner>" if has_owner else ""
    parts = [_encoding(request)]
    if "delimiter" in request.query:
        parts.append(tag("Delimiter", encode(request.query["delimiter"])))
    for key, version in page.rows:
        parts.append(
            f"<Contents>{tag('Key', encode(key))}<LastModified>{iso_time(version.modified_s)}</LastModified>"
            f"<ETag>{version.etag}</ETag><Size>{version.size_bytes}</Size>{owner}"
            f"<StorageClass>{version.storage_class}</StorageClass></Contents>"
        )
    parts += [f"<CommonPrefixes>{tag('Prefix', encode(prefix))}</CommonPrefixes>" for prefix in page.prefixes]
    return "".join(parts)


def _bend(page: Page, request: Request) -> None:
    """Make the page what the lies have of it."""
    told = request.told
    if Lie.LIST_EMPTY in told:
        page.rows, page.prefixes, page.is_truncated = [], [], False
    if Lie.LIST_SHORT in told:
        page.is_truncated = False
    if (omits := told.get(Lie.LIST_OMITS)) is not None:
        # From the middle of the page, as a dropped run of an index does it.
        lost = int(omits.amount or 3)
        start = max(0, (len(page.rows) - lost) // 2)
        page.rows = page.rows[:start] + page.rows[start + lost :]
    if Lie.LIST_REPEATS in told:
        page.rows = [row for row in page.rows for _ in range(2)]
    if Lie.LIST_UNORDERED in told:
        page.rows = page.rows[1:] + page.rows[:1]


def _token(last: str) -> str:
    return base64.urlsafe_b64encode(f"after:{last}".encode()).decode()


def _parse_token(token: str) -> str:
    try:
        text = base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, ValueError):
        text = ""
    if not text.startswith("after:"):
        raise S3Refusal("InvalidArgument", "The continuation token provided is incorrect")
    return text.removeprefix("after:")
