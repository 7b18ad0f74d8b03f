"""The strict server, honest: checksums, conditions, ranges, versions and refusals of single objects, asked by boto3."""

from __future__ import annotations

import base64
import gzip
import hashlib
import secrets
import socket
import zlib
from typing import Any

import pytest
import xxhash
from awscrt.checksums import crc32c

from durastore.objectstore.crc import crc64nvme_b64
from durastore.testing.strict_s3 import StrictS3
from tests.faults.strict_lab import refused
from tests.faults.strict_wire import WireClient

BODY = b"The body of the object, long enough to take ranges of."


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


RIGHT = {
    "crc32": _b64(zlib.crc32(BODY).to_bytes(4, "big")),
    "crc32c": _b64(crc32c(BODY).to_bytes(4, "big")),
    "crc64nvme": crc64nvme_b64(BODY),
    "sha1": _b64(hashlib.sha1(BODY, usedforsecurity=False).digest()),
    "sha256": _b64(hashlib.sha256(BODY).digest()),
    "sha512": _b64(hashlib.sha512(BODY).digest()),
    "md5": _b64(hashlib.md5(BODY, usedforsecurity=False).digest()),
    "xxhash64": _b64(xxhash.xxh64_digest(BODY)),
    "xxhash3": _b64(xxhash.xxh3_64_digest(BODY)),
    "xxhash128": _b64(xxhash.xxh3_128_digest(BODY)),
}


@pytest.fixture
def bucket(strict_s3: StrictS3) -> str:
    return strict_s3.make_bucket()


@pytest.fixture
def s3(strict_s3: StrictS3) -> Any:
    return strict_s3.client()


@pytest.fixture
def wire(strict_s3: StrictS3) -> WireClient:
    return WireClient(strict_s3)


@pytest.mark.parametrize("algorithm", sorted(RIGHT))
def test_each_checksum_is_checked_kept_and_told(
    strict_s3: StrictS3, bucket: str, wire: WireClient, algorithm: str
) -> None:
    name = f"x-amz-checksum-{algorithm}"
    right = RIGHT[algorithm]
    wrong = _b64(bytes([base64.b64decode(right)[0] ^ 1]) + base64.b64decode(right)[1:])
    assert wire.put(bucket, "k", body=BODY, headers={name: wrong}).code == "BadDigest"
    assert wire.put(bucket, "k", body=BODY, headers={name: right[:-4]}).code == "InvalidRequest"
    assert wire.put(bucket, "k", body=BODY, headers={name: "not base64"}).code == "InvalidRequest"
    assert strict_s3.stored(bucket, "k") is None
    put = wire.put(bucket, "k", body=BODY, headers={name: right})
    assert (put.status, put.headers[name]) == (200, right)
    told = wire.get(f"/{bucket}/k", headers={"x-amz-checksum-mode": "ENABLED"})
    assert (told.headers[name], told.headers["x-amz-checksum-type"]) == (right, "FULL_OBJECT")
    assert name not in wire.get(f"/{bucket}/k").headers
    part = wire.get(f"/{bucket}/k", headers={"x-amz-checksum-mode": "ENABLED", "Range": "bytes=0-3"})
    assert name not in part.headers


def test_content_md5_is_checked(bucket: str, wire: WireClient) -> None:
    wrong = _b64(hashlib.md5(b"other", usedforsecurity=False).digest())
    assert wire.put(bucket, "k", body=BODY, headers={"Content-MD5": wrong}).code == "BadDigest"
    assert wire.put(bucket, "k", body=BODY, headers={"Content-MD5": "x"}).code == "InvalidDigest"
    assert wire.put(bucket, "k", body=BODY, headers={"Content-MD5": RIGHT["md5"]}).status == 200


def test_checksum_headers_must_make_sense(bucket: str, wire: WireClient) -> None:
    two = {"x-amz-checksum-crc32": RIGHT["crc32"], "x-amz-checksum-sha1": RIGHT["sha1"]}
    assert wire.put(bucket, "k", body=BODY, headers=two).code == "InvalidRequest"
    announced = {"x-amz-sdk-checksum-algorithm": "CRC32"}
    assert wire.put(bucket, "k", body=BODY, headers=announced).code == "InvalidRequest"
    unknown = {"x-amz-sdk-checksum-algorithm": "CRC99"}
    assert wire.put(bucket, "k", body=BODY, headers=unknown).code == "InvalidRequest"


def test_without_a_checksum_the_server_makes_its_own(bucket: str, wire: WireClient, s3: Any) -> None:
    wire.put(bucket, "k", body=BODY)
    answer = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert answer["ChecksumCRC64NVME"] == RIGHT["crc64nvme"]
    assert answer["ETag"].strip('"') == hashlib.md5(BODY, usedforsecurity=False).hexdigest()


