"""Each lie about a whole request does what it says: refusals, broken connections, clocks, checks that are none."""

from __future__ import annotations

import base64
import hashlib
import socket
import time
from typing import Any

import botocore.exceptions
import pytest

from durastore.objectstore.crc import crc64nvme_b64
from durastore.testing.strict_s3 import PROFILES, Lie, Rule, StrictS3
from tests.faults.strict_lab import Upload, refused
from tests.faults.strict_wire import WireClient

BODY = b"0123456789" * 1000
WRONG = crc64nvme_b64(b"other")
LOST = (botocore.exceptions.ConnectionClosedError, botocore.exceptions.HTTPClientError)


@pytest.fixture
def bucket(strict_s3: StrictS3) -> str:
    return strict_s3.make_bucket()


@pytest.fixture
def s3(strict_s3: StrictS3) -> Any:
    return strict_s3.client()


@pytest.mark.parametrize(
    "rule, status, code",
    [
        (Rule(lie=Lie.SLOW_DOWN), 503, "SlowDown"),
        (Rule(lie=Lie.ERROR), 500, "InternalError"),
        (Rule(lie=Lie.ERROR, amount=507, text="QuotaExceeded"), 507, "QuotaExceeded"),
        (Rule(lie=Lie.FORBIDDEN), 403, "AccessDenied"),
        (Rule(lie=Lie.EXPIRED_TOKEN), 400, "ExpiredToken"),
        (Rule(lie=Lie.INCOMPLETE_BODY), 400, "IncompleteBody"),
        (Rule(lie=Lie.CLOCK_SKEW), 403, "RequestTimeTooSkewed"),
    ],
)
def test_a_request_is_refused_as_the_rule_says(
    strict_s3: StrictS3, bucket: str, s3: Any, rule: Rule, status: int, code: str
) -> None:
    # case B50, case B107, case B149, case B150, case B156, case B165
    strict_s3.script(Rule(lie=rule.lie, op="put", first=2, count=2, amount=rule.amount, text=rule.text))
    s3.put_object(Bucket=bucket, Key="first", Body=BODY)
    for key in ("second", "third"):
        answer = refused(code, s3.put_object, Bucket=bucket, Key=key, Body=BODY)
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == status
    s3.put_object(Bucket=bucket, Key="fourth", Body=BODY)
    assert strict_s3.keys(bucket) == ["first", "fourth"]


