"""What goes wrong before an operation is looked at: refused, dropped, slowed down.

Duty: tell those lies that keep a request from being carried out.
"""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPMethod

from durastore.clock import SYSTEM_CLOCK
from durastore.testing.strict_s3.answers import Answer, S3Refusal, tag
from durastore.testing.strict_s3.checksums import PREFIX
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.rules import Lie, Rule

__all__ = ["RateLimit", "as_kept", "check_late_refusal", "check_refusals", "odd_answer"]

_HTML = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body>Please sign in.</body></html>"
_SDK_HEADERS = ("x-amz-sdk-checksum-algorithm", "x-amz-trailer", "x-amz-checksum-algorithm", "x-amz-checksum-type")


class RateLimit:
    """So many requests a second, with no more than one second's worth saved up. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: float | None = None
        self._seen_at = 0.0

    def is_over(self, per_s: float) -> bool:
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            saved = per_s if self._left is None else min(per_s, self._left + (now - self._seen_at) * per_s)
            self._seen_at = now
            self._left = saved - 1 if saved >= 1 else saved
            return saved < 1


def as_kept(request: Request) -> Request:
    """The request with its key as a server keeps it that does not keep keys as they are."""
    key = request.key
    if Lie.PLUS_IS_SPACE in request.told:
        key = key.replace("+", " ")
    if Lie.NFC_KEYS in request.told:
        key = unicodedata.normalize("NFC", key)
    return request if key == request.key else replace(request, key=key)


def odd_answer(told: Mapping[Lie, Rule]) -> Answer | None:
    """An answer that is given in the place of any."""
    if Lie.DROP_REQUEST in told:
        return Answer(is_lost=True)
    if (hang := told.get(Lie.HANG)) is not None:
        return Answer(is_lost=True, delay_s=3600.0 if hang.amount is None else hang.amount)
    if Lie.HTML_200 in told:
        return Answer(headers={"Content-Type": "text/html"}, body=_HTML)
    return None


def check_late_refusal(told: Mapping[Lie, Rule]) -> None:
    """The operation was carried out, and yet an error is answered."""
    if (error := told.get(Lie.ERROR_AFTER)) is not None:
        raise S3Refusal(error.text or "InternalError", "scripted", status=int(error.amount or 500))


def check_refusals(request: Request) -> None:
    """Raise what a rule wants this request to be refused with. Its body has been read."""
    told = request.told
    if (error := told.get(Lie.ERROR)) is not None:
        raise S3Refusal(error.text or "InternalError", "scripted", status=int(error.amount or 500))
    if Lie.SLOW_DOWN in told:
        raise slow_down()
    if Lie.FORBIDDEN in told or Lie.FORBIDDEN_HEAD in told:
        raise S3Refusal("AccessDenied", "Access Denied", status=403)
    if Lie.EXPIRED_TOKEN in told:
        raise S3Refusal("ExpiredToken", "The provided token has expired.")
    if Lie.INCOMPLETE_BODY in told:
        message = "You did not provide the number of bytes specified by the Content-Length HTTP header"
        raise S3Refusal("IncompleteBody", message)
    if (redirect := told.get(Lie.REDIRECT)) is not None:
        more = tag("Endpoint", redirect.text or "elsewhere.invalid") + tag("Bucket", request.bucket)
        raise S3Refusal("PermanentRedirect", "Use the other endpoint.", status=301, more=more)
    _check_headers(request)


def slow_down() -> S3Refusal:
    return S3Refusal("SlowDown", "Please reduce your request rate.", status=503)


def _check_headers(request: Request) -> None:
    told, headers = request.told, request.headers
    if Lie.REJECT_CHECKSUM_HEADERS in told:
        found = [name for name in headers if name.startswith(PREFIX) or name in _SDK_HEADERS]
        if found:
            raise S3Refusal("InvalidArgument", f"Unsupported header {found[0]}", status=400)
    is_chunked = headers.get("x-amz-content-sha256", "").startswith("STREAMING-")
    if Lie.REFUSE_AWS_CHUNKED in told and is_chunked:
        raise S3Refusal("NotImplemented", "aws-chunked is not implemented", status=501)
    if Lie.REFUSE_ODD_KEYS in told and request.head.method in (HTTPMethod.PUT, HTTPMethod.POST):
        segments = request.key.split("/")
        if not request.key.isascii() or {"", ".", ".."}.intersection(segments):
            raise S3Refusal("InvalidArgument", "Object name contains unsupported characters.")
