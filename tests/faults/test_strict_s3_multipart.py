"""The strict server, honest: uploads in parts, asked by boto3."""

from __future__ import annotations

import base64
import hashlib
import secrets
import zlib

import pytest

from durastore.objectstore.crc import crc64nvme_b64
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from tests.faults.strict_lab import Upload, refused

PART = 5 << 20
BODIES = [secrets.token_bytes(PART), secrets.token_bytes(PART), b"end"]
WHOLE = b"".join(BODIES)


def test_the_whole_is_checked_on_complete(strict_s3: StrictS3) -> None:
    upload = Upload(strict_s3, ChecksumAlgorithm="CRC64NVME", Metadata={"id": "w"}).send(
        BODIES, ChecksumAlgorithm="CRC64NVME"
    )
    right = crc64nvme_b64(WHOLE)
    upload.refuse("BadDigest", ChecksumCRC64NVME=crc64nvme_b64(b"other"), ChecksumType="FULL_OBJECT")
    upload.refuse("InvalidRequest", MpuObjectSize=len(WHOLE) - 1)
    upload.refuse("InvalidRequest", ChecksumType="COMPOSITE")
    upload.refuse("InvalidRequest", ChecksumCRC32="NhCmhg==")
    answer = upload.complete(ChecksumCRC64NVME=right, ChecksumType="FULL_OBJECT", MpuObjectSize=len(WHOLE))
    assert (answer["ChecksumCRC64NVME"], answer["ChecksumType"]) == (right, "FULL_OBJECT")
    md5s = b"".join(hashlib.md5(body, usedforsecurity=False).digest() for body in BODIES)
    assert answer["ETag"] == f'"{hashlib.md5(md5s, usedforsecurity=False).hexdigest()}-3"'
    head = upload.s3.head_object(Bucket=upload.bucket, Key="k", ChecksumMode="ENABLED")
    assert (head["ETag"], head["ContentLength"], head["Metadata"]) == (answer["ETag"], len(WHOLE), {"id": "w"})
    assert head["ChecksumCRC64NVME"] == right
    assert strict_s3.stored(upload.bucket, "k") == WHOLE
    refused("NoSuchUpload", upload.complete)  # case B99


def test_parts_must_be_held_as_listed(strict_s3: StrictS3) -> None:
    upload = Upload(strict_s3).send(BODIES)
    first, second, third = upload.parts
    upload.refuse("InvalidPartOrder", parts=[second, first, third])
    upload.refuse("InvalidPartOrder", parts=[first, first])
    upload.refuse("InvalidPart", parts=[first, {**second, "ETag": first["ETag"]}])
    upload.refuse("InvalidPart", parts=[first, {"PartNumber": 9, "ETag": first["ETag"]}])
    upload.refuse("MalformedXML", parts=[])
    upload.complete(parts=[first, third])
    assert strict_s3.stored(upload.bucket, "k") == BODIES[0] + BODIES[2]


def test_small_parts_only_at_the_end(strict_s3: StrictS3) -> None:
    upload = Upload(strict_s3).send([b"small", b"end"])
    upload.refuse("EntityTooSmall")
    strict_s3.script(Rule(lie=Lie.SMALL_PARTS))
    upload.complete()
    assert strict_s3.stored(upload.bucket, "k") == b"smallend"


def test_part_numbers_have_limits(strict_s3: StrictS3) -> None:
    upload = Upload(strict_s3)
    for number in (0, 10_001):
        refused("InvalidArgument", upload.s3.upload_part, **upload.where, PartNumber=number, Body=b"x")
    upload.s3.upload_part(**upload.where, PartNumber=10_000, Body=b"x")


def test_checksums_of_parts(strict_s3: StrictS3) -> None:
    upload = Upload(strict_s3, ChecksumAlgorithm="SHA256")
    send, where = upload.s3.upload_part, upload.where
    wrong = base64.b64encode(hashlib.sha256(b"y").digest()).decode()
    refused("BadDigest", send, **where, PartNumber=1, Body=b"x", ChecksumSHA256=wrong)
    refused("InvalidRequest", send, **where, PartNumber=1, Body=b"x", ChecksumCRC32=_crc32(b"x"))
    upload.send([b"x"], ChecksumAlgorithm="SHA256")
    bare = [{"PartNumber": 1, "ETag": upload.parts[0]["ETag"]}]
    upload.refuse("InvalidRequest", parts=bare)
    answer = upload.complete()
    composite = base64.b64encode(hashlib.sha256(hashlib.sha256(b"x").digest()).digest()).decode()
    assert (answer["ChecksumSHA256"], answer["ChecksumType"]) == (f"{composite}-1", "COMPOSITE")


