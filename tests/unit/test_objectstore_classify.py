"""Every answer has one meaning, whichever client brought it."""

from __future__ import annotations

import pickle
from typing import Any

import botocore.exceptions as boto
import pytest

from durastore import errors
from durastore.model import ObjectKey
from durastore.objectstore.classify import Refusal, classify, classify_refusal

KEY = ObjectKey("p/k")


def _client_error(status: int, code: str, headers: dict[str, str] | None = None) -> boto.ClientError:
    meta: Any = {"HTTPStatusCode": status, "HTTPHeaders": headers or {}, "RequestId": "r", "HostId": "h"}
    return boto.ClientError({"Error": {"Code": code, "Message": "said"}, "ResponseMetadata": meta}, "Op")


@pytest.mark.parametrize(
    "status, code, read, write",
    [
        (404, "NoSuchKey", errors.ObjectAbsent, errors.ObjectAbsent),
        (404, "404", errors.ObjectAbsent, errors.ObjectAbsent),
        (404, "NoSuchBucket", errors.BucketMissing, errors.BucketMissing),
        (404, "NoSuchUpload", errors.RequestRefused, errors.RequestRefused),
        (404, "GatewayPage", errors.UnknownAnswer, errors.UnknownAnswer),
        (403, "403", errors.PermissionRefused, errors.PermissionRefused),
        (403, "AccessDenied", errors.PermissionRefused, errors.PermissionRefused),
        (403, "InvalidAccessKeyId", errors.CredentialsRefused, errors.CredentialsRefused),
        (403, "SignatureDoesNotMatch", errors.CredentialsRefused, errors.CredentialsRefused),
        (400, "ExpiredToken", errors.CredentialsRefused, errors.CredentialsRefused),
        (401, "Unauthorized", errors.CredentialsRefused, errors.CredentialsRefused),
        (403, "RequestTimeTooSkewed", errors.RequestRefused, errors.RequestRefused),
        (403, "InvalidObjectState", errors.RequestRefused, errors.RequestRefused),
        (500, "InternalError", errors.UnknownAnswer, errors.AmbiguousWrite),
        (502, "502", errors.UnknownAnswer, errors.AmbiguousWrite),
        (501, "NotImplemented", errors.RequestRefused, errors.RequestRefused),
        (503, "SlowDown", errors.OverloadedEndpoint, errors.OverloadedEndpoint),
        (503, "503", errors.OverloadedEndpoint, errors.OverloadedEndpoint),
        (429, "TooManyRequests", errors.OverloadedEndpoint, errors.OverloadedEndpoint),
        (400, "RequestLimitExceeded", errors.OverloadedEndpoint, errors.OverloadedEndpoint),
        (500, "SlowDown", errors.UnknownAnswer, errors.AmbiguousWrite),
        (200, "InternalError", errors.UnknownAnswer, errors.AmbiguousWrite),
        (400, "IncompleteBody", errors.UnknownAnswer, errors.UnknownAnswer),
        (400, "RequestTimeout", errors.UnknownAnswer, errors.UnknownAnswer),
        (400, "BadDigest", errors.RequestRefused, errors.RequestRefused),
        (412, "PreconditionFailed", errors.RequestRefused, errors.ObjectExists),
        (409, "ConditionalRequestConflict", errors.UnknownAnswer, errors.UnknownAnswer),
        (301, "PermanentRedirect", errors.ConfigError, errors.ConfigError),
        (400, "AuthorizationHeaderMalformed", errors.ConfigError, errors.ConfigError),
        (400, "InvalidArgument", errors.RequestRefused, errors.RequestRefused),
        (416, "InvalidRange", errors.RequestRefused, errors.RequestRefused),
    ],
)
def test_answers(status: int, code: str, read: type[errors.DurastoreError], write: type[errors.DurastoreError]) -> None:
    assert type(classify(_client_error(status, code), write=False, what="get", key=KEY)) is read
    error = classify(_client_error(status, code), write=True, what="put", key=KEY)
    assert type(error) is write
    assert error.facts["status"] == status
    assert error.facts["server_code"] == code
    assert "p/k" in str(error)
    assert type(pickle.loads(pickle.dumps(error))) is write


