"""The S3 adapter against a real server."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from durastore import errors
from durastore.demo.seaweed import SeaweedServer
from durastore.model import ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.testing.conformance import ObjectStoreTests

KEY = ObjectKey("p/k")


def _open(seaweed: SeaweedServer, bucket: str) -> ObjectStore:
    return open_object_store(BucketUrl.parse(f"s3://{bucket}"), s3=S3Options(endpoint_url=seaweed.endpoint_url))


@pytest.fixture
def store(seaweed: SeaweedServer, bucket: str, aws_env: dict[str, str]) -> Iterator[ObjectStore]:
    del aws_env
    store = _open(seaweed, bucket)
    yield store
    store.close()


@pytest.fixture(scope="module")
def shared_bucket(seaweed: SeaweedServer) -> str:
    return seaweed.make_bucket()


@pytest.fixture(scope="module")
def shared_store(seaweed: SeaweedServer, shared_bucket: str) -> Iterator[ObjectStore]:
    """One store for a whole suite: its tests keep apart by prefix."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweed.environment().items():
            patch.setenv(name, value)
        store = _open(seaweed, shared_bucket)
        store.check_bucket()
        yield store
        store.close()


class TestSeaweed(ObjectStoreTests):
    listing_size = 2_001
    quick: Any

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def quick_put(cls, seaweed: SeaweedServer, shared_bucket: str) -> None:
        """Thousands of objects to list, put at a fraction of what they cost through boto."""
        cls.quick = S3Store(
            shared_bucket,
            endpoint=seaweed.endpoint_url,
            region=seaweed.region,
            access_key_id=seaweed.access_key,
            secret_access_key=seaweed.secret_key,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def fill(self, store: ObjectStore, keys: Iterable[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: obstore.put(self.quick, key, b"x", use_multipart=False), keys))

    @pytest.fixture
    def store(self, shared_store: ObjectStore) -> ObjectStore:
        return shared_store


class TestSeaweedWithRetries(TestSeaweed):
    @pytest.fixture
    def store(self, shared_store: ObjectStore) -> ObjectStore:
        return RetryingStore(shared_store, RetryPolicy(budget_s=5.0))


def _calls(store: ObjectStore) -> list[Callable[[], object]]:
    return [
        store.check_bucket,
        lambda: store.fetch(KEY),
        lambda: list(store.fetch_chunks(KEY)),
        lambda: list(store.list("")),
        lambda: store.put(KEY, b"x", crc64nvme=crc64nvme_b64(b"x"), metadata={}),
        lambda: store.create_upload(KEY, metadata={}),
        lambda: store.head(KEY),
    ]


def test_a_missing_bucket_is_no_missing_key(seaweed: SeaweedServer, aws_env: dict[str, str]) -> None:
    del aws_env
    store = _open(seaweed, "no-such-bucket")
    for call in (*_calls(store)[:4], _calls(store)[-1]):  # not the writes: this server then makes the bucket
        with pytest.raises(errors.BucketMissing):
            call()
    store.close()


def test_wrong_credentials_are_told_apart_from_absence(
    seaweed: SeaweedServer, bucket: str, aws_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del aws_env
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-hunter2")
    store = _open(seaweed, bucket)
    for call in _calls(store):
        with pytest.raises(errors.CredentialsRefused) as caught:
            call()
        assert "hunter2" not in str(caught.value)
    store.close()


def test_no_credentials_at_all(seaweed: SeaweedServer, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    store = _open(seaweed, bucket)
    for call in _calls(store):
        with pytest.raises(errors.CredentialsRefused):
            call()


def test_an_endpoint_that_is_not_there(aws_env: dict[str, str]) -> None:
    del aws_env
    options = S3Options(endpoint_url="http://127.0.0.1:1", connect_timeout_s=1.0, read_timeout_s=1.0)
    store = open_object_store(BucketUrl.parse("s3://bucket"), s3=options)
    for call in _calls(store):
        with pytest.raises(errors.EndpointUnreachable):
            call()
    store.close()


def test_a_forked_child_gets_clients_of_its_own(store: ObjectStore) -> None:
    # case B154
    body = secrets.token_bytes(200_000)
    store.put(KEY, body, crc64nvme=crc64nvme_b64(body), metadata={})
    assert store.fetch(KEY) == body
    assert store.fetch(KEY, offset=10, length=20) == body[10:30]
    assert sum(len(page) for page in store.list("")) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of exactly what is tested here
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            is_right = store.fetch(KEY) == body and store.head(KEY).size_bytes == len(body)
            is_right = is_right and b"".join(store.fetch_chunks(KEY)) == body
            is_right = is_right and store.fetch(KEY, offset=10, length=20) == body[10:30]
            reader = store.fresh_reader()
            is_right = is_right and reader.fetch(KEY, offset=10, length=20) == body[10:30]
            status = 0 if is_right and sum(len(page) for page in store.list("")) == 1 else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.fetch(KEY, offset=10, length=20) == body[10:30]
    assert store.head(KEY).size_bytes == len(body)


def test_the_server_checks_parts_and_whole(store: ObjectStore) -> None:
    body = secrets.token_bytes(100_000)
    upload_id = store.create_upload(KEY, metadata={})
    with pytest.raises(errors.RequestRefused) as caught:
        store.upload_part(KEY, upload_id, number=1, body=body, crc64nvme=crc64nvme_b64(b"other"))
    assert caught.value.facts["server_code"] == "BadDigest"
    part = store.upload_part(KEY, upload_id, number=1, body=body, crc64nvme=crc64nvme_b64(body))
    with pytest.raises(errors.RequestRefused):
        store.complete_upload(KEY, upload_id, parts=[part], size_bytes=len(body), crc64nvme=crc64nvme_b64(b"other"))
    store.complete_upload(KEY, upload_id, parts=[part], size_bytes=len(body), crc64nvme=crc64nvme_b64(body))
    assert store.head(KEY).crc64nvme == crc64nvme_b64(body)
    assert store.fetch(KEY) == body


def test_an_object_larger_than_one_window_is_read_whole(store: ObjectStore) -> None:
    size_bytes = (64 << 20) + 12_345
    body = secrets.token_bytes(1 << 20) * 65
    body = body[:size_bytes]
    store.put(KEY, body, crc64nvme=crc64nvme_b64(body), metadata={})
    position = 0
    for chunk in store.fetch_chunks(KEY):
        assert body[position : position + len(chunk)] == chunk
        position += len(chunk)
    assert position == size_bytes


@pytest.mark.parametrize("checksum", ["md5", "none"])
def test_other_ways_to_send_a_body(seaweed: SeaweedServer, bucket: str, aws_env: dict[str, str], checksum: str) -> None:
    # case B160
    del aws_env
    options = S3Options(endpoint_url=seaweed.endpoint_url, checksum=checksum, region="us-east-1")
    store = open_object_store(BucketUrl.parse(f"s3://{bucket}"), s3=options)
    body = secrets.token_bytes(5_000)
    store.put(KEY, body, crc64nvme=crc64nvme_b64(body), metadata={})
    upload_id = store.create_upload(ObjectKey("m"), metadata={})
    part = store.upload_part(ObjectKey("m"), upload_id, number=1, body=body, crc64nvme=crc64nvme_b64(body))
    store.complete_upload(ObjectKey("m"), upload_id, parts=[part], size_bytes=5_000, crc64nvme=crc64nvme_b64(body))
    assert store.fetch(KEY) == store.fetch(ObjectKey("m")) == body
    store.close()


@pytest.mark.parametrize("named", ["with-bucket", "with-another"])
def test_an_endpoint_that_names_the_bucket_is_told_so(
    seaweed: SeaweedServer, bucket: str, named: str, aws_env: dict[str, str]
) -> None:
    del aws_env
    path = bucket if named == "with-bucket" else "no-such-bucket"
    options = S3Options(endpoint_url=f"{seaweed.endpoint_url}/{path}", region=seaweed.region)
    store = open_object_store(BucketUrl.parse(f"s3://{bucket}"), s3=options)
    with pytest.raises(errors.BucketMissing) as caught:
        store.check_bucket()
    assert "without the bucket" in str(caught.value.hint)
    store.close()
