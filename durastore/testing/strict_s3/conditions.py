"""If-Match and its kin, the expected owner, byte ranges: what a request makes its success depend on.

Duty: refuse where a condition does not hold. Must never weaken one, unless a rule says to.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

from durastore.testing.strict_s3.answers import S3Refusal
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.rules import Lie
from durastore.testing.strict_s3.storage import Bucket, Version

__all__ = ["check_owner", "check_read_conditions", "check_write_conditions", "parse_range"]

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_OTHER_ACCOUNT = "999988887777"


def check_owner(bucket: Bucket, request: Request) -> None:
    expected = request.headers.get("x-amz-expected-bucket-owner")
    owner = _OTHER_ACCOUNT if Lie.WRONG_OWNER in request.told else bucket.owner
    if expected is not None and expected != owner and Lie.IGNORE_OWNER not in request.told:
        raise S3Refusal("AccessDenied", "Access Denied", status=403)


def check_write_conditions(bucket: Bucket, request: Request) -> None:
    """For the key as it is at this moment; hold the lock."""
    none_match, match = request.headers.get("if-none-match"), request.headers.get("if-match")
    if none_match is None and match is None:
        return
    if Lie.REFUSE_CONDITIONS in request.told or none_match not in (None, "*") or (none_match and match):
        raise S3Refusal("NotImplemented", "A header you provided implies functionality not implemented", status=501)
    if Lie.IGNORE_CONDITIONS in request.told:
        return
    version = bucket.latest(request.key)
    is_there = version is not None and not version.is_marker
    if none_match and is_there:
        raise _failed("If-None-Match")
    if match is not None:
        if version is None or not is_there:
            raise S3Refusal("NoSuchKey", "The specified key does not exist.", status=404)
        if not _names(match, version.etag):
            raise _failed("If-Match")


def check_read_conditions(version: Version, request: Request) -> None:
    if Lie.IGNORE_CONDITIONS in request.told:
        return
    headers = request.headers
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    since, until = headers.get("if-modified-since"), headers.get("if-unmodified-since")
    if match is not None:
        if not _names(match, version.etag):
            raise _failed("If-Match")
    elif until is not None and version.modified_s > _seconds(until) + 1:
        raise _failed("If-Unmodified-Since")
    unchanged = S3Refusal("NotModified", status=304, headers={"ETag": version.etag})
    if none_match is not None:
        if _names(none_match, version.etag):
            raise unchanged
    elif since is not None and version.modified_s <= _seconds(since):
        raise unchanged


def parse_range(request: Request, size_bytes: int) -> tuple[int, int] | None:
    """Start and stop of the range asked for; None for the whole object, also where the header is no single range."""
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        start, stop = max(0, size_bytes - int(match[2])), size_bytes
    else:
        start = int(match[1])
        stop = size_bytes if match[2] == "" else min(int(match[2]) + 1, size_bytes)
        if match[2] != "" and int(match[2]) < start:
            return None
    if start >= stop:
        headers = {"Content-Range": f"bytes */{size_bytes}"}
        raise S3Refusal("InvalidRange", "The requested range is not satisfiable", status=416, headers=headers)
    return start, stop


def _failed(condition: str) -> S3Refusal:
    message = "At least one of the pre-conditions you specified did not hold"
    return S3Refusal("PreconditionFailed", message, status=412, more=f"<Condition>{condition}</Condition>")


def _names(header: str, etag: str) -> bool:
    return any(part.strip().strip('"') in ("*", etag.strip('"')) for part in header.split(","))


def _seconds(text: str) -> float:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        raise S3Refusal("InvalidArgument", "not an HTTP date") from None