def test_create_only_and_if_match(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    refused("NoSuchKey", s3.put_object, Bucket=bucket, Key="k", Body=b"1", IfMatch='"x"')
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    answer = refused("PreconditionFailed", s3.put_object, Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 412
    refused("PreconditionFailed", s3.put_object, Bucket=bucket, Key="k", Body=b"2", IfMatch='"x"')
    refused("NotImplemented", s3.put_object, Bucket=bucket, Key="k", Body=b"2", IfNoneMatch='"x"')
    assert strict_s3.stored(bucket, "k") == b"1"
    s3.put_object(Bucket=bucket, Key="k", Body=b"3", IfMatch=etag)
    assert strict_s3.stored(bucket, "k") == b"3"


def test_conditions_of_reads(bucket: str, s3: Any) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=BODY)["ETag"]
    modified = s3.head_object(Bucket=bucket, Key="k")["LastModified"]
    for call in (s3.get_object, s3.head_object):
        assert call(Bucket=bucket, Key="k", IfMatch=etag)["ETag"] == etag
        code = "PreconditionFailed" if call == s3.get_object else "412"
        refused(code, call, Bucket=bucket, Key="k", IfMatch='"x"')
        refused("304", call, Bucket=bucket, Key="k", IfNoneMatch=etag)
        refused("304", call, Bucket=bucket, Key="k", IfModifiedSince=modified.replace(year=modified.year + 1))
        refused(code, call, Bucket=bucket, Key="k", IfUnmodifiedSince=modified.replace(year=modified.year - 1))


@pytest.mark.parametrize(
    "text, start, stop",
    [("bytes=0-0", 0, 1), ("bytes=5-9", 5, 10), ("bytes=50-", 50, 54), ("bytes=-4", 50, 54), ("bytes=40-999", 40, 54)],
)
def test_ranges(bucket: str, wire: WireClient, text: str, start: int, stop: int) -> None:
    wire.put(bucket, "k", body=BODY)
    answer = wire.get(f"/{bucket}/k", headers={"Range": text})
    assert (answer.status, answer.body) == (206, BODY[start:stop])
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(BODY)}"


def test_odd_ranges(bucket: str, wire: WireClient) -> None:
    wire.put(bucket, "k", body=BODY)
    for text in ("bytes=54-", "bytes=99-100", "bytes=-0"):
        answer = wire.get(f"/{bucket}/k", headers={"Range": text})
        assert (answer.status, answer.code, answer.headers["Content-Range"]) == (416, "InvalidRange", "bytes */54")
    for text in ("bytes=5-2", "bytes=0-1,4-5", "lines=1-2", "bytes=-"):
        answer = wire.get(f"/{bucket}/k", headers={"Range": text})
        assert (answer.status, answer.body) == (200, BODY)


def test_absence_is_told_apart(bucket: str, s3: Any) -> None:
    refused("NoSuchKey", s3.get_object, Bucket=bucket, Key="k")
    refused("404", s3.head_object, Bucket=bucket, Key="k")
    refused("NoSuchBucket", s3.get_object, Bucket="no-such-bucket", Key="k")
    refused("NoSuchBucket", s3.put_object, Bucket="no-such-bucket", Key="k", Body=b"")
    refused("404", s3.head_bucket, Bucket="no-such-bucket")
    s3.head_bucket(Bucket=bucket)


def test_metadata_and_headers_come_back(bucket: str, s3: Any) -> None:
    metadata = {"durastore-write-id": "abc", "other": "x  y"}
    body = gzip.compress(b"x")
    s3.put_object(Bucket=bucket, Key="k", Body=body, Metadata=metadata, ContentType="text/x", ContentEncoding="gzip")
    answer = s3.head_object(Bucket=bucket, Key="k")
    assert (answer["Metadata"], answer["ContentType"], answer["ContentEncoding"]) == (metadata, "text/x", "gzip")
    refused("MetadataTooLarge", s3.put_object, Bucket=bucket, Key="k", Body=b"", Metadata={"a": "x" * 2048})


def test_limits_of_keys_and_classes(bucket: str, s3: Any) -> None:
    s3.put_object(Bucket=bucket, Key="x" * 1024, Body=b"")
    refused("KeyTooLongError", s3.put_object, Bucket=bucket, Key="x" * 1025, Body=b"")
    refused("InvalidStorageClass", s3.put_object, Bucket=bucket, Key="k", Body=b"", StorageClass="COLD")


def test_an_archived_object_answers_head_and_not_get(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=BODY, StorageClass="DEEP_ARCHIVE")
    assert s3.head_object(Bucket=bucket, Key="k")["StorageClass"] == "DEEP_ARCHIVE"
    refused("InvalidObjectState", s3.get_object, Bucket=bucket, Key="k")
    assert strict_s3.stored(bucket, "k") == BODY


def test_the_etag_under_kms_is_no_md5(bucket: str, s3: Any) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=BODY, ServerSideEncryption="aws:kms")["ETag"]
    assert hashlib.md5(BODY, usedforsecurity=False).hexdigest() not in etag
    assert s3.head_object(Bucket=bucket, Key="k")["ETag"] == etag


