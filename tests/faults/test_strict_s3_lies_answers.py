"""Each lie about what is answered: the bytes are there, what is said of them is wrong, late or short."""

from __future__ import annotations

import gzip
import secrets
import time
from typing import Any

import botocore.exceptions
import pytest

from durastore.objectstore.crc import crc64nvme_b64
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from tests.faults.strict_lab import Upload, refused
from tests.faults.strict_wire import WireClient

BODY = secrets.token_bytes(10_000)
CUT = (botocore.exceptions.ResponseStreamingError, botocore.exceptions.IncompleteReadError)


@pytest.fixture
def bucket(strict_s3: StrictS3) -> str:
    """A bucket that holds `k`."""
    bucket = strict_s3.make_bucket()
    strict_s3.client().put_object(Bucket=bucket, Key="k", Body=BODY, ChecksumCRC64NVME=crc64nvme_b64(BODY))
    return bucket


@pytest.fixture
def s3(strict_s3: StrictS3) -> Any:
    return strict_s3.client()


@pytest.fixture
def wire(strict_s3: StrictS3) -> WireClient:
    return WireClient(strict_s3)


@pytest.mark.parametrize("text, stored", [("", None), ("done", b"x")])
def test_a_completion_that_is_none(strict_s3: StrictS3, text: str, stored: bytes | None) -> None:
    # case B53
    for lie in (Lie.COMPLETE_200_ERROR, Lie.COMPLETE_200_EMPTY, Lie.COMPLETE_200_ODD):
        upload = Upload(strict_s3).send([b"x"])
        strict_s3.script(Rule(lie=lie, count=1, amount=0.5, text=text))
        wire, path = WireClient(strict_s3), f"/{upload.bucket}/k?uploadId={upload.where['UploadId']}"
        row = f"<Part><PartNumber>1</PartNumber><ETag>{upload.parts[0]['ETag']}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{row}</CompleteMultipartUpload>"
        started = time.monotonic()
        answer = wire.send(
            "POST", path, headers=wire.sign("POST", path, payload="UNSIGNED-PAYLOAD"), body=body.encode()
        )
        assert answer.status == 200
        assert b"CompleteMultipartUploadResult" not in answer.body
        assert strict_s3.stored(upload.bucket, "k") == stored
        if lie is Lie.COMPLETE_200_ERROR:
            assert time.monotonic() - started >= 0.5
            assert answer.code == "InternalError"
            assert b"?>\n   " in answer.body
        if stored is None:
            upload.complete()
            assert strict_s3.stored(upload.bucket, "k") == b"x"


def test_boto3_sees_the_error_in_a_200(strict_s3: StrictS3) -> None:
    upload = Upload(strict_s3).send([b"x"])
    strict_s3.script(Rule(lie=Lie.COMPLETE_200_ERROR, count=1))
    upload.refuse("InternalError")