def test_only_the_keys_of_the_rule(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B01, case B06
    strict_s3.script(Rule(lie=Lie.ERROR, op="put", key_part="/7"))
    for number in range(10):
        if number == 7:
            refused("InternalError", s3.put_object, Bucket=bucket, Key="k/7", Body=b"x")
        else:
            s3.put_object(Bucket=bucket, Key=f"k/{number}", Body=b"x")
    assert "k/7" not in strict_s3.keys(bucket)
    strict_s3.script()
    s3.put_object(Bucket=bucket, Key="k/7", Body=b"x")


def test_an_error_after_all_was_done(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    strict_s3.script(Rule(lie=Lie.ERROR_AFTER, op="put"))
    refused("InternalError", s3.put_object, Bucket=bucket, Key="k", Body=BODY)
    assert strict_s3.stored(bucket, "k") == BODY


def test_lost_requests_and_lost_answers(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B98
    for lie, stored in ((Lie.DROP_REQUEST, None), (Lie.CUT_REQUEST, None), (Lie.DROP_RESPONSE, BODY)):
        strict_s3.script(Rule(lie=lie, op="put"))
        with pytest.raises(LOST):
            s3.put_object(Bucket=bucket, Key=lie.label, Body=BODY)
        assert strict_s3.stored(bucket, lie.label) == stored
        assert strict_s3.requests()[-1].status == 0


def test_a_hanging_request(strict_s3: StrictS3, bucket: str) -> None:
    wire = WireClient(strict_s3)
    strict_s3.script(Rule(lie=Lie.HANG, op="get"))
    headers = wire.sign("GET", f"/{bucket}/k")
    host, _, port = wire.host.partition(":")
    with socket.create_connection((host, int(port)), timeout=0.5) as sock:
        lines = [
            f"GET /{bucket}/k HTTP/1.1",
            f"Host: {wire.host}",
            *(f"{name}: {text}" for name, text in headers.items()),
        ]
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        with pytest.raises(TimeoutError):
            sock.recv(1)


def test_delays_and_slow_lines(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=BODY)
    for rule, least_s in ((Rule(lie=Lie.DELAY, amount=0.3), 0.3), (Rule(lie=Lie.THROTTLE, amount=20_000), 0.35)):
        strict_s3.script(rule)
        started = time.monotonic()
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == BODY
        assert time.monotonic() - started >= least_s
    started = time.monotonic()
    s3.put_object(Bucket=bucket, Key="k2", Body=BODY)
    assert time.monotonic() - started >= 0.35
    assert strict_s3.stored(bucket, "k2") == BODY


def test_a_rate_limit(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B157
    strict_s3.script(Rule(lie=Lie.RATE_LIMIT, amount=20))
    refusals, started = 0, time.monotonic()
    for _ in range(60):
        try:
            s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        except botocore.exceptions.ClientError as exc:
            refusals += exc.response["Error"]["Code"] == "SlowDown"
    allowed = 20 * (1 + time.monotonic() - started)
    assert refusals
    assert 60 - refusals <= allowed + 1
    time.sleep(0.2)
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")


def test_a_web_page_in_the_place_of_an_answer(strict_s3: StrictS3, bucket: str) -> None:
    strict_s3.script(Rule(lie=Lie.HTML_200))
    answer = WireClient(strict_s3).get(f"/{bucket}?list-type=2")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html")
    assert WireClient(strict_s3).put(bucket, "k", body=BODY).body.startswith(b"<!DOCTYPE")
    assert strict_s3.keys(bucket) == []


def test_a_redirect(strict_s3: StrictS3, bucket: str) -> None:
    strict_s3.script(Rule(lie=Lie.REDIRECT, text="other.example"))
    answer = WireClient(strict_s3).get(f"/{bucket}?list-type=2")
    assert (answer.status, answer.code) == (301, "PermanentRedirect")
    assert b"<Endpoint>other.example</Endpoint>" in answer.body


def test_clocks(strict_s3: StrictS3, bucket: str) -> None:
    # case B31, case B143
    wire = WireClient(strict_s3)
    strict_s3.script(Rule(lie=Lie.CLOCK_SKEW, amount=-600))
    answer = wire.put(bucket, "k", body=b"x")
    assert answer.status == 200
    moment = time.mktime(time.strptime(answer.headers["Date"], "%a, %d %b %Y %H:%M:%S GMT")) - time.timezone
    assert -610 < moment - time.time() < -590
    assert strict_s3.client().head_object(Bucket=bucket, Key="k")["LastModified"].timestamp() - time.time() < -590
    strict_s3.script(Rule(lie=Lie.NO_DATE))
    assert "Date" not in wire.get(f"/{bucket}/k").headers


def test_what_a_head_may_not_see(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B165
    s3.put_object(Bucket=bucket, Key="k", Body=BODY)
    strict_s3.script(Rule(lie=Lie.FORBIDDEN_HEAD))
    refused("403", s3.head_object, Bucket=bucket, Key="k")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == BODY
    strict_s3.script(Rule(lie=Lie.ABSENT_IS_403))
    refused("403", s3.head_object, Bucket=bucket, Key="no")
    refused("AccessDenied", s3.get_object, Bucket=bucket, Key="no")
    s3.head_object(Bucket=bucket, Key="k")


def test_owners(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B170
    mine = {"Bucket": bucket, "Key": "k", "ExpectedBucketOwner": "111122223333"}
    strict_s3.script(Rule(lie=Lie.WRONG_OWNER))
    refused("AccessDenied", s3.put_object, **mine, Body=b"x")
    strict_s3.script(Rule(lie=Lie.IGNORE_OWNER), Rule(lie=Lie.WRONG_OWNER))
    s3.put_object(**mine, Body=b"x")
    assert strict_s3.keys(bucket) == ["k"]


def test_a_bucket_made_anew(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B164
    s3.put_object(Bucket=bucket, Key="old", Body=b"x")
    strict_s3.script(Rule(lie=Lie.RECREATED_BUCKET, op="put", first=2, count=1))
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    s3.put_object(Bucket=bucket, Key="new", Body=b"x")
    s3.put_object(Bucket=bucket, Key="newer", Body=b"x")
    assert strict_s3.keys(bucket) == ["new", "newer"]
    assert strict_s3.make_bucket(bucket) == bucket
    assert strict_s3.keys(bucket) == []


def test_restarts_lose_what_was_not_durable(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B62
    s3.put_object(Bucket=bucket, Key="old", Body=b"1")
    time.sleep(3.2)  # a busy machine may take its time between the last put and the restart
    s3.put_object(Bucket=bucket, Key="old", Body=b"2")
    s3.put_object(Bucket=bucket, Key="new", Body=b"3")
    assert s3.head_object(Bucket=bucket, Key="new")["ContentLength"] == 1
    strict_s3.restart_losing(3.0)
    assert strict_s3.keys(bucket) == ["old"]
    assert strict_s3.stored(bucket, "old") == b"1"
    s3.put_object(Bucket=bucket, Key="new", Body=b"4")
    strict_s3.script(Rule(lie=Lie.VOLATILE, op="put", count=1, amount=60))
    with pytest.raises(LOST):
        s3.put_object(Bucket=bucket, Key="newer", Body=b"5")
    assert strict_s3.keys(bucket) == []
    s3.put_object(Bucket=bucket, Key="newer", Body=b"5")
    assert strict_s3.stored(bucket, "newer") == b"5"


def test_checksums_that_are_not_checked(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    put = {"Bucket": bucket, "Key": "k", "Body": BODY}
    head = {"Bucket": bucket, "Key": "k", "ChecksumMode": "ENABLED"}
    strict_s3.script(Rule(lie=Lie.ECHO_CHECKSUM))
    s3.put_object(**put, ChecksumCRC64NVME=WRONG)
    assert s3.head_object(**head)["ChecksumCRC64NVME"] == WRONG
    strict_s3.script(Rule(lie=Lie.IGNORE_CHECKSUM))
    s3.put_object(**put, ChecksumCRC64NVME=WRONG)
    assert "ChecksumCRC64NVME" not in s3.head_object(**head)
    md5 = {"ContentMD5": base64.b64encode(hashlib.md5(b"other", usedforsecurity=False).digest()).decode()}
    refused("BadDigest", s3.put_object, **put, **md5)
    strict_s3.script(Rule(lie=Lie.IGNORE_MD5))
    s3.put_object(**put, **md5)
    refused("BadDigest", s3.put_object, **put, ChecksumCRC64NVME=WRONG)
    assert strict_s3.stored(bucket, "k") == BODY


def test_checksums_of_uploads_that_are_not_checked(strict_s3: StrictS3) -> None:
    # case B162
    for lie, told in ((Lie.ECHO_CHECKSUM, WRONG), (Lie.IGNORE_CHECKSUM, None)):
        strict_s3.script(Rule(lie=lie), Rule(lie=Lie.IGNORE_SIZE))
        upload = Upload(strict_s3, ChecksumAlgorithm="CRC64NVME")
        part = upload.s3.upload_part(**upload.where, PartNumber=1, Body=BODY, ChecksumCRC64NVME=WRONG)
        listed = [{"PartNumber": 1, "ETag": part["ETag"]}]
        upload.complete(listed, ChecksumCRC64NVME=WRONG, ChecksumType="FULL_OBJECT", MpuObjectSize=5)
        head = upload.s3.head_object(Bucket=upload.bucket, Key="k", ChecksumMode="ENABLED")
        assert head.get("ChecksumCRC64NVME") == told
        assert head["ContentLength"] == len(BODY)


def test_conditions_that_are_not_kept(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B161
    s3.put_object(Bucket=bucket, Key="k", Body=b"1")
    strict_s3.script(Rule(lie=Lie.IGNORE_CONDITIONS))
    s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*")
    s3.put_object(Bucket=bucket, Key="k", Body=b"3", IfMatch='"x"')
    assert s3.get_object(Bucket=bucket, Key="k", IfMatch='"x"')["Body"].read() == b"3"
    strict_s3.script(Rule(lie=Lie.REFUSE_CONDITIONS))
    refused("NotImplemented", s3.put_object, Bucket=bucket, Key="new", Body=b"2", IfNoneMatch="*")
    assert strict_s3.keys(bucket) == ["k"]


def test_headers_and_framing_that_are_not_understood(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B55, case B160
    strict_s3.script(Rule(lie=Lie.REJECT_CHECKSUM_HEADERS))
    refused("InvalidArgument", s3.put_object, Bucket=bucket, Key="k", Body=BODY, ChecksumAlgorithm="CRC32")
    refused("InvalidArgument", s3.create_multipart_upload, Bucket=bucket, Key="k", ChecksumAlgorithm="CRC32")
    wire, path, framed = (
        WireClient(strict_s3),
        f"/{bucket}/k",
        b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n",
    )
    assert wire.put(bucket, "k", body=BODY).status == 200
    extra = {"x-amz-decoded-content-length": "5", "x-amz-trailer": "x-amz-checksum-crc32"}
    headers = wire.sign("PUT", path, headers=extra, payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    strict_s3.script(Rule(lie=Lie.REFUSE_AWS_CHUNKED))
    assert wire.send("PUT", path, headers=headers, body=framed).code == "NotImplemented"
    strict_s3.script(Rule(lie=Lie.STORES_AWS_CHUNKED_RAW))
    assert wire.send("PUT", path, headers=headers, body=framed).status == 200
    assert strict_s3.stored(bucket, "k") == framed


def test_a_short_body_that_is_taken(strict_s3: StrictS3, bucket: str) -> None:
    strict_s3.script(Rule(lie=Lie.ACCEPT_SHORT_BODY))
    wire, path = WireClient(strict_s3), f"/{bucket}/k"
    headers = wire.sign("PUT", path, payload="UNSIGNED-PAYLOAD")
    host, _, port = wire.host.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        lines = [f"PUT {path} HTTP/1.1", f"Host: {wire.host}", "Content-Length: 1000"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + b"x" * 500)
        sock.shutdown(socket.SHUT_WR)
        assert b" 200 " in sock.makefile("rb").readline()
    assert strict_s3.stored(bucket, "k") == b"x" * 500


def test_keys_that_are_not_kept_as_they_are(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B128, case B136
    strict_s3.script(Rule(lie=Lie.PLUS_IS_SPACE), Rule(lie=Lie.NFC_KEYS))
    s3.put_object(Bucket=bucket, Key="a+b", Body=b"x")
    s3.put_object(Bucket=bucket, Key="u\u0308", Body=b"x")
    assert strict_s3.keys(bucket) == ["a b", "\u00fc"]
    strict_s3.script(Rule(lie=Lie.REFUSE_ODD_KEYS))
    for key in ("a//b", "a/../b", "./a", "\u00fc"):
        refused("InvalidArgument", s3.put_object, Bucket=bucket, Key=key, Body=b"x")
    s3.put_object(Bucket=bucket, Key="a/b", Body=b"x")


def test_profiles_are_what_they_are_called(strict_s3: StrictS3, bucket: str) -> None:
    wire = WireClient(strict_s3)
    crc = {"x-amz-checksum-crc64nvme": WRONG}
    md5 = {"Content-MD5": base64.b64encode(hashlib.md5(b"other", usedforsecurity=False).digest()).decode()}
    expected = {"honest": (400, 400, 412), "md5-only": (200, 400, 200), "echo": (200, 400, 200)}
    expected["checks-nothing"] = (200, 200, 412)
    assert set(expected) == set(PROFILES)
    for name, statuses in expected.items():
        strict_s3.script(*PROFILES[name])
        wire.put(bucket, "k", body=BODY)
        requests = (crc, md5, {"If-None-Match": "*"})
        assert tuple(wire.put(bucket, "k", body=BODY, headers=headers).status for headers in requests) == statuses
