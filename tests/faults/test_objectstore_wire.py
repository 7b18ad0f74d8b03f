"""Odd answers on the wire: what the S3 adapter makes of them when it reads and heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from durastore import errors
from durastore.clock import ManualClock
from durastore.model import ObjectKey
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectReader, ObjectStore
from durastore.objectstore.ranges import fetch_ranges
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.objectstore.s3_client import Connector
from durastore.objectstore.whole import WholeObject, fetch_whole
from tests.faults.objectstore_scripted import DATE_S, Answer, ScriptedS3, SeenRequest, error_body

KEY = ObjectKey("p/k")
HEADERS = {"ETag": '"e1"', "Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT"}
BODY = bytes(range(256)) * 4


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


def _ranged(first: int, last: int, *, total: int = len(BODY), body: bytes | None = None, **more: object) -> Answer:
    headers = {**HEADERS, "Content-Range": f"bytes {first}-{last}/{total}"}
    data = BODY[first : last + 1] if body is None else body
    return Answer(status=206, headers=headers, body=data, **more)  # type: ignore[arg-type]  # fields of Answer


def _fetch_whole(store: ObjectStore) -> WholeObject | None:
    reader = store.fresh_reader()
    try:
        return fetch_whole(reader, KEY, size_bytes=len(BODY))
    finally:
        reader.close()


# Four ways by which bytes are read; the first and the last go through obstore, the others through boto3.
READS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.fetch(KEY, offset=0, length=100),
    lambda store: store.fetch(KEY),
    lambda store: list(store.fetch_chunks(KEY)),
    _fetch_whole,
]
WAYS = pytest.mark.parametrize("read", READS, ids=["ranged", "whole", "chunks", "small"])


# --- HEAD -----------------------------------------------------------------------------------------------------------


def test_head_tells_what_was_sent(server: ScriptedS3, store: ObjectStore) -> None:
    headers = {
        **HEADERS,
        "Content-Length": "123",
        "x-amz-checksum-crc64nvme": "AAAAAAAAAAA=",
        "x-amz-checksum-type": "FULL_OBJECT",
        "x-amz-meta-Durastore-Write-Id": "w1",
        "x-amz-version-id": "v1",
        "x-amz-storage-class": "STANDARD_IA",
    }
    server.script(Answer(headers=headers))
    stat = store.head(KEY)
    assert (stat.size_bytes, stat.etag, stat.version_id) == (123, '"e1"', "v1")
    assert (stat.crc64nvme, stat.storage_class, stat.is_readable) == ("AAAAAAAAAAA=", "STANDARD_IA", True)
    assert stat.metadata == (("durastore-write-id", "w1"),)
    assert (stat.server_time_s, stat.last_modified_s) == (DATE_S, DATE_S)
    (request,) = server.seen
    assert (request.method, request.path) == ("HEAD", "/bucket/p/k")
    assert request.headers["x-amz-checksum-mode"] == "ENABLED"


def test_a_length_that_was_not_sent_is_unknown(server: ScriptedS3, store: ObjectStore) -> None:
    # case B64
    server.script(Answer(headers=HEADERS, has_length=False, has_date=False))
    stat = store.head(KEY)
    assert stat.size_bytes is None
    assert stat.server_time_s is None


def test_a_date_that_is_none_is_unknown(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(Answer(headers={**HEADERS, "Date": "the day after tomorrow"}, has_date=False))
    assert store.head(KEY).server_time_s is None


@pytest.mark.parametrize(
    "headers, is_readable",
    [
        ({"x-amz-storage-class": "GLACIER"}, False),
        ({"x-amz-storage-class": "DEEP_ARCHIVE", "x-amz-restore": 'ongoing-request="true"'}, False),
        ({"x-amz-storage-class": "GLACIER", "x-amz-restore": 'ongoing-request="false", expiry-date="x"'}, True),
        ({"x-amz-storage-class": "INTELLIGENT_TIERING", "x-amz-archive-status": "ARCHIVE_ACCESS"}, False),
        ({"x-amz-storage-class": "GLACIER_IR"}, True),
    ],
)
def test_an_archived_object_is_there_and_not_readable(
    server: ScriptedS3, store: ObjectStore, headers: dict[str, str], is_readable: bool
) -> None:
    server.script(Answer(headers={**HEADERS, **headers}))
    assert store.head(KEY).is_readable is is_readable


def test_a_checksum_of_checksums_is_not_taken_for_the_objects(server: ScriptedS3, store: ObjectStore) -> None:
    headers = {"x-amz-checksum-crc64nvme": "AAAAAAAAAAA=", "x-amz-checksum-type": "COMPOSITE"}
    server.script(Answer(headers={**HEADERS, **headers}))
    assert store.head(KEY).crc64nvme is None


def test_403_on_head_is_not_absence(server: ScriptedS3, store: ObjectStore) -> None:
    # case B165
    server.script(Answer(status=403))
    with pytest.raises(errors.PermissionRefused):
        store.head(KEY)


@pytest.mark.parametrize(
    "second, error",
    [
        (Answer(status=404, body=error_body("NoSuchKey")), errors.ObjectAbsent),
        (Answer(status=404, body=error_body("NoSuchBucket")), errors.BucketMissing),
        (Answer(status=403, body=error_body("AccessDenied")), errors.PermissionRefused),
        (Answer(status=404, body=b"<html>no such page</html>"), errors.UnknownAnswer),
        (Answer(status=500, body=error_body("InternalError")), errors.UnknownAnswer),
        (_ranged(0, 0), errors.UnknownAnswer),
        (Answer(status=416, body=error_body("InvalidRange")), errors.UnknownAnswer),
    ],
)
def test_absence_needs_an_answer_that_names_the_key(
    server: ScriptedS3, store: ObjectStore, second: Answer, error: type[errors.DurastoreError]
) -> None:
    server.script(Answer(status=404), second)
    with pytest.raises(errors.DurastoreError) as caught:
        store.head(KEY)
    assert type(caught.value) is error
    assert [request.method for request in server.seen] == ["HEAD", "GET"]


def test_a_delete_marker_is_named(server: ScriptedS3, store: ObjectStore) -> None:
    # case B147
    server.script(Answer(status=404, headers={"x-amz-delete-marker": "true", "x-amz-version-id": "v9"}))
    with pytest.raises(errors.ObjectAbsent) as caught:
        store.head(KEY)
    assert caught.value.facts["is_delete_marker"] is True
    assert len(server.seen) == 1


# --- GET ------------------------------------------------------------------------------------------------------------


def test_bytes_are_asked_for_as_they_are_stored(server: ScriptedS3, store: ObjectStore) -> None:
    # case B169
    def answer(request: SeenRequest) -> Answer:
        is_plain = request.headers.get("accept-encoding", "*") == "identity"
        body = BODY if is_plain else b"compressed on the way"
        if "range" in request.headers:
            return _ranged(0, 99, body=body[:100])
        return Answer(headers=HEADERS, body=body)

    server.script(answer)
    assert store.fetch(KEY, offset=0, length=100) == BODY[:100]
    assert store.fetch(KEY) == b"".join(store.fetch_chunks(KEY, chunk_bytes=100)) == BODY
    assert store.head(KEY).size_bytes == len(BODY)
    assert {request.headers.get("accept-encoding") for request in server.seen} == {"identity"}


@WAYS
@pytest.mark.parametrize(
    "status, code, error",
    [
        (404, "NoSuchKey", errors.ObjectAbsent),
        (404, "NoSuchBucket", errors.BucketMissing),
        (403, "AccessDenied", errors.PermissionRefused),
        (403, "InvalidAccessKeyId", errors.CredentialsRefused),
        (403, "SignatureDoesNotMatch", errors.CredentialsRefused),
        (400, "ExpiredToken", errors.CredentialsRefused),
        (403, "InvalidObjectState", errors.RequestRefused),
        (503, "SlowDown", errors.OverloadedEndpoint),
        (429, "TooManyRequests", errors.OverloadedEndpoint),
        (500, "InternalError", errors.UnknownAnswer),
        (501, "NotImplemented", errors.RequestRefused),
        (400, "AuthorizationHeaderMalformed", errors.ConfigError),
    ],
)
def test_refusals_of_a_read(
    server: ScriptedS3,
    store: ObjectStore,
    read: Callable[[ObjectStore], object],
    status: int,
    code: str,
    error: type[errors.DurastoreError],
) -> None:
    server.script(Answer(status=status, body=error_body(code)))
    with pytest.raises(errors.DurastoreError) as caught:
        read(store)
    assert type(caught.value) is error
    assert caught.value.facts["server_code"] == code
    assert len(server.seen) == 1  # neither client asks again by itself


@WAYS
def test_a_404_of_something_else_is_not_absence(
    server: ScriptedS3, store: ObjectStore, read: Callable[[ObjectStore], object]
) -> None:
    server.script(Answer(status=404, body=b"<html><body>nothing here</body></html>"))
    with pytest.raises(errors.UnknownAnswer):
        read(store)


@WAYS
def test_a_connection_that_breaks_is_no_end_of_data(
    server: ScriptedS3, store: ObjectStore, read: Callable[[ObjectStore], object]
) -> None:
    # case B56
    def answer(request: SeenRequest) -> Answer:
        if "range" in request.headers:
            return _ranged(0, 99, send_bytes=40)
        return Answer(headers=HEADERS, body=BODY, send_bytes=500)

    server.script(answer)
    with pytest.raises(errors.EndpointUnreachable):
        read(store)
    server.script(Answer(is_dropped=True))
    with pytest.raises(errors.EndpointUnreachable):
        read(store)


@WAYS
def test_no_answer_in_time(server: ScriptedS3, read: Callable[[ObjectStore], object]) -> None:
    options = S3Options(endpoint_url=server.endpoint_url, region="us-east-1", read_timeout_s=0.3)
    store = open_object_store(BucketUrl.parse("s3://bucket"), s3=options)
    server.script(Answer(headers=HEADERS, body=BODY, delay_s=1.0))
    with pytest.raises(errors.EndpointUnreachable):
        read(store)
    store.close()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=200, headers=HEADERS, body=BODY),  # case B58: the range was ignored
        _ranged(100, 199),  # case B59: another range
        _ranged(0, 98),
        _ranged(0, 99, body=BODY[:60]),
        Answer(status=206, headers=HEADERS, body=BODY[:100]),
        Answer(status=206, headers={**HEADERS, "Content-Range": "bytes 0-99/*"}, body=BODY[:100]),
        Answer(status=416, headers={"Content-Range": "bytes */50"}, body=error_body("InvalidRange")),
    ],
)
def test_another_range_is_refused(server: ScriptedS3, store: ObjectStore, answer: Answer) -> None:
    server.script(answer)
    with pytest.raises(errors.IntegrityError):
        store.fetch(KEY, offset=0, length=100)
    server.script(answer)
    with pytest.raises(errors.IntegrityError):
        fetch_ranges(store, KEY, spans=[(0, 100)])


@pytest.mark.parametrize(
    "answer",
    [
        Answer(headers=HEADERS, body=BODY + b"more"),
        Answer(headers=HEADERS, body=BODY[:-1]),
        Answer(headers=HEADERS, body=b""),
        _ranged(0, 99),
    ],
)
def test_a_small_object_of_another_size_is_refused(server: ScriptedS3, store: ObjectStore, answer: Answer) -> None:
    server.script(answer)
    with pytest.raises(errors.IntegrityError):
        _fetch_whole(store)
    assert len(server.seen) == 1


def test_a_small_object_is_the_one_that_its_own_answer_names(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(Answer(headers={**HEADERS, "x-amz-version-id": "v7"}, body=BODY))
    found = _fetch_whole(store)
    assert found is not None
    assert (bytes(found.data), found.etag, found.version_id) == (BODY, '"e1"', "v7")
    server.script(Answer(headers={"Last-Modified": HEADERS["Last-Modified"]}, body=BODY))
    assert _fetch_whole(store) is None  # bytes of which nobody says whose they are


def test_of_several_ranges_none_is_given_where_one_is_another(server: ScriptedS3, store: ObjectStore) -> None:
    def answer(request: SeenRequest) -> Answer:
        start, stop = (int(text) for text in request.headers["range"].removeprefix("bytes=").split("-"))
        return _ranged(start, stop) if start else _ranged(100, 199)

    server.script(answer)
    spans = [(500, 600), (300, 400)]
    assert [bytes(data) for data in fetch_ranges(store, KEY, spans=spans)] == [BODY[500:600], BODY[300:400]]
    with pytest.raises(errors.IntegrityError):
        fetch_ranges(store, KEY, spans=[*spans, (0, 100)])


def test_a_cut_range_is_asked_for_again_and_another_one_is_not_taken_for_it(
    server: ScriptedS3, store: ObjectStore
) -> None:
    # case B59
    retrying = RetryingStore(store, RetryPolicy(), clock=ManualClock())
    server.script(_ranged(0, 99, send_bytes=40), _ranged(100, 199), _ranged(0, 99))
    with pytest.raises(errors.IntegrityError):
        retrying.fetch(KEY, offset=0, length=100)
    assert len(server.seen) == 2
    server.script(_ranged(0, 99, send_bytes=40), _ranged(0, 99))
    assert retrying.fetch(KEY, offset=0, length=100) == BODY[:100]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=200, headers=HEADERS, body=BODY),
        Answer(status=206, headers={**HEADERS, "Content-Range": f"bytes 0-99/{len(BODY)}"}, body=BODY[:100]),
        Answer(status=206, headers={**HEADERS, "Content-Range": f"bytes 1000-1010/{len(BODY)}"}, body=BODY[1000:1011]),
        Answer(status=416, body=error_body("InvalidRange")),
    ],
)
def test_another_tail_is_refused(server: ScriptedS3, store: ObjectStore, answer: Answer) -> None:
    server.script(answer)
    with pytest.raises(errors.IntegrityError):
        store.fetch(KEY, offset=1000)
    server.script(_ranged(1000, len(BODY) - 1))
    assert store.fetch(KEY, offset=1000) == BODY[1000:]


@WAYS
def test_an_answer_without_a_length_is_not_trusted(
    server: ScriptedS3, store: ObjectStore, read: Callable[[ObjectStore], object]
) -> None:
    def answer(request: SeenRequest) -> Answer:
        if "range" in request.headers:
            return _ranged(0, 99, has_length=False, send_bytes=40)
        return Answer(headers=HEADERS, body=BODY, has_length=False, send_bytes=40)

    server.script(answer)
    with pytest.raises(errors.DurastoreError) as caught:
        read(store)
    assert isinstance(caught.value, errors.UnknownAnswer | errors.IntegrityError | errors.EndpointUnreachable)


def test_a_version_can_be_asked_for(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(Answer(headers=HEADERS, body=BODY))
    assert b"".join(store.fetch_chunks(KEY, version_id="v7")) == BODY
    assert server.seen[-1].query["versionId"] == "v7"


# --- connections and secrets ----------------------------------------------------------------------------------------


def test_a_fresh_reader_opens_connections_of_its_own() -> None:
    def answer(request: SeenRequest) -> Answer:
        return _ranged(0, 9) if "range" in request.headers else Answer(headers=HEADERS, body=BODY)

    def look(reader: ObjectReader) -> None:
        reader.head(KEY)
        reader.fetch(KEY, offset=0, length=10)

    with ScriptedS3() as server:
        server.script(answer)
        options = S3Options(endpoint_url=server.endpoint_url, region="us-east-1")
        store = open_object_store(BucketUrl.parse("s3://bucket"), s3=options)
        for _ in range(3):
            look(store)
        assert server.connections == 2  # one for each client, kept open
        for already_open in (2, 4):
            reader = store.fresh_reader()
            look(reader)
            reader.close()
            assert server.connections == already_open + 2
        store.close()


def test_a_client_is_used_again_without_any_of_its_connections() -> None:
    with ScriptedS3() as server:
        server.script(Answer(headers=HEADERS, body=BODY))
        connector = Connector("bucket", S3Options(endpoint_url=server.endpoint_url, region="us-east-1"))
        first, second = connector.connect(), connector.connect()
        assert first is not second  # nobody else's while it is in use
        for count in (1, 1):
            first.head_object(Bucket="bucket", Key="k")
            assert server.connections == count
        connector.give_back(first)
        again = connector.connect()
        assert again is first
        again.head_object(Bucket="bucket", Key="k")
        assert server.connections == 2


def test_clients_that_are_given_back_do_not_pile_up() -> None:
    connector = Connector("bucket", S3Options(endpoint_url="http://127.0.0.1:1", region="us-east-1"))
    clients = [connector.connect() for _ in range(10)]
    for client in clients:
        connector.give_back(client)
    assert sum(connector.connect() in clients for _ in range(10)) == 8


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@WAYS
def test_no_secret_is_shown(server: ScriptedS3, store: ObjectStore, read: Callable[[ObjectStore], object]) -> None:
    quoted = b"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId></Error>"
    server.script(Answer(status=403, body=quoted))
    with pytest.raises(errors.CredentialsRefused) as caught:
        read(store)
    shown = [repr(store), repr(store.fresh_reader()), *(f"{exc!s} {exc!r}" for exc in _chain(caught.value))]
    assert not [text for text in shown if "hunter2" in text or "AKIDEXAMPLE" in text]
