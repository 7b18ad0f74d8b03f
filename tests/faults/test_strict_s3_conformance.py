"""The library's own S3 adapter against the strict server: the whole conformance suite, and obstore beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.testing.conformance import ObjectStoreTests
from durastore.testing.strict_s3 import StrictS3


@pytest.fixture(scope="module")
def shared_store() -> Iterator[ObjectStore]:
    with StrictS3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        url = BucketUrl.parse(f"s3://{server.make_bucket()}")
        store = open_object_store(url, s3=S3Options(endpoint_url=server.endpoint_url))
        store.check_bucket()
        yield store
        store.close()


class TestStrictS3(ObjectStoreTests):
    listing_size = 2_001

    @pytest.fixture
    def store(self, shared_store: ObjectStore) -> ObjectStore:
        return shared_store
