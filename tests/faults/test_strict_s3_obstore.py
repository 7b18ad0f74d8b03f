"""The strict server, honest, asked by obstore and by aiobotocore: other implementations of the same protocol."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import aiobotocore.session
import obstore
import pytest
from aiobotocore.config import AioConfig
from obstore.store import S3Store as RustStore

from durastore.objectstore.crc import crc64nvme_b64
from durastore.testing.strict_s3 import Lie, Rule, StrictS3

BODY = secrets.token_bytes(12 << 20)


def _open(server: StrictS3, bucket: str) -> RustStore:
    return RustStore(
        bucket,
        endpoint=server.endpoint_url,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        region=server.region,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


@pytest.fixture
def bucket(strict_s3: StrictS3) -> str:
    return strict_s3.make_bucket()


def test_round_trip(strict_s3: StrictS3, bucket: str) -> None:
    store = _open(strict_s3, bucket)
    obstore.put(store, "a/b", b"0123456789", use_multipart=False)
    assert bytes(obstore.get(store, "a/b").bytes()) == b"0123456789"
    assert bytes(obstore.get_range(store, "a/b", start=3, end=6)) == b"345"
    assert obstore.head(store, "a/b")["size"] == 10
    obstore.put(store, "big", BODY, use_multipart=True, chunk_size=5 << 20)
    assert strict_s3.stored(bucket, "big") == BODY
    assert [row["path"] for page in obstore.list(store) for row in page] == ["a/b", "big"]
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "no")


def test_create_only(strict_s3: StrictS3, bucket: str) -> None:
    store = _open(strict_s3, bucket)
    obstore.put(store, "k", b"1", mode="create", use_multipart=False)
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "k", b"2", mode="create", use_multipart=False)
    assert strict_s3.stored(bucket, "k") == b"1"


def test_a_long_listing(strict_s3: StrictS3, bucket: str) -> None:
    # case B138
    strict_s3.populate(bucket, "p/", count=25_000)
    found = [row["path"] for page in obstore.list(_open(strict_s3, bucket), "p") for row in page]
    assert found == [f"p/{number:012d}" for number in range(1, 25_001)]


def test_gzip_on_the_way_where_the_client_allows_it(strict_s3: StrictS3, bucket: str) -> None:
    # case B169
    store = _open(strict_s3, bucket)
    obstore.put(store, "k", b"x" * 5000, use_multipart=False)
    strict_s3.script(Rule(lie=Lie.GZIP))
    assert bytes(obstore.get(store, "k").bytes()) == b"x" * 5000


async def _aio_round_trip(server: StrictS3, bucket: str) -> Any:
    session = aiobotocore.session.get_session()
    config = AioConfig(request_checksum_calculation="when_required", s3={"payload_signing_enabled": False})
    async with session.create_client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=config,
    ) as client:
        await client.put_object(Bucket=bucket, Key="k", Body=BODY, ChecksumCRC64NVME=crc64nvme_b64(BODY))
        answer = await client.get_object(Bucket=bucket, Key="k")
        return await answer["Body"].read()


def test_aiobotocore(strict_s3: StrictS3, bucket: str) -> None:
    assert asyncio.run(_aio_round_trip(strict_s3, bucket)) == BODY
    assert strict_s3.stored(bucket, "k") == BODY
