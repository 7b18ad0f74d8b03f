"""The strict server takes a request only if it is signed in full, in time, for this region, with the right keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import boto3
import botocore.auth
import botocore.exceptions
import pytest

from durastore.testing.strict_s3 import StrictS3
from tests.faults.strict_wire import Chunks, WireClient

ODD = ("!'()*", "a b+c%2B", "ümlaut/€", "~=@:,$&;", "a//b", "./x", "x/", 'q"<>')


@pytest.fixture
def wire(strict_s3: StrictS3) -> WireClient:
    return WireClient(strict_s3)


@pytest.mark.parametrize("key", ODD)
def test_odd_keys_are_signed_and_kept_as_they_are(strict_s3: StrictS3, key: str) -> None:
    # case B135, case B128
    bucket, client = strict_s3.make_bucket(), strict_s3.client()
    client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert client.head_object(Bucket=bucket, Key=key)["ContentLength"] == len(key.encode())
    assert client.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    assert [row["Key"] for row in client.list_objects_v2(Bucket=bucket, Prefix=key)["Contents"]] == [key]
    assert strict_s3.stored(bucket, key) == key.encode()
    assert strict_s3.keys(bucket) == [key]


def _client(server: StrictS3, **changes: Any) -> Any:
    keys = {"aws_access_key_id": server.access_key, "aws_secret_access_key": server.secret_key}
    session = boto3.Session(**{**keys, "region_name": server.region, **changes})
    return session.client("s3", endpoint_url=server.endpoint_url)


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"aws_secret_access_key": "wrong"}, "SignatureDoesNotMatch"),
        ({"aws_access_key_id": "DSUNKNOWN"}, "InvalidAccessKeyId"),
        ({"aws_session_token": "stale"}, "InvalidToken"),
    ],
)
def test_other_credentials_are_refused(strict_s3: StrictS3, changes: dict[str, str], code: str) -> None:
    bucket = strict_s3.make_bucket()
    client = _client(strict_s3, **changes)
    with pytest.raises(botocore.exceptions.ClientError, match=code):
        client.put_object(Bucket=bucket, Key="k", Body=b"x")
    client.close()
    assert strict_s3.keys(bucket) == []


def test_another_region_is_refused_and_the_right_one_named(strict_s3: StrictS3, wire: WireClient) -> None:
    bucket = strict_s3.make_bucket()
    wire.region = "eu-west-1"
    answer = wire.put(bucket, "k", body=b"x")
    assert answer.code == "AuthorizationHeaderMalformed"
    assert b"<Region>us-east-1</Region>" in answer.body
    assert strict_s3.keys(bucket) == []


def test_an_unsigned_request_is_refused(strict_s3: StrictS3, wire: WireClient) -> None:
    bucket = strict_s3.make_bucket()
    answer = wire.send("PUT", f"/{bucket}/k", headers={}, body=b"x")
    assert (answer.status, answer.code) == (403, "AccessDenied")
    assert strict_s3.keys(bucket) == []


def test_what_was_signed_cannot_be_changed(strict_s3: StrictS3, wire: WireClient) -> None:
    bucket = strict_s3.make_bucket()
    path = f"/{bucket}/k"
    headers = wire.sign("PUT", path, headers={"x-amz-meta-a": "1"}, payload="UNSIGNED-PAYLOAD")
    assert wire.send("PUT", path, headers={**headers, "x-amz-meta-a": "2"}, body=b"x").code == "SignatureDoesNotMatch"
    assert wire.send("PUT", f"/{bucket}/other", headers=headers, body=b"x").code == "SignatureDoesNotMatch"
    assert wire.send("PUT", f"{path}?tagging2=", headers=headers, body=b"x").code == "SignatureDoesNotMatch"
    assert wire.send("PUT", path, headers={**headers, "x-amz-meta-b": "2"}, body=b"x").code == "AccessDenied"
    assert strict_s3.keys(bucket) == []
    assert wire.send("PUT", path, headers=headers, body=b"x").status == 200


def test_a_signed_body_must_be_the_one_that_came(strict_s3: StrictS3, wire: WireClient) -> None:
    bucket = strict_s3.make_bucket()
    assert wire.put(bucket, "k", body=b"x", payload="0" * 64).code == "XAmzContentSHA256Mismatch"
    assert wire.put(bucket, "k", body=b"x", payload="UNSIGNED-PAYLOAD").status == 200


@pytest.mark.parametrize("minutes, is_taken", [(-14, True), (14, True), (-16, False), (16, False)])
def test_the_clock_counts(
    strict_s3: StrictS3, wire: WireClient, monkeypatch: pytest.MonkeyPatch, minutes: int, is_taken: bool
) -> None:
    # case B150
    bucket, shift = strict_s3.make_bucket(), timedelta(minutes=minutes)
    moment = datetime.now(UTC) + shift
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: moment, raising=False)
    monkeypatch.setattr(botocore.auth, "datetime", _Frozen(moment), raising=False)
    answer = wire.put(bucket, "k", body=b"x")
    assert answer.code == ("" if is_taken else "RequestTimeTooSkewed")
    assert answer.status == (200 if is_taken else 403)


class _Frozen:
    """Stands for the module or the class `datetime`, whichever botocore uses."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment
        self.datetime = self

    def utcnow(self) -> datetime:
        return self._moment.replace(tzinfo=None)

    def now(self, zone: tzinfo | None = None) -> datetime:
        return self._moment if zone is not None else self.utcnow()


def test_chunks_are_signed_one_after_the_other(strict_s3: StrictS3, wire: WireClient) -> None:
    bucket = strict_s3.make_bucket()
    path = f"/{bucket}/k"
    chosen = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    extra = {"x-amz-decoded-content-length": "11", "Content-Encoding": "aws-chunked"}
    headers = wire.sign("PUT", path, headers=extra, payload=chosen)
    chunks = Chunks(strict_s3, headers)
    body = chunks.frame(b"hello ") + chunks.frame(b"world") + chunks.frame(b"")
    assert wire.send("PUT", path, headers=headers, body=body).status == 200
    assert strict_s3.stored(bucket, "k") == b"hello world"
    assert "Content-Encoding" not in wire.get(path).headers
    spoilt = body.replace(b"world", b"wurld")
    assert wire.send("PUT", path, headers=headers, body=spoilt).code == "SignatureDoesNotMatch"
    assert wire.send("PUT", path, headers=headers, body=body[:-40]).code == "IncompleteBody"
    assert strict_s3.stored(bucket, "k") == b"hello world"


def test_a_trailer_carries_a_checksum(strict_s3: StrictS3, wire: WireClient) -> None:
    bucket = strict_s3.make_bucket()
    path = f"/{bucket}/k"
    extra = {"x-amz-decoded-content-length": "5", "x-amz-trailer": "x-amz-checksum-crc32"}
    headers = wire.sign("PUT", path, headers=extra, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    good = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"
    assert wire.send("PUT", path, headers=headers, body=good.replace(b"NhCm", b"NhCn")).code == "BadDigest"
    assert strict_s3.keys(bucket) == []
    answer = wire.send("PUT", path, headers=headers, body=good)
    assert (answer.status, answer.headers["x-amz-checksum-crc32"]) == (200, "NhCmhg==")
    assert strict_s3.stored(bucket, "k") == b"hello"
