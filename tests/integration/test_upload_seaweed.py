"""The engine against a real S3 server, over both transports."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durastore.demo.seaweed import SeaweedServer
from durastore.errors import CredentialsRefused, StoreClosed
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryPolicy
from durastore.upload.engine import Uploader
from durastore.upload.job import UploadLimits
from durastore.upload.transports import choose_transport
from tests.unit.upload_fakes import Pack

PART = 5 << 20
LIMITS = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=4 * PART)
POLICY = RetryPolicy(budget_s=20, base_s=0.05, cap_s=1, max_attempts=5)


class Place:
    """A fresh bucket, the store on it, and an engine."""

    def __init__(self, server: SeaweedServer, bucket: str, transport: str) -> None:
        self.options = S3Options(endpoint_url=server.endpoint_url, region=server.region, read_timeout_s=10)
        self.bucket = bucket
        self.transport = transport
        self.store: ObjectStore = open_object_store(BucketUrl.parse(f"s3://{bucket}"), s3=self.options)
        self.engines: list[Uploader] = []

    def engine(self, limits: UploadLimits = LIMITS) -> Uploader:
        factory = choose_transport(self.store, self.transport, s3=self.options, max_requests=8)
        self.engines.append(Uploader(factory, limits=limits, policy=POLICY))
        return self.engines[-1]


@pytest.fixture(params=["threads", "aio"])
def place(
    request: pytest.FixtureRequest, seaweed: SeaweedServer, bucket: str, aws_env: dict[str, str]
) -> Iterator[Place]:
    place = Place(seaweed, bucket, request.param)
    yield place
    for engine in place.engines:
        engine.close(5)
    place.store.close()


def _pack(folder: Path, name: str, size_bytes: int) -> Pack:
    return Pack.make(folder, name, random.Random(name).randbytes(size_bytes))


def test_packs_arrive_with_checksum_and_metadata(place: Place, tmp_path: Path, s3_client: Any) -> None:
    sizes = {"empty": 0, "small": 1000, "one-part": PART, "edge": PART + 1, "parts": 3 * PART + 7}
    packs = [_pack(tmp_path, name, size) for name, size in sizes.items()]
    engine = place.engine()
    for future, pack in [(engine.submit(pack.job()), pack) for pack in packs]:
        reply = future.result(60)
        seen = place.store.head(pack.key)
        assert reply.etag == seen.etag
        assert seen.size_bytes == len(pack.data)
        assert seen.crc64nvme == pack.job().crc64nvme
        assert dict(seen.metadata) == pack.job().metadata()
        assert s3_client.get_object(Bucket=place.bucket, Key=pack.key.text)["Body"].read() == pack.data
    assert not s3_client.list_multipart_uploads(Bucket=place.bucket).get("Uploads")


def test_objects_tell_what_kind_of_bytes_they_are(place: Place, tmp_path: Path, s3_client: Any) -> None:
    types = {"a.tar": "application/x-tar", "b.safetensors": "application/x-safetensors"}
    engine = place.engine()
    for name, media_type in types.items():
        for size in (1000, PART + 1):  # in one request, and in parts
            pack = _pack(tmp_path, f"{size}-{name}", size)
            engine.submit(pack.job()).result(60)
            assert s3_client.head_object(Bucket=place.bucket, Key=pack.key.text)["ContentType"] == media_type, pack.key


def test_a_second_sending_is_settled_by_a_look(place: Place, tmp_path: Path) -> None:
    engine = place.engine()
    for size in (1000, PART + 1):
        pack = _pack(tmp_path, f"pack-{size}", size)
        engine.submit(pack.job()).result(30)
        assert engine.submit(pack.job()).result(30).settled_by == "head"


def test_an_interrupted_upload_goes_on_where_it_was(place: Place, tmp_path: Path, s3_client: Any) -> None:
    pack = _pack(tmp_path, "big", 5 * PART + 3)
    told = threading.Event()
    record = pack.on_part

    def stop_after_two(part: Any) -> None:
        record(part)
        if part.number == 2:
            told.set()
            raise StoreClosed("scripted: the process ends here")

    pack.on_part = stop_after_two  # type: ignore[method-assign]  # the test's own fake
    one_by_one = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=PART, max_requests=1)
    with pytest.raises(StoreClosed):
        place.engine(one_by_one).submit(pack.job()).result(60)
    assert told.is_set()
    assert pack.session is not None
    assert len(pack.session.parts) == 2

    sent: list[int] = []
    pack.on_part = lambda part: sent.append(part.number)  # type: ignore[method-assign]  # as above
    place.engine(UploadLimits(part_bytes=2 * PART, multipart_above=2 * PART)).submit(pack.job()).result(60)
    assert sorted(sent) == [3, 4, 5, 6]
    assert s3_client.get_object(Bucket=place.bucket, Key=pack.key.text)["Body"].read() == pack.data


def test_a_wrong_secret_surfaces(
    place: Place, seaweed: SeaweedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    stranger = Place(seaweed, place.bucket, place.transport)
    with pytest.raises(CredentialsRefused):
        stranger.engine().submit(_pack(tmp_path, "b", 10).job()).result(30)
    stranger.engines[0].close(5)
    stranger.store.close()


def test_an_endpoint_named_by_the_environment_alone(
    seaweed: SeaweedServer, bucket: str, aws_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweed.endpoint_url)
    options = S3Options(region=seaweed.region)
    store = open_object_store(BucketUrl.parse(f"s3://{bucket}"), s3=options)
    engine = Uploader(choose_transport(store, "auto", s3=options), limits=LIMITS, policy=POLICY)
    pack = _pack(tmp_path, "a", 1000)
    engine.submit(pack.job()).result(30)
    engine.close(5)
    assert store.fetch(pack.key) == pack.data
    store.close()


def test_without_credentials_the_engine_says_so(
    seaweed: SeaweedServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    for transport in ("threads", "aio"):
        place = Place(seaweed, bucket, transport)
        with pytest.raises(CredentialsRefused):
            place.engine().submit(_pack(tmp_path, "a", 10).job()).result(30)
        place.engines[0].close(5)
        place.store.close()