def test_a_head_that_is_behind(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B27
    strict_s3.script(Rule(lie=Lie.STALE_HEAD, count=2))
    s3.put_object(Bucket=bucket, Key="k", Body=b"newer")
    sizes = [s3.head_object(Bucket=bucket, Key="k")["ContentLength"] for _ in range(3)]
    assert sizes == [len(BODY), len(BODY), 5]
    strict_s3.script(Rule(lie=Lie.STALE_HEAD, count=1))
    s3.put_object(Bucket=bucket, Key="new", Body=b"x")
    refused("404", s3.head_object, Bucket=bucket, Key="new")
    s3.head_object(Bucket=bucket, Key="new")


def test_a_replica_that_is_behind(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B167
    time.sleep(0.3)
    s3.put_object(Bucket=bucket, Key="k", Body=b"newer")
    strict_s3.script(Rule(lie=Lie.LAGGING_REPLICA, amount=0.25))
    started = time.monotonic()
    sizes = {s3.head_object(Bucket=bucket, Key="k")["ContentLength"] for _ in range(4)}
    if time.monotonic() - started < 0.2:
        assert sizes == {5, len(BODY)}
    time.sleep(0.3)
    assert {s3.head_object(Bucket=bucket, Key="k")["ContentLength"] for _ in range(4)} == {5}


def test_headers_that_lack_or_lie(strict_s3: StrictS3, bucket: str, wire: WireClient, s3: Any) -> None:
    # case B64
    path, headers = f"/{bucket}/k", {"x-amz-checksum-mode": "ENABLED"}
    honest = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    strict_s3.script(Rule(lie=Lie.HEAD_WITHOUT_LENGTH))
    answer = wire.send("HEAD", path, headers=wire.sign("HEAD", path))
    assert answer.status == 200
    assert "Content-Length" not in answer.headers
    assert "content-length" not in s3.head_object(Bucket=bucket, Key="k")["ResponseMetadata"]["HTTPHeaders"]
    strict_s3.script(Rule(lie=Lie.HIDE_CHECKSUM))
    assert "ChecksumCRC64NVME" not in s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    strict_s3.script(Rule(lie=Lie.WRONG_CHECKSUM), Rule(lie=Lie.WRONG_ETAG))
    lying = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert lying["ChecksumCRC64NVME"] != honest["ChecksumCRC64NVME"]
    assert lying["ETag"] != honest["ETag"]
    assert wire.get(path, headers=headers).body == BODY


def test_bodies_that_end_early(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B15, case B56
    for amount, size in ((None, 5000), (7, 7)):
        strict_s3.script(Rule(lie=Lie.TRUNCATE_BODY, amount=amount))
        answer = s3.get_object(Bucket=bucket, Key="k")
        assert answer["ContentLength"] == len(BODY)
        with pytest.raises(CUT):
            answer["Body"].read()
        strict_s3.script(Rule(lie=Lie.SHORT_BODY, amount=amount))
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == BODY[:size]


def test_ranges_that_are_not_the_ones_asked_for(strict_s3: StrictS3, bucket: str, wire: WireClient) -> None:
    # case B58, case B59
    path, headers = f"/{bucket}/k", {"Range": "bytes=100-199"}
    strict_s3.script(Rule(lie=Lie.IGNORE_RANGE))
    answer = wire.get(path, headers=headers)
    assert (answer.status, answer.body) == (200, BODY)
    assert "Content-Range" not in answer.headers
    strict_s3.script(Rule(lie=Lie.WRONG_RANGE))
    answer = wire.get(path, headers=headers)
    assert (answer.status, answer.body) == (206, BODY[200:300])
    assert answer.headers["Content-Range"] == "bytes 200-299/10000"
    last = wire.get(path, headers={"Range": "bytes=9900-9999"})
    assert (last.body, last.headers["Content-Range"]) == (BODY[9800:9900], "bytes 9800-9899/10000")
    strict_s3.script(Rule(lie=Lie.WRONG_RANGE, text="unlabelled"))
    answer = wire.get(path, headers=headers)
    assert (answer.body, answer.headers["Content-Range"]) == (BODY[200:300], "bytes 100-199/10000")


def test_gzip_on_the_way(strict_s3: StrictS3, bucket: str, wire: WireClient) -> None:
    # case B169
    path = f"/{bucket}/k"
    strict_s3.script(Rule(lie=Lie.GZIP))
    assert wire.get(path).body == BODY
    answer = wire.get(path, headers={"Accept-Encoding": "gzip, br"})
    assert (answer.headers["Content-Encoding"], gzip.decompress(answer.body)) == ("gzip", BODY)
    strict_s3.script(Rule(lie=Lie.GZIP_ALWAYS))
    assert gzip.decompress(wire.get(path, headers={"Accept-Encoding": "identity"}).body) == BODY


def test_a_lifecycle_rule_nobody_told_of(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    strict_s3.script(Rule(lie=Lie.LIFECYCLE_RULE, amount=3, text="p/"))
    (rule,) = s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert (rule["Filter"]["Prefix"], rule["Expiration"]["Days"], rule["Status"]) == ("p/", 3, "Enabled")
    assert "Expiration" in s3.put_object(Bucket=bucket, Key="p/k", Body=b"x")
    assert "Expiration" not in s3.head_object(Bucket=bucket, Key="k")


KEYS = [f"k{number:04d}" for number in range(25)]


@pytest.fixture
def full(strict_s3: StrictS3) -> str:
    """A bucket with keys k0000 to k0024."""
    bucket = strict_s3.make_bucket()
    for key in KEYS:
        strict_s3.client().put_object(Bucket=bucket, Key=key, Body=b"x")
    return bucket


def _listed(server: StrictS3, bucket: str, *rules: Rule, operation: str = "list_objects_v2") -> list[list[str]]:
    """At most ten pages of ten under `rules`."""
    server.script(Rule(lie=Lie.PAGE_SIZE, amount=10), *rules)
    pages = []
    for page in server.client().get_paginator(operation).paginate(Bucket=bucket):
        pages.append([row["Key"] for row in page.get("Contents", [])])
        if len(pages) == 10:
            break
    return pages


@pytest.mark.parametrize("operation", ["list_objects_v2", "list_objects"])
def test_listings_that_lie(strict_s3: StrictS3, full: str, operation: str) -> None:
    # case B18, case B141
    def listed(*rules: Rule) -> list[list[str]]:
        return _listed(strict_s3, full, *rules, operation=operation)

    assert listed() == [KEYS[:10], KEYS[10:20], KEYS[20:]]
    assert listed(Rule(lie=Lie.LIST_EMPTY)) == [[]]
    assert listed(Rule(lie=Lie.LIST_SHORT)) == [KEYS[:10]]
    assert listed(Rule(lie=Lie.LIST_SHORT, first=2)) == [KEYS[:10], KEYS[10:20]]
    assert listed(Rule(lie=Lie.LIST_OMITS, amount=4, count=1))[0] == KEYS[:3] + KEYS[7:10]
    assert listed(Rule(lie=Lie.LIST_REPEATS))[2] == [key for key in KEYS[20:] for _ in range(2)]
    unordered = listed(Rule(lie=Lie.LIST_UNORDERED))
    assert unordered[0] == [*KEYS[1:10], KEYS[0]]
    assert sorted(key for page in unordered for key in page) == KEYS


def test_a_listing_without_a_way_on(strict_s3: StrictS3, full: str) -> None:
    strict_s3.script(Rule(lie=Lie.PAGE_SIZE, amount=10), Rule(lie=Lie.LIST_NO_TOKEN))
    answer = strict_s3.client().list_objects_v2(Bucket=full)
    assert answer["IsTruncated"] is True
    assert "NextContinuationToken" not in answer


def test_the_second_listing_version_is_broken(strict_s3: StrictS3, full: str) -> None:
    # case B140
    broken = Rule(lie=Lie.V2_BROKEN)
    with pytest.raises(botocore.exceptions.PaginationError):  # boto3 notices the token that comes again
        _listed(strict_s3, full, broken)
    token, pages = "", []
    for _ in range(3):
        more = {"ContinuationToken": token} if token else {}
        answer = strict_s3.client().list_objects_v2(Bucket=full, **more)
        token = answer["NextContinuationToken"]
        pages.append([row["Key"] for row in answer["Contents"]])
    assert pages == [KEYS[:10]] * 3
    assert _listed(strict_s3, full, broken, operation="list_objects") == [KEYS[:10], KEYS[10:20], KEYS[20:]]


def test_a_listing_that_does_not_encode(strict_s3: StrictS3, wire: WireClient) -> None:
    bucket = strict_s3.make_bucket()
    strict_s3.client().put_object(Bucket=bucket, Key="a b+", Body=b"x")
    path = f"/{bucket}?encoding-type=url&list-type=2"
    assert b"<Key>a%20b%2B</Key>" in wire.get(path).body
    strict_s3.script(Rule(lie=Lie.LIST_UNENCODED))
    answer = wire.get(path)
    assert b"<Key>a b+</Key>" in answer.body
    assert b"EncodingType" not in answer.body
