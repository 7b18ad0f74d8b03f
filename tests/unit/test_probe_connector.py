"""A probe beside an open store: the store's session and clients, and connections of its own."""

from __future__ import annotations

from typing import Any

import pytest

from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.probe.opening import opened_probe_port, probed_place
from durastore.objectstore.probe.s3_wire import S3Wire
from durastore.objectstore.s3 import S3Store
from durastore.objectstore.s3_client import Connector

URL = BucketUrl.parse("s3://bucket/prefix")


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def _options() -> S3Options:
    return S3Options(endpoint_url="http://127.0.0.1:9", region="us-east-1")


def test_a_probe_of_an_open_store_makes_neither_session_nor_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(name: str) -> None:
        make = getattr(Connector, name)

        def making(self: Connector, *args: Any) -> Any:
            made.append(name)
            return make(self, *args)

        monkeypatch.setattr(Connector, name, making)

    options = _options()
    alone = probed_place(URL, s3=options)
    counted("_open_session")
    counted("_open_client")
    store = open_object_store(URL, s3=options)
    for _ in range(3):
        assert probed_place(URL, s3=options, via=store) == alone
    with opened_probe_port(URL, s3=options, via=store) as port:
        assert port.bucket == "bucket"
    store.close()
    assert sorted(made) == ["_open_client", "_open_session"]


def test_a_client_that_is_given_back_has_one_user_at_a_time() -> None:
    options = _options()
    store = S3Store("bucket", options=options)
    wire = S3Wire("bucket", options=options, connector=store.connector)
    wire.close()
    wire.close()
    assert store.connector.connect() is not store.connector.connect()
