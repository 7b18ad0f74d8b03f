"""The strict server, honest: listings in byte order, by pages, and a million objects that cost nothing."""

from __future__ import annotations

from typing import Any

import pytest
import xxhash

from durastore.formats.keys import parse_pack_key
from durastore.model import ObjectKey
from durastore.testing.strict_s3 import StrictS3
from tests.faults.strict_lab import refused

KEYS = ["a", "a b", "a+b", "a-b", "a/b", "a/c/d", "a%2Fb", "b/", "b/1", "z\U0001f600", "z\uffee", "é"]


@pytest.fixture
def bucket(strict_s3: StrictS3) -> str:
    return strict_s3.make_bucket()


def _fill(server: StrictS3, bucket: str, *, keys: list[str]) -> Any:
    for key in reversed(keys):
        server.client().put_object(Bucket=bucket, Key=key, Body=key.encode())
    return server.client()


@pytest.mark.parametrize("operation", ["list_objects_v2", "list_objects"])
@pytest.mark.parametrize("page", [1, 3, 1000])
def test_byte_order_and_pages(strict_s3: StrictS3, bucket: str, operation: str, page: int) -> None:
    s3 = _fill(strict_s3, bucket, keys=KEYS)
    config = {"PageSize": page}
    pages = list(s3.get_paginator(operation).paginate(Bucket=bucket, PaginationConfig=config))
    found = [(row["Key"], row["Size"]) for answer in pages for row in answer["Contents"]]
    assert found == sorted(((key, len(key.encode())) for key in KEYS), key=lambda row: row[0].encode())
    assert len(pages) == -(-len(KEYS) // page)


@pytest.mark.parametrize("operation", ["list_objects_v2", "list_objects"])
@pytest.mark.parametrize("page", [1, 2, 1000])
def test_delimiters(strict_s3: StrictS3, bucket: str, operation: str, page: int) -> None:
    s3 = _fill(strict_s3, bucket, keys=KEYS)
    for prefix, keys, prefixes in (
        ("", ["a", "a b", "a%2Fb", "a+b", "a-b", "z\uffee", "z\U0001f600", "é"], ["a/", "b/"]),
        ("a/", ["a/b"], ["a/c/"]),
        ("b/", ["b/", "b/1"], []),
    ):
        where = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/", "PaginationConfig": {"PageSize": page}}
        pages = list(s3.get_paginator(operation).paginate(**where))
        assert sorted(row["Key"] for answer in pages for row in answer.get("Contents", [])) == sorted(keys)
        assert [row["Prefix"] for answer in pages for row in answer.get("CommonPrefixes", [])] == prefixes


def test_starting_points_and_limits(strict_s3: StrictS3, bucket: str) -> None:
    s3 = _fill(strict_s3, bucket, keys=[f"k{number}" for number in range(5)])
    rows = s3.list_objects_v2(Bucket=bucket, StartAfter="k1")["Contents"]
    assert [row["Key"] for row in rows] == ["k2", "k3", "k4"]
    assert s3.list_objects_v2(Bucket=bucket, MaxKeys=0)["KeyCount"] == 0
    assert s3.list_objects_v2(Bucket=bucket, MaxKeys=2)["IsTruncated"] is True
    assert s3.list_objects_v2(Bucket=bucket, MaxKeys=5)["IsTruncated"] is False
    refused("InvalidArgument", s3.list_objects_v2, Bucket=bucket, ContinuationToken="made up")
    refused("NoSuchBucket", s3.list_objects_v2, Bucket="no-such-bucket")


def test_what_is_gone_is_not_listed(strict_s3: StrictS3, bucket: str) -> None:
    s3 = _fill(strict_s3, bucket, keys=["a", "b", "c"])
    s3.delete_object(Bucket=bucket, Key="b")
    strict_s3.lose(bucket, "c")
    assert [row["Key"] for row in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["a"]
    assert strict_s3.keys(bucket) == ["a"]


def test_a_million_objects_cost_nothing(strict_s3: StrictS3, bucket: str) -> None:
    prefix = "p/packs/0123456789abcdef/"
    strict_s3.populate(bucket, prefix, count=1_000_000, size_bytes=50, suffix="-{digest}.tar")
    s3 = strict_s3.client()
    s3.put_object(Bucket=bucket, Key=f"{prefix}000000500000-x", Body=b"in between")
    first = s3.list_objects_v2(Bucket=bucket, Prefix=prefix)
    assert (first["KeyCount"], first["IsTruncated"]) == (1000, True)
    key = first["Contents"][0]["Key"]
    assert parse_pack_key("p", ObjectKey(key)) is not None
    body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    assert len(body) == 50
    assert key.endswith(f"-{xxhash.xxh3_128_hexdigest(body)[:16]}.tar")
    assert s3.head_object(Bucket=bucket, Key=key)["ETag"] == first["Contents"][0]["ETag"]
    middle = s3.list_objects_v2(Bucket=bucket, StartAfter=f"{prefix}000000499999-z", MaxKeys=3)["Contents"]
    assert [row["Key"][len(prefix) :][:12] for row in middle] == ["000000500000", "000000500000", "000000500001"]
    last = s3.list_objects_v2(Bucket=bucket, StartAfter=f"{prefix}000000999998-z")
    assert (last["KeyCount"], last["IsTruncated"]) == (2, False)
    top = s3.list_objects_v2(Bucket=bucket, Prefix="p/", Delimiter="/")
    assert [row["Prefix"] for row in top["CommonPrefixes"]] == ["p/packs/"]
    refused("404", s3.head_object, Bucket=bucket, Key=f"{prefix}000001000001-x")


def test_a_populated_object_can_be_lost_and_overwritten(strict_s3: StrictS3, bucket: str) -> None:
    strict_s3.populate(bucket, "p/", count=5)
    strict_s3.lose(bucket, "p/000000000002")
    strict_s3.client().put_object(Bucket=bucket, Key="p/000000000003", Body=b"new")
    assert strict_s3.keys(bucket) == [f"p/{number:012d}" for number in (1, 3, 4, 5)]
    assert strict_s3.stored(bucket, "p/000000000003") == b"new"
