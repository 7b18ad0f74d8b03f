"""Signature Version 4 as S3 checks it.

Duty: refuse every request that is not signed, in full, with the server's own key, region and clock; say how the body
is signed. Must never show the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from calendar import timegm
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote_plus, unquote_to_bytes

from durastore.testing.strict_s3.answers import S3Refusal, tag
from durastore.testing.strict_s3.wire import HttpHead

__all__ = ["EMPTY_SHA256", "Signature", "Signer"]

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_ALGORITHM = "AWS4-HMAC-SHA256"
_SKEW_LIMIT_S = 900
_FIELDS = re.compile(
    rf"{_ALGORITHM} Credential=([^,\s]+),\s*SignedHeaders=([a-z0-9;_.-]+),\s*Signature=([0-9a-f]{{64}})"
)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._~-]*")
_SPACES = re.compile(r" +")
_SHA256_HEX = re.compile(r"[0-9a-f]{64}")
_STREAMING = frozenset(
    [
        "UNSIGNED-PAYLOAD",
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A signature found right: what the body has to agree with."""

    payload: str
    """x-amz-content-sha256 as sent."""
    value: str
    scope: str
    time: str
    key: bytes

    def sign(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


class Signer:
    """One pair of keys. Thread-safe."""

    def __init__(self, access_key: str, secret_key: str, *, region: str) -> None:
        self._access_key = access_key
        self._secret = secret_key
        self._region = region
        self._keys: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"Signer({self._access_key!r})"

    def check(self, head: HttpHead, *, now_s: float) -> Signature:
        """Return if `head` is signed as it should be; else `S3Refusal`."""
        fields = self._fields(head)
        scope, signed, given = fields.groups()
        date, _ = self._check_scope(scope)
        time = head.headers.get("x-amz-date", "")
        _check_time(time, date=date, now_s=now_s)
        names = signed.split(";")
        _check_names(names, head.headers)
        payload = head.headers.get("x-amz-content-sha256", "")
        if not (payload in _STREAMING or _SHA256_HEX.fullmatch(payload)):
            raise S3Refusal("InvalidArgument", "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-* or a digest")
        key, scope = self._key(date), scope.partition("/")[2]
        canonical = hashlib.sha256(_canonical(head, names, payload=payload).encode("utf-8", "surrogateescape"))
        text = f"{_ALGORITHM}\n{time}\n{scope}\n{canonical.hexdigest()}"
        right = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(right, given):
            message = "The request signature we calculated does not match the signature you provided."
            raise S3Refusal("SignatureDoesNotMatch", message, status=403)
        return Signature(payload=payload, value=given, scope=scope, time=time, key=key)

    def _fields(self, head: HttpHead) -> re.Match[str]:
        text = head.headers.get("authorization")
        if text is None:
            raise S3Refusal("AccessDenied", "Access Denied: the request is not signed", status=403)
        fields = _FIELDS.fullmatch(text)
        if fields is None:
            raise S3Refusal("AuthorizationHeaderMalformed", "The authorization header is malformed.")
        if "x-amz-security-token" in head.headers:
            raise S3Refusal("InvalidToken", "The provided token is malformed or otherwise invalid.")
        return fields

    def _check_scope(self, scope: str) -> tuple[str, str]:
        parts = scope.split("/")
        if len(parts) != 5 or parts[3:] != ["s3", "aws4_request"]:
            raise S3Refusal("AuthorizationHeaderMalformed", "The credential scope is malformed.")
        access_key, date, region = parts[:3]
        if access_key != self._access_key:
            message = "The AWS Access Key Id you provided does not exist in our records."
            raise S3Refusal("InvalidAccessKeyId", message, status=403)
        if region != self._region:
            message = f"the region '{region}' is wrong; expecting '{self._region}'"
            raise S3Refusal("AuthorizationHeaderMalformed", message, more=tag("Region", self._region))
        return date, region

    def _key(self, date: str) -> bytes:
        found = self._keys.get(date)
        if found is None:
            found = f"AWS4{self._secret}".encode()
            for part in (date, self._region, "s3", "aws4_request"):
                found = hmac.digest(found, part.encode(), "sha256")
            self._keys[date] = found
        return found


def _check_time(time: str, *, date: str, now_s: float) -> None:
    try:
        moment = timegm(datetime.strptime(time, "%Y%m%dT%H%M%SZ").timetuple())  # noqa: DTZ007  # timegm reads it as UTC
    except ValueError:
        raise S3Refusal("AccessDenied", "AWS authentication requires a valid x-amz-date header", status=403) from None
    if not time.startswith(date):
        raise S3Refusal("SignatureDoesNotMatch", "x-amz-date and the credential scope differ", status=403)
    if abs(moment - now_s) > _SKEW_LIMIT_S:
        message = "The difference between the request time and the current time is too large."
        raise S3Refusal("RequestTimeTooSkewed", message, status=403)


def _check_names(names: list[str], headers: Mapping[str, str]) -> None:
    if names != sorted(set(names)) or "host" not in names:
        raise S3Refusal("AuthorizationHeaderMalformed", "SignedHeaders must be sorted and hold host")
    unsigned = [name for name in headers if name.startswith("x-amz-") and name not in names]
    if unsigned:
        message = f"There were headers present in the request which were not signed: {', '.join(unsigned)}"
        raise S3Refusal("AccessDenied", message, status=403)


def _canonical(head: HttpHead, names: list[str], *, payload: str) -> str:
    path = head.path
    if not _PLAIN_PATH.fullmatch(path):
        path = quote(unquote_to_bytes(path), safe="/-_.~")
    lines = [head.method, path, _canonical_query(head.query)]
    lines += [f"{name}:{_SPACES.sub(' ', head.headers.get(name, ''))}" for name in names]
    return "\n".join([*lines, "", ";".join(names), payload])


def _canonical_query(query: str) -> str:
    if not query:
        return ""
    pairs = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        pairs.append(tuple(quote(unquote_plus(text), safe="-_.~") for text in (name, value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))