def _crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def test_checksum_types_that_do_not_exist(strict_s3: StrictS3) -> None:
    s3, bucket = strict_s3.client(), strict_s3.make_bucket()
    for algorithm, kind in (("CRC64NVME", "COMPOSITE"), ("SHA256", "FULL_OBJECT")):
        where = {"Bucket": bucket, "Key": "k", "ChecksumAlgorithm": algorithm, "ChecksumType": kind}
        refused("InvalidRequest", s3.create_multipart_upload, **where)


def test_create_only_on_complete(strict_s3: StrictS3) -> None:
    upload = Upload(strict_s3).send([b"x"])
    upload.s3.put_object(Bucket=upload.bucket, Key="k", Body=b"first")
    refused("PreconditionFailed", upload.complete, IfNoneMatch="*")
    assert strict_s3.stored(upload.bucket, "k") == b"first"
    upload.complete()
    assert strict_s3.stored(upload.bucket, "k") == b"x"


def test_aborted_uploads_are_gone(strict_s3: StrictS3) -> None:
    # case B152
    upload = Upload(strict_s3)
    for _ in range(5):
        upload.s3.upload_part(**upload.where, PartNumber=3, Body=b"x")
    assert [part["PartNumber"] for part in upload.s3.list_parts(**upload.where)["Parts"]] == [3]
    assert [row["Key"] for row in upload.s3.list_multipart_uploads(Bucket=upload.bucket)["Uploads"]] == ["k"]
    upload.s3.abort_multipart_upload(**upload.where)
    assert "Uploads" not in upload.s3.list_multipart_uploads(Bucket=upload.bucket)
    refused("NoSuchUpload", upload.s3.abort_multipart_upload, **upload.where)
    refused("NoSuchUpload", upload.s3.upload_part, **upload.where, PartNumber=1, Body=b"x")


@pytest.mark.parametrize("page_size", [10, None])
def test_parts_and_uploads_are_paged(strict_s3: StrictS3, page_size: int | None) -> None:
    # case B153
    upload = Upload(strict_s3).send([b"x"] * 35)
    others = [upload.s3.create_multipart_upload(Bucket=upload.bucket, Key=f"o/{n:02d}") for n in range(25)]
    strict_s3.script(Rule(lie=Lie.PAGE_SIZE, amount=page_size))
    pages = list(upload.s3.get_paginator("list_parts").paginate(**upload.where))
    assert [part["PartNumber"] for page in pages for part in page["Parts"]] == list(range(1, 36))
    assert len(pages) == (4 if page_size else 1)
    pages = list(upload.s3.get_paginator("list_multipart_uploads").paginate(Bucket=upload.bucket, Prefix="o/"))
    assert [row["UploadId"] for page in pages for row in page["Uploads"]] == [row["UploadId"] for row in others]
    assert len(pages) == (3 if page_size else 1)


def test_equal_parts_where_the_server_wants_them(strict_s3: StrictS3) -> None:
    # case B159
    bigger = [BODIES[0], BODIES[1] + b"x", b"end"]
    upload, equal = Upload(strict_s3).send(bigger), Upload(strict_s3).send(BODIES)
    strict_s3.script(Rule(lie=Lie.EQUAL_PARTS))
    upload.refuse("InvalidPart")
    equal.complete()
    assert strict_s3.stored(equal.bucket, "k") == WHOLE


def test_parts_can_be_copied(strict_s3: StrictS3) -> None:
    upload = Upload(strict_s3)
    source = {"Bucket": upload.bucket, "Key": "source"}
    upload.s3.put_object(**source, Body=WHOLE)
    listed = []
    for number, span in enumerate((f"bytes=0-{PART - 1}", f"bytes={PART}-{len(WHOLE) - 1}"), start=1):
        answer = upload.s3.upload_part_copy(**upload.where, PartNumber=number, CopySource=source, CopySourceRange=span)
        listed.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
    upload.complete(parts=listed)
    assert strict_s3.stored(upload.bucket, "k") == WHOLE