def test_a_body_that_stops_early_is_not_stored(strict_s3: StrictS3, bucket: str, wire: WireClient) -> None:
    path = f"/{bucket}/k"
    headers = wire.sign("PUT", path, payload="UNSIGNED-PAYLOAD")
    host, _, port = wire.host.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        lines = [f"PUT {path} HTTP/1.1", f"Host: {wire.host}", "Content-Length: 1000"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + b"x" * 500)
        sock.shutdown(socket.SHUT_WR)
        answer = sock.makefile("rb").read()
    assert b"400" in answer.splitlines()[0]
    assert b"IncompleteBody" in answer
    assert strict_s3.stored(bucket, "k") is None


def test_a_body_of_unannounced_length_is_refused(bucket: str, wire: WireClient) -> None:
    path = f"/{bucket}/k"
    headers = wire.sign("PUT", path, payload="UNSIGNED-PAYLOAD")
    chunked = {**headers, "Transfer-Encoding": "chunked", "Content-Length": "0"}
    assert wire.send("PUT", path, headers=chunked, body=b"1\r\nx\r\n0\r\n\r\n").code == "NotImplemented"


def test_the_expected_owner(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B170
    other = strict_s3.make_bucket(owner="999988887777")
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ExpectedBucketOwner="111122223333")
    for call, more in ((s3.put_object, {"Body": b"x"}), (s3.get_object, {}), (s3.head_object, {})):
        code = "403" if call == s3.head_object else "AccessDenied"
        refused(code, call, Bucket=other, Key="k", ExpectedBucketOwner="111122223333", **more)
    refused("AccessDenied", s3.list_objects_v2, Bucket=other, ExpectedBucketOwner="111122223333")
    assert strict_s3.keys(other) == []


def test_versions_and_delete_markers(strict_s3: StrictS3, s3: Any) -> None:
    # case B147
    bucket = strict_s3.make_bucket(is_versioned=True)
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["VersionId"]
    second = s3.put_object(Bucket=bucket, Key="k", Body=b"2")["VersionId"]
    assert first != second
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"2"
    assert s3.get_object(Bucket=bucket, Key="k", VersionId=first)["Body"].read() == b"1"
    marker = s3.delete_object(Bucket=bucket, Key="k")["VersionId"]
    answer = refused("404", s3.head_object, Bucket=bucket, Key="k")
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-amz-delete-marker"] == "true"
    refused("MethodNotAllowed", s3.get_object, Bucket=bucket, Key="k", VersionId=marker)
    refused("NoSuchVersion", s3.get_object, Bucket=bucket, Key="k", VersionId="unknown")
    assert s3.get_object(Bucket=bucket, Key="k", VersionId=second)["Body"].read() == b"2"
    listed = s3.list_object_versions(Bucket=bucket)
    assert [row["VersionId"] for row in listed["Versions"]] == [second, first]
    assert [(row["VersionId"], row["IsLatest"]) for row in listed["DeleteMarkers"]] == [(marker, True)]
    assert strict_s3.keys(bucket) == []
    s3.delete_object(Bucket=bucket, Key="k", VersionId=marker)
    assert strict_s3.stored(bucket, "k") == b"2"


def test_bucket_settings(strict_s3: StrictS3, s3: Any) -> None:
    bucket = f"made-{secrets.token_hex(4)}"
    s3.create_bucket(Bucket=bucket)
    refused("BucketAlreadyOwnedByYou", s3.create_bucket, Bucket=bucket)
    assert bucket in [row["Name"] for row in s3.list_buckets()["Buckets"]]
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    refused("NoSuchLifecycleConfiguration", s3.get_bucket_lifecycle_configuration, Bucket=bucket)
    rule = {"ID": "r", "Filter": {"Prefix": "p/"}, "Status": "Enabled", "Expiration": {"Days": 3}}
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    assert s3.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == [rule]
    assert 'rule-id="r"' in s3.put_object(Bucket=bucket, Key="p/k", Body=b"")["Expiration"]
    assert 'rule-id="r"' in s3.head_object(Bucket=bucket, Key="p/k")["Expiration"]
    assert "Expiration" not in s3.put_object(Bucket=bucket, Key="q/k", Body=b"")
    refused("NotImplemented", s3.get_bucket_acl, Bucket=bucket)


def test_copies_are_objects_of_their_own(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    s3.put_object(Bucket=bucket, Key="a b", Body=BODY, Metadata={"x": "1"})
    s3.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "a b"})
    assert strict_s3.stored(bucket, "c") == BODY
    assert s3.head_object(Bucket=bucket, Key="c")["Metadata"] == {"x": "1"}
    refused("NoSuchKey", s3.copy_object, Bucket=bucket, Key="d", CopySource={"Bucket": bucket, "Key": "no"})
