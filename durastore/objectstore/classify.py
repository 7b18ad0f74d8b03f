"""What a failed request means: one table from client exceptions and S3 answers to durastore's errors.

Duty: say for each failure whether the caller should wait, settle, fix something or stop. Works for botocore,
aiobotocore and obstore. Must never put a secret, a signature or an answer's body into a message, and must never call
an unclear answer an absence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from durastore.errors import (
    AmbiguousWrite,
    BucketMissing,
    ConfigError,
    CredentialsRefused,
    DurastoreError,
    EndpointUnreachable,
    ObjectAbsent,
    ObjectExists,
    OverloadedEndpoint,
    PermissionRefused,
    RequestRefused,
    UnknownAnswer,
)
from durastore.model import ObjectKey

__all__ = ["NO_CREDENTIALS_HINT", "Refusal", "classify", "classify_refusal"]

NO_CREDENTIALS_HINT = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; a directory for a bucket is written /dir or ./dir"
)
_CREDENTIALS = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, and that they are those of this endpoint"
_RUNS = "check endpoint_url and that the server runs"
_AWS = "without endpoint_url AWS is asked: set it (--endpoint-url) for another server, or check the network"
_AWS_ENDS = (".amazonaws.com", ".amazonaws.com:443", ".amazonaws.com.cn", ".amazonaws.com.cn:443")
_TLS = "does the server speak https? If it does, name the certificate it is to be trusted by: ca_bundle"

_CREDENTIAL_CODES = frozenset(
    [
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidToken",
        "TokenRefreshRequired",
        "InvalidSecurity",
        "MissingSecurityHeader",
        "MissingAuthenticationToken",
        "UnrecognizedClientException",
        "NotSignedUp",
    ]
)
_OVERLOAD_CODES = frozenset(
    [
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "Throttling",
        "ThrottlingException",
        "RequestThrottled",
        "RequestLimitExceeded",
        "TooManyRequests",
        "TooManyRequestsException",
        "BandwidthLimitExceeded",
        "ServerBusy",
    ]
)
# Refused with a 4xx, but because something broke on the way: the same request can succeed (case B107).
_BROKEN_ON_THE_WAY = frozenset(
    ["IncompleteBody", "RequestTimeout", "RequestTimeoutException", "OperationAborted", "ConditionalRequestConflict"]
)
_PLACE_CODES = frozenset(
    ["PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "InvalidBucketName"]
)
_NO_S3_ERROR = "UnreadableBody"
_ABSENT_CODES = frozenset(("NoSuchKey", "NoSuchVersion", "NotFound", "404", ""))
_HINTS: Mapping[str, str] = MappingProxyType(
    {
        "RequestTimeTooSkewed": "this machine's clock is off: set it",
        "QuotaExceeded": "the bucket's quota is used up",
        "InvalidObjectState": "the object lies in an archive class: restore it first",
        "BadDigest": "the bytes changed on their way, or the checksum was wrong",
    }
)
_NEVER_SENT = frozenset(
    [
        "EndpointConnectionError",
        "ConnectTimeoutError",
        "ProxyConnectionError",
        "SSLError",
        "ClientConnectorError",
        "ClientConnectorDNSError",
        "ClientConnectorCertificateError",
        "ConnectionRefusedError",
        "gaierror",
    ]
)
_NO_CREDENTIALS = frozenset(
    [
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "NoAuthTokenError",
        "TokenRetrievalError",
        "SSOTokenLoadError",
        "UnauthorizedSSOTokenError",
        "SSOError",
        "MetadataRetrievalError",
        "RefreshWithMFAUnsupportedError",
    ]
)
_WRONG_CONFIG = frozenset(
    [
        "ProfileNotFound",
        "NoRegionError",
        "ConfigParseError",
        "ConfigNotFound",
        "InvalidRegionError",
        "UnknownRegionError",
        "InvalidConfigError",
        "InvalidEndpointConfigurationError",
        "EndpointResolutionError",
        "EndpointProviderError",
        "InvalidProxiesConfigError",
        "UnsupportedS3ArnError",
        "InvalidS3AddressingStyleError",
        "UnknownConfigurationKeyError",
        "RecursionError",  # botocore following an endpoint that redirects in circles
    ]
)
_OUR_MISTAKE = frozenset(["ParamValidationError", "ValidationError", "InvalidPathError", "NotSupportedError"])
_RUST_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
_RUST_CODE = re.compile(r"<Code>([A-Za-z0-9._-]{1,80})</Code>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer that was not success: the HTTP status and S3's error code (empty where none came)."""

    status: int
    server_code: str = ""
    is_delete_marker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What was being asked, for messages and for the read/write difference."""

    is_write: bool
    what: str
    key: ObjectKey | str | None

    def title(self) -> str:
        return f"{self.what} {self.key}" if self.key else self.what


def classify(exc: BaseException, *, write: bool, what: str, key: ObjectKey | str | None = None) -> DurastoreError:
    """The durastore error for `exc`; raise it `from exc`. `what` names the operation ("put", "head", ...).

    A `DurastoreError` comes back as it is. Unknown exceptions count as "no clear answer": `AmbiguousWrite` for a write,
    `UnknownAnswer` for a read. Facts on the result: `status` and `server_code` where a server answered.
    """
    if isinstance(exc, DurastoreError):
        return exc
    request = _Request(is_write=write, what=what, key=key)
    refusal = _refusal_of(exc)
    if refusal is not None:
        return classify_refusal(refusal, write=write, what=what, key=key)
    return _classify_transport(exc, request)


def classify_refusal(refusal: Refusal, *, write: bool, what: str, key: ObjectKey | str | None = None) -> DurastoreError:
    """The same for an answer already taken apart."""
    request = _Request(is_write=write, what=what, key=key)
    code, status = refusal.server_code, refusal.status
    facts: dict[str, Any] = {"status": status, "server_code": code}
    said = f"{request.title()}: the endpoint answered {status}{f' {code}' if code and code != str(status) else ''}"
    if status in (429, 503) or (code in _OVERLOAD_CODES and status != 500):
        return OverloadedEndpoint(said, hint="it asks for fewer requests", **facts)
    if status == 501:
        return RequestRefused(said, hint="the endpoint does not implement this", **facts)
    if status >= 500 or status < 300 or code in _BROKEN_ON_THE_WAY or status == 408:
        # A 5xx to a write says neither "done" nor "not done"; a 2xx here is an error document in disguise.
        is_ambiguous = request.is_write and not 300 <= status < 500
        return (AmbiguousWrite if is_ambiguous else UnknownAnswer)(said, **facts)
    if code in _PLACE_CODES or status in (301, 302, 307, 308):
        return ConfigError(said, hint="check bucket name, region and endpoint_url", **facts)
    if status in (401, 403) or code in _CREDENTIAL_CODES:
        return _classify_denied(refusal, said, facts=facts)
    if status == 404:
        return _classify_absent(refusal, said, facts=facts)
    if status == 412 and request.is_write:
        return ObjectExists(said, **facts)
    return RequestRefused(said, hint=_HINTS.get(code), **facts)


def _classify_denied(refusal: Refusal, said: str, *, facts: dict[str, Any]) -> DurastoreError:
    code = refusal.server_code
    if code in _CREDENTIAL_CODES or refusal.status == 401:
        return CredentialsRefused(said, hint=_CREDENTIALS, **facts)
    if code in _HINTS:
        return RequestRefused(said, hint=_HINTS[code], **facts)
    return PermissionRefused(
        said, hint="these credentials may not do this; docs/operations/iam.md tells what is needed", **facts
    )


def _classify_absent(refusal: Refusal, said: str, *, facts: dict[str, Any]) -> DurastoreError:
    code = refusal.server_code
    if code == "NoSuchBucket":
        hint = "check bucket name and endpoint_url; a directory for a bucket is written /dir or ./dir"
        return BucketMissing(said, hint=hint, **facts)
    if code == "NoSuchUpload":
        return RequestRefused(said, **facts)
    if code in _ABSENT_CODES:
        return ObjectAbsent(said, is_delete_marker=refusal.is_delete_marker, **facts)
    return UnknownAnswer(said, **facts)  # a gateway's own 404, say: it does not speak about the key


def _refusal_of(exc: BaseException) -> Refusal | None:
    """The answer inside a botocore `ClientError` or an obstore exception; None where no server answered."""
    response = getattr(exc, "response", None)
    if isinstance(response, dict) and "Error" in response:
        meta = response.get("ResponseMetadata") or {}
        headers = {str(name).lower(): value for name, value in (meta.get("HTTPHeaders") or {}).items()}
        # botocore fills in the status where no body came; a code that lacks means a body that is no S3 error.
        code = str((response.get("Error") or {}).get("Code") or _NO_S3_ERROR)
        status = meta.get("HTTPStatusCode")
        return Refusal(
            status=status if isinstance(status, int) else 0,
            server_code=code,
            is_delete_marker=str(headers.get("x-amz-delete-marker", "")).lower() == "true",
        )
    if not _is_obstore(exc):
        return None
    text = str(exc).partition("\n\nDebug source:")[0]
    status_text = _RUST_STATUS.search(text)
    if status_text is None:
        return Refusal(status=301) if "Received redirect" in text else None
    codes = _RUST_CODE.findall(text)
    return Refusal(status=int(status_text[1]), server_code=codes[-1] if codes else _rust_code(text, status_text.end()))


def _rust_code(text: str, end: int) -> str:
    """Empty for an answer without a body; a name that no table holds for one whose body is not an S3 error."""
    body = text[end:].partition(":")[2].strip()
    return _NO_S3_ERROR if body else ""


def _is_obstore(exc: BaseException) -> bool:
    return type(exc).__module__.startswith("obstore") or (
        isinstance(exc, FileNotFoundError) and "Debug source" in str(exc)
    )


def _classify_transport(exc: BaseException, request: _Request) -> DurastoreError:
    # Class names, not classes: this module serves clients that may not be installed. Names only, no texts: a proxy
    # error's text holds the proxy's URL, and that may hold a password.
    names = {kind.__name__ for kind in type(exc).__mro__}
    title, kind = request.title(), type(exc).__name__
    if names & _NO_CREDENTIALS:
        return CredentialsRefused(f"{title}: no usable AWS credentials ({kind})", hint=NO_CREDENTIALS_HINT)
    if names & _WRONG_CONFIG:
        return ConfigError(
            f"{title}: the S3 configuration cannot be used ({kind})", hint="check profile, region and endpoint_url"
        )
    if names & _OUR_MISTAKE:
        return RequestRefused(f"{title}: the client refused the request ({kind})")
    if names & _NEVER_SENT:
        is_certificate = "SSLError" in names or "ClientConnectorCertificateError" in names
        place = _place_of(exc)
        hint = _TLS if is_certificate else _AWS if place.endswith(_AWS_ENDS) else _RUNS
        return EndpointUnreachable(f"{title}: no connection to {place or 'the endpoint'} ({kind})", hint=hint)
    if request.is_write:
        return AmbiguousWrite(f"{title}: the answer was lost ({kind}); it may or may not have happened")
    if "ResponseParserError" in names:
        return UnknownAnswer(f"{title}: the answer is no S3 answer")
    if _is_transport(names, exc):
        return EndpointUnreachable(f"{title}: the connection broke ({kind})")
    return UnknownAnswer(f"{title}: no clear answer ({kind})")


def _place_of(exc: BaseException) -> str:
    """`host` or `host:port` of what was asked, where botocore or aiohttp tells: without what else a URL may hold."""
    url = (getattr(exc, "kwargs", None) or {}).get("endpoint_url")
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        host, port = (parts.hostname, parts.port) if parts else (getattr(exc, "host", None), getattr(exc, "port", None))
    except ValueError:
        return ""
    return (f"{host}:{port}" if port else host) if isinstance(host, str) else ""


def _is_transport(names: set[str], exc: BaseException) -> bool:
    if isinstance(exc, OSError | TimeoutError | EOFError):
        return True
    if names & {
        "HTTPClientError",
        "ConnectionError",
        "IncompleteReadError",
        "ClientError",
        "HTTPError",
        "ProtocolError",
    }:
        return True
    return _is_obstore(exc) and "HTTP error: " in str(exc)