def test_a_404_without_an_s3_error_is_not_absence() -> None:
    assert type(classify(_client_error(404, ""), write=False, what="get", key=KEY)) is errors.UnknownAnswer


def test_a_delete_marker_is_told() -> None:
    error = classify(_client_error(404, "404", {"x-amz-delete-marker": "true"}), write=False, what="head", key=KEY)
    assert isinstance(error, errors.ObjectAbsent)
    assert error.facts["is_delete_marker"] is True


@pytest.mark.parametrize(
    "exc, read, write",
    [
        (boto.EndpointConnectionError(endpoint_url="http://h"), errors.EndpointUnreachable, errors.EndpointUnreachable),
        (boto.ConnectTimeoutError(endpoint_url="http://h"), errors.EndpointUnreachable, errors.EndpointUnreachable),
        (
            boto.SSLError(endpoint_url="http://h", error=OSError("e")),
            errors.EndpointUnreachable,
            errors.EndpointUnreachable,
        ),
        (boto.ReadTimeoutError(endpoint_url="http://h"), errors.EndpointUnreachable, errors.AmbiguousWrite),
        (boto.ConnectionClosedError(endpoint_url="http://h"), errors.EndpointUnreachable, errors.AmbiguousWrite),
        (boto.HTTPClientError(error=OSError("e")), errors.EndpointUnreachable, errors.AmbiguousWrite),
        (TimeoutError(), errors.EndpointUnreachable, errors.AmbiguousWrite),
        (ConnectionResetError(), errors.EndpointUnreachable, errors.AmbiguousWrite),
        (boto.NoCredentialsError(), errors.CredentialsRefused, errors.CredentialsRefused),
        (boto.ProfileNotFound(profile="p"), errors.ConfigError, errors.ConfigError),
        (boto.ParamValidationError(report="r"), errors.RequestRefused, errors.RequestRefused),
        (RuntimeError("odd"), errors.UnknownAnswer, errors.AmbiguousWrite),
    ],
)
def test_failures_without_an_answer(
    exc: Exception, read: type[errors.DurastoreError], write: type[errors.DurastoreError]
) -> None:
    assert type(classify(exc, write=False, what="get", key=KEY)) is read
    assert type(classify(exc, write=True, what="put", key=KEY)) is write


def test_our_own_errors_come_back_as_they_are() -> None:
    error = errors.IntegrityError("x")
    assert classify(error, write=True, what="put") is error


def test_no_message_repeats_an_exception_text() -> None:
    exc = boto.ProxyConnectionError(proxy_url="http://user:hunter2@proxy", error="e")
    assert "hunter2" not in str(classify(exc, write=True, what="put", key=KEY))


def test_a_refusal_taken_apart_means_the_same() -> None:
    error = classify_refusal(Refusal(status=503, server_code="SlowDown"), write=True, what="put", key=KEY)
    assert isinstance(error, errors.OverloadedEndpoint)


@pytest.mark.parametrize(
    "url, place, hint",
    [
        ("http://user:secret@127.0.0.1:9/bucket/key?X-Amz-Signature=secret", "127.0.0.1:9", "the server runs"),
        (
            "https://s3.eu-west-1.amazonaws.com/bucket",
            "s3.eu-west-1.amazonaws.com",
            "without endpoint_url AWS is asked",
        ),
        ("http://[broken", "the endpoint", "the server runs"),
    ],
)
def test_a_missing_connection_names_the_server_and_nothing_else_of_its_address(url: str, place: str, hint: str) -> None:
    error = classify(boto.EndpointConnectionError(endpoint_url=url, error="x"), write=False, what="get")
    assert f"no connection to {place} (" in error.message
    assert hint in str(error.hint)
    assert "secret" not in str(error)
