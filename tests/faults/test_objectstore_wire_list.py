"""Odd answers on the wire: listings that are none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durastore import errors
from durastore.clock import ManualClock
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from tests.faults.objectstore_scripted import Answer, ScriptedS3, SeenRequest, error_body, listing

pytestmark = pytest.mark.usefixtures("server")  # its credentials are in the environment


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedS3]:
    with pytest.MonkeyPatch.context() as patch, ScriptedS3() as server:
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        yield server


@pytest.fixture(scope="module")
def store(server: ScriptedS3) -> Iterator[ObjectStore]:
    options = S3Options(endpoint_url=server.endpoint_url, region="us-east-1", read_timeout_s=5.0)
    store = open_object_store(BucketUrl.parse("s3://bucket"), s3=options)
    yield store
    store.close()


def _keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [row.key.text for page in store.list(prefix) for row in page]


def test_pages_are_followed_to_the_announced_end(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(
        Answer(body=listing(["p/a", "p/b"], truncated=True, token="t+/=1")),
        Answer(body=listing([], truncated=True, token="t2")),
        Answer(body=listing(["p/c"])),
    )
    pages = list(store.list("p/", start_after="p/0 +%"))
    assert [[row.key.text for row in page] for page in pages] == [["p/a", "p/b"], ["p/c"]]
    assert [request.query.get("continuation-token") for request in server.seen] == [None, "t+/=1", "t2"]
    first = server.seen[0].query
    assert (first["list-type"], first["prefix"], first["start-after"]) == ("2", "p/", "p/0 +%")
    assert first["encoding-type"] == "url"


def test_a_row_is_told_as_it_came(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(Answer(body=listing(["p/a", "p/b"])))
    _, row = next(store.list("p/"))
    assert (row.key.text, row.size_bytes, row.etag, row.storage_class) == ("p/b", 1, '"e1"', "STANDARD")
    assert row.last_modified_s == 1704164645.0


def test_keys_are_decoded_once_and_only_if_they_were_encoded(server: ScriptedS3, store: ObjectStore) -> None:
    # case B128, case B130
    server.script(Answer(body=listing(["a%252Fb", "a%2Bb+c", "a/b", "%C3%BC"], encoding="url")))
    assert _keys(store) == ["a%2Fb", "a+b c", "a/b", "ü"]
    server.script(Answer(body=listing(["a%2Fb", "a+b c", "a/b"])))
    assert _keys(store) == ["a%2Fb", "a+b c", "a/b"]


def test_keys_of_the_future_are_shown(server: ScriptedS3, store: ObjectStore) -> None:
    # case B143: this machine's clock may be behind the server's
    future = listing(["p/a"]).replace(b"2024-01-02", b"2199-01-02")
    server.script(Answer(body=future))
    assert _keys(store) == ["p/a"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>sign in to this network</body></html>",
        b"not xml",
        listing(["p/a"])[:-30],
        b"<ListBucketResult></ListBucketResult>",
        listing(["p/a"]).replace(b"<Size>0</Size>", b""),
        listing(["p/a"]).replace(b"<Size>0</Size>", b"<Size>many</Size>"),
        listing(["p/a"]).replace(b"<Key>p/a</Key>", b""),
        listing(["%ff%fe"], encoding="url"),
        listing(["p/a"]).replace(b"ListBucketResult", b"ListAllMyBucketsResult"),
    ],
)
def test_200_with_something_else_is_not_an_empty_bucket(server: ScriptedS3, store: ObjectStore, body: bytes) -> None:
    # case B18
    server.script(Answer(body=body))
    with pytest.raises(errors.UnknownAnswer):
        _keys(store)


def test_an_empty_bucket_is_one(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(Answer(body=listing([])))
    assert _keys(store) == []


def test_more_without_a_marker_is_incomplete(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(Answer(body=listing(["a", "b"], truncated=True)))
    with pytest.raises(errors.InventoryIncomplete):
        _keys(store)


def test_a_page_that_comes_again_is_found_within_three_requests(server: ScriptedS3, store: ObjectStore) -> None:
    # case B140
    numbers = iter(range(100))

    def repeat(request: SeenRequest) -> Answer:
        return Answer(body=listing(["a", "b"], truncated=True, token=f"t{next(numbers)}"))

    server.script(repeat)
    with pytest.raises(errors.InventoryIncomplete):
        _keys(store)
    assert len(server.seen) <= 3


def test_foreign_names_are_not_dropped_in_silence(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(Answer(body=listing(["p/", "p/a", "p/b//c"])))  # the first is a console's folder marker: no bytes
    with pytest.raises(errors.InventoryIncomplete) as caught:
        _keys(store)
    assert "p/b//c" in str(caught.value)
    server.script(Answer(body=listing(["p/", "p/a", "p/b"])))
    assert _keys(store) == ["p/a", "p/b"]


@pytest.mark.parametrize(
    "status, code, error",
    [
        (404, "NoSuchBucket", errors.BucketMissing),
        (403, "AccessDenied", errors.PermissionRefused),
        (403, "InvalidAccessKeyId", errors.CredentialsRefused),
        (403, "SignatureDoesNotMatch", errors.CredentialsRefused),
        (503, "SlowDown", errors.OverloadedEndpoint),
        (500, "InternalError", errors.UnknownAnswer),
        (301, "PermanentRedirect", errors.ConfigError),
    ],
)
def test_refusals_of_a_listing_and_of_the_bucket(
    server: ScriptedS3, store: ObjectStore, status: int, code: str, error: type[errors.DurastoreError]
) -> None:
    server.script(Answer(status=status, body=error_body(code)))
    for action in (lambda: _keys(store), store.check_bucket):
        with pytest.raises(errors.DurastoreError) as caught:
            action()
        assert type(caught.value) is error


def test_only_the_page_that_failed_is_asked_for_again(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(
        Answer(body=listing(["a"], truncated=True, token="t1")),
        Answer(status=503, body=error_body("SlowDown")),
        Answer(is_dropped=True),
        Answer(body=b"<html/>"),
        Answer(body=listing(["b"])),
    )
    retrying = RetryingStore(store, RetryPolicy(), clock=ManualClock())
    assert [row.key.text for page in retrying.list("") for row in page] == ["a", "b"]
    assert [request.query.get("continuation-token") for request in server.seen] == [None, "t1", "t1", "t1", "t1"]
