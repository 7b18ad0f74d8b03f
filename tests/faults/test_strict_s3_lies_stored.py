"""Each lie about what is stored: the answer is good, the bytes are not, and `stored` tells the truth."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import botocore.exceptions
import pytest

from durastore.objectstore.crc import crc64nvme_b64
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from tests.faults.strict_lab import Upload, refused

BODY = secrets.token_bytes(20_000)
CRC = crc64nvme_b64(BODY)
CUT = (botocore.exceptions.ResponseStreamingError, botocore.exceptions.IncompleteReadError)


@pytest.fixture
def bucket(strict_s3: StrictS3) -> str:
    return strict_s3.make_bucket()


@pytest.fixture
def s3(strict_s3: StrictS3) -> Any:
    return strict_s3.client()


def _put(s3: Any, bucket: str, *, key: str = "k", body: bytes = BODY) -> Any:
    answer = s3.put_object(Bucket=bucket, Key=key, Body=body, ChecksumCRC64NVME=crc64nvme_b64(body))
    assert answer["ChecksumCRC64NVME"] == crc64nvme_b64(body)
    assert answer["ETag"].strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest()
    return answer


def _head(s3: Any, bucket: str) -> Any:
    return s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")


def _get(s3: Any, bucket: str) -> bytes:
    body: bytes = s3.get_object(Bucket=bucket, Key="k")["Body"].read()
    return body


def test_less_is_stored_than_was_sent(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B75
    for rule, kept in (
        (Rule(lie=Lie.STORE_EMPTY), b""),
        (Rule(lie=Lie.STORE_SHORT), BODY[:10_000]),
        (Rule(lie=Lie.STORE_SHORT, amount=77), BODY[:77]),
    ):
        strict_s3.script(rule)
        _put(s3, bucket)
        head = _head(s3, bucket)
        assert (head["ContentLength"], head["ChecksumCRC64NVME"]) == (len(kept), crc64nvme_b64(kept))
        assert strict_s3.stored(bucket, "k") == _get(s3, bucket) == kept


@pytest.mark.parametrize("amount", [None, 0, 19_999])
@pytest.mark.parametrize("lie, most", [(Lie.ZERO_BLOCK, 4096), (Lie.FLIP_BYTE, 1)])
def test_other_bytes_are_stored_than_were_sent(
    strict_s3: StrictS3, bucket: str, lie: Lie, most: int, amount: int | None
) -> None:
    # case B79, case B65
    s3 = strict_s3.client()
    strict_s3.script(Rule(lie=lie, amount=amount))
    answer = _put(s3, bucket)
    head = _head(s3, bucket)
    assert (head["ContentLength"], head["ChecksumCRC64NVME"], head["ETag"]) == (len(BODY), CRC, answer["ETag"])
    stored = strict_s3.stored(bucket, "k")
    assert stored is not None
    wrong = [at for at, (one, other) in enumerate(zip(stored, BODY, strict=True)) if one != other]
    assert 1 <= len(wrong) <= most
    assert (10_000 if amount is None else amount) in range(min(wrong), max(wrong) + 1) or most > 1
    assert _get(s3, bucket) == stored


def test_stored_bytes_can_rot_later(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B61
    for lie in (Lie.FLIP_BYTE, Lie.ZERO_BLOCK):
        _put(s3, bucket)
        strict_s3.damage(bucket, "k", lie=lie, at=5)
        assert _head(s3, bucket)["ChecksumCRC64NVME"] == CRC
        assert _get(s3, bucket) == strict_s3.stored(bucket, "k") != BODY
    strict_s3.damage(bucket, "k", lie=Lie.HOLLOW)
    assert strict_s3.stored(bucket, "k") is None


def test_two_writers_mixed(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B80
    _put(s3, bucket, body=b"a" * 1000)
    strict_s3.script(Rule(lie=Lie.SPLICE))
    _put(s3, bucket, body=b"b" * 1000)
    assert strict_s3.stored(bucket, "k") == b"a" * 500 + b"b" * 500


def test_acknowledged_and_not_there(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B05
    strict_s3.script(Rule(lie=Lie.LOSE))
    _put(s3, bucket)
    refused("404", _head, s3=s3, bucket=bucket)
    assert strict_s3.keys(bucket) == []


@pytest.mark.parametrize("is_versioned", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
def test_gone_after_it_was_seen(strict_s3: StrictS3, heads: int, is_versioned: bool) -> None:
    # case B23
    s3, bucket = strict_s3.client(), strict_s3.make_bucket(is_versioned=is_versioned)
    strict_s3.script(Rule(lie=Lie.LOSE_AFTER_HEAD_OK, amount=heads))
    _put(s3, bucket)
    for _ in range(heads):
        assert _get(s3, bucket) == BODY
        assert _head(s3, bucket)["ChecksumCRC64NVME"] == CRC
    refused("404", _head, s3=s3, bucket=bucket)
    assert strict_s3.stored(bucket, "k") is None
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_a_part_gone_after_it_was_seen(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B61
    strict_s3.script(Rule(lie=Lie.LOSE_PART_AFTER_HEAD))
    _put(s3, bucket)
    assert _get(s3, bucket) == BODY
    assert _head(s3, bucket)["ContentLength"] == len(BODY)
    assert _head(s3, bucket)["ChecksumCRC64NVME"] == CRC
    assert strict_s3.stored(bucket, "k") == BODY[:10_000]
    with pytest.raises(CUT):
        _get(s3, bucket)
    assert s3.get_object(Bucket=bucket, Key="k", Range="bytes=0-99")["Body"].read() == BODY[:100]


def test_an_index_entry_without_data(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    strict_s3.script(Rule(lie=Lie.HOLLOW))
    _put(s3, bucket)
    assert _head(s3, bucket)["ChecksumCRC64NVME"] == CRC
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 1
    refused("NoSuchKey", _get, s3=s3, bucket=bucket)
    assert strict_s3.stored(bucket, "k") is None


def test_hidden_by_a_marker(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    # case B147
    strict_s3.script(Rule(lie=Lie.DELETE_MARKER))
    version = _put(s3, bucket)
    answer = refused("404", _head, s3=s3, bucket=bucket)
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-amz-delete-marker"] == "true"
    (row,) = s3.list_object_versions(Bucket=bucket)["Versions"]
    del version
    assert s3.get_object(Bucket=bucket, Key="k", VersionId=row["VersionId"])["Body"].read() == BODY


def test_what_goes_with_the_bytes(strict_s3: StrictS3, bucket: str, s3: Any) -> None:
    strict_s3.script(Rule(lie=Lie.DROP_METADATA), Rule(lie=Lie.ARCHIVE_CLASS), Rule(lie=Lie.ETAG_NOT_MD5))
    answer = s3.put_object(Bucket=bucket, Key="k", Body=BODY, Metadata={"durastore-write-id": "w"})
    head = _head(s3, bucket)
    assert (head["Metadata"], head["StorageClass"], head["ETag"]) == ({}, "GLACIER", answer["ETag"])
    assert hashlib.md5(BODY, usedforsecurity=False).hexdigest() not in head["ETag"]
    refused("InvalidObjectState", _get, s3=s3, bucket=bucket)


PART = 5 << 20
BODIES = [b"1" * PART, b"2" * PART, b"3" * PART, b"end"]


def _complete(server: StrictS3) -> tuple[Upload, Any]:
    upload = Upload(server, ChecksumAlgorithm="CRC64NVME").send(BODIES, ChecksumAlgorithm="CRC64NVME")
    whole = b"".join(BODIES)
    answer = upload.complete(
        ChecksumCRC64NVME=crc64nvme_b64(whole), ChecksumType="FULL_OBJECT", MpuObjectSize=len(whole)
    )
    assert answer["ChecksumCRC64NVME"] == crc64nvme_b64(whole)
    return upload, upload.s3.head_object(Bucket=upload.bucket, Key="k", ChecksumMode="ENABLED")


def test_a_part_is_forgotten(strict_s3: StrictS3) -> None:
    # case B47
    strict_s3.script(Rule(lie=Lie.FORGET_PART, amount=3))
    upload, head = _complete(strict_s3)
    kept = b"".join(BODIES[:2] + BODIES[3:])
    assert (head["ContentLength"], head["ChecksumCRC64NVME"]) == (len(kept), crc64nvme_b64(kept))
    assert strict_s3.stored(upload.bucket, "k") == kept


def test_a_part_is_zeros(strict_s3: StrictS3) -> None:
    strict_s3.script(Rule(lie=Lie.ZERO_PART, amount=3))
    upload, head = _complete(strict_s3)
    whole = b"".join(BODIES)
    assert (head["ContentLength"], head["ChecksumCRC64NVME"]) == (len(whole), crc64nvme_b64(whole))
    assert strict_s3.stored(upload.bucket, "k") == whole.replace(b"3", b"\0")


def test_parts_leak(strict_s3: StrictS3) -> None:
    # case B152
    strict_s3.script(Rule(lie=Lie.LEAK_PARTS))
    upload = Upload(strict_s3)
    for number in range(5):
        upload.s3.upload_part(**upload.where, PartNumber=3, Body=bytes([number]))
    assert [part["PartNumber"] for part in upload.s3.list_parts(**upload.where)["Parts"]] == [3] * 5
    upload.s3.abort_multipart_upload(**upload.where)
    assert len(upload.s3.list_parts(**upload.where)["Parts"]) == 5


def test_an_upload_is_lost(strict_s3: StrictS3) -> None:
    upload = Upload(strict_s3).send([b"x"])
    strict_s3.script(Rule(lie=Lie.LOSE_UPLOAD))
    refused("NoSuchUpload", upload.s3.upload_part, **upload.where, PartNumber=2, Body=b"x")
    refused("NoSuchUpload", upload.s3.list_parts, **upload.where)
    refused("NoSuchUpload", upload.complete)


def test_a_copy_loses_a_range(strict_s3: StrictS3) -> None:
    # case B52
    strict_s3.script(Rule(lie=Lie.COPY_LOSES_RANGE))
    upload = Upload(strict_s3)
    source = {"Bucket": upload.bucket, "Key": "source"}
    upload.s3.put_object(**source, Body=BODY)
    answer = upload.s3.upload_part_copy(**upload.where, PartNumber=1, CopySource=source)
    upload.complete([{"PartNumber": 1, "ETag": answer["CopyPartResult"]["ETag"]}])
    assert strict_s3.stored(upload.bucket, "k") == BODY[:10_000]
    assert strict_s3.stored(upload.bucket, "source") == BODY
