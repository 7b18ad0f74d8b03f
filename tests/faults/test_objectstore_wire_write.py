"""Odd answers on the wire: what the S3 adapter makes of them when it writes, and what it sends."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator

import pytest

from durastore import errors
from durastore.clock import ManualClock
from durastore.model import ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.port import ObjectStore, PartReply
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from tests.faults.objectstore_scripted import DATE_S, Answer, ScriptedS3, error_body

KEY = ObjectKey("p/k")
BODY = bytes(range(256)) * 4096
CRC = crc64nvme_b64(BODY)
PART = PartReply(number=1, etag='"e1"', size_bytes=len(BODY), crc64nvme=CRC)
DONE = (
    b'<?xml version="1.0"?><CompleteMultipartUploadResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<Bucket>bucket</Bucket><Key>p/k</Key><ETag>&quot;e-1&quot;</ETag></CompleteMultipartUploadResult>"
)
OK = Answer(headers={"ETag": '"e1"', "x-amz-version-id": "v1"})


pytestmark = pytest.mark.usefixtures("server")  # its credentials are in the environment


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedS3]:
    with pytest.MonkeyPatch.context() as patch, ScriptedS3() as server:
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        yield server


Opener = Callable[..., ObjectStore]


@pytest.fixture(scope="module")
def open_store(server: ScriptedS3) -> Iterator[Opener]:
    opened: list[ObjectStore] = []

    def open_it(**options: object) -> ObjectStore:
        s3 = S3Options(endpoint_url=server.endpoint_url, region="us-east-1", **options)  # type: ignore[arg-type]  # its fields
        opened.append(open_object_store(BucketUrl.parse("s3://bucket"), s3=s3))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture(scope="module")
def store(open_store: Opener) -> ObjectStore:
    return open_store(read_timeout_s=5.0)


def _put(store: ObjectStore, **more: bool) -> object:
    return store.put(KEY, BODY, crc64nvme=CRC, metadata={"durastore-write-id": "w1"}, **more)


def _complete(store: ObjectStore) -> object:
    return store.complete_upload(KEY, "u1", parts=[PART], size_bytes=len(BODY), crc64nvme=CRC)


WRITES: list[Callable[[ObjectStore], object]] = [
    _put,
    lambda store: store.create_upload(KEY, metadata={}),
    lambda store: store.upload_part(KEY, "u1", number=1, body=BODY, crc64nvme=CRC),
    _complete,
]
ALL_WRITES = pytest.mark.parametrize("write", WRITES, ids=["put", "create", "part", "complete"])


# --- what is sent ---------------------------------------------------------------------------------------------------


def test_a_put_carries_its_checksum_and_is_not_signed_over_its_body(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(OK)
    reply = store.put(KEY, BODY, crc64nvme=CRC, metadata={"durastore-write-id": "w1"}, if_absent=True)
    assert (reply.etag, reply.version_id, reply.server_time_s) == ('"e1"', "v1", DATE_S)
    (request,) = server.seen
    assert (request.method, request.path, request.body) == ("PUT", "/bucket/p/k", BODY)
    assert request.headers["x-amz-checksum-crc64nvme"] == CRC
    assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert request.headers["x-amz-meta-durastore-write-id"] == "w1"
    assert request.headers["if-none-match"] == "*"
    assert "content-encoding" not in request.headers  # no aws-chunked framing, no trailer (case B55)
    assert "x-amz-trailer" not in request.headers
    assert "x-amz-sdk-checksum-algorithm" not in request.headers


def test_an_upload_carries_checksums_and_the_whole_size(server: ScriptedS3, store: ObjectStore) -> None:
    created = (
        b'<?xml version="1.0"?><InitiateMultipartUploadResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        b"<UploadId>u1</UploadId></InitiateMultipartUploadResult>"
    )
    server.script(Answer(body=created), OK, Answer(body=DONE))
    assert store.create_upload(KEY, metadata={"durastore-write-id": "w1"}) == "u1"
    part = store.upload_part(KEY, "u1", number=1, body=memoryview(BODY), crc64nvme=CRC)
    assert part == PART
    assert store.complete_upload(KEY, "u1", parts=[part], size_bytes=len(BODY), crc64nvme=CRC).etag == '"e-1"'
    create, send, complete = server.seen
    assert create.headers["x-amz-checksum-algorithm"] == "CRC64NVME"
    assert create.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    assert create.headers["x-amz-meta-durastore-write-id"] == "w1"
    assert (send.query["partNumber"], send.query["uploadId"], send.body) == ("1", "u1", BODY)
    assert send.headers["x-amz-checksum-crc64nvme"] == CRC
    assert complete.headers["x-amz-checksum-crc64nvme"] == CRC
    assert complete.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    assert complete.headers["x-amz-mp-object-size"] == str(len(BODY))
    assert CRC.encode() in complete.body


def test_storage_options_go_with_what_creates_an_object(server: ScriptedS3, open_store: Opener) -> None:
    store = open_store(storage_class="STANDARD_IA", sse="aws:kms", kms_key="key-1")
    server.script(OK)
    _put(store)
    headers = server.seen[-1].headers
    assert headers["x-amz-storage-class"] == "STANDARD_IA"
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"


def test_the_checksum_headers_can_be_left_out(server: ScriptedS3, open_store: Opener) -> None:
    # case B160
    server.script(OK, OK, Answer(body=DONE))
    store = open_store(checksum="md5")
    _put(store)
    store.upload_part(KEY, "u1", number=1, body=BODY, crc64nvme=CRC)
    _complete(store)
    digest = base64.b64encode(hashlib.md5(BODY, usedforsecurity=False).digest()).decode()
    assert [request.headers.get("content-md5") for request in server.seen] == [digest, digest, None]
    assert not [name for request in server.seen for name in request.headers if name.startswith("x-amz-checksum")]
    server.script(OK)
    _put(open_store(checksum="none"))
    (request,) = server.seen
    assert not [name for name in request.headers if name.startswith(("content-md5", "x-amz-checksum"))]


# --- what comes back ------------------------------------------------------------------------------------------------


@ALL_WRITES
@pytest.mark.parametrize(
    "status, code, error",
    [
        (403, "AccessDenied", errors.PermissionRefused),
        (403, "InvalidAccessKeyId", errors.CredentialsRefused),
        (404, "NoSuchBucket", errors.BucketMissing),
        (404, "NoSuchUpload", errors.RequestRefused),
        (400, "BadDigest", errors.RequestRefused),
        (400, "IncompleteBody", errors.UnknownAnswer),
        (412, "PreconditionFailed", errors.ObjectExists),
        (503, "SlowDown", errors.OverloadedEndpoint),
        (500, "InternalError", errors.AmbiguousWrite),
    ],
)
def test_refusals_of_a_write(
    server: ScriptedS3,
    store: ObjectStore,
    write: Callable[[ObjectStore], object],
    status: int,
    code: str,
    error: type[errors.DurastoreError],
) -> None:
    server.script(Answer(status=status, body=error_body(code)))
    with pytest.raises(errors.DurastoreError) as caught:
        write(store)
    assert type(caught.value) is error
    assert caught.value.facts["server_code"] == code
    assert len(server.seen) == 1  # botocore does not ask again by itself


@ALL_WRITES
def test_a_lost_answer_is_ambiguous(
    server: ScriptedS3, store: ObjectStore, write: Callable[[ObjectStore], object]
) -> None:
    server.script(Answer(is_dropped=True))
    with pytest.raises(errors.AmbiguousWrite):
        write(store)
    assert len(server.seen) == 1


def test_an_answer_that_comes_too_late_is_ambiguous(server: ScriptedS3, open_store: Opener) -> None:
    server.script(Answer(headers=OK.headers, delay_s=1.0))
    with pytest.raises(errors.AmbiguousWrite):
        _put(open_store(read_timeout_s=0.3))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b" " * 2000 + error_body("InternalError").partition(b"?>\n")[2]),  # case B53
        Answer(body=error_body("SlowDown")),
        Answer(body=error_body("NoSuchUpload")),
        Answer(body=b""),
        Answer(body=b"   "),
        Answer(body=b"<html>welcome</html>"),
        Answer(body=b"not xml at all"),
        Answer(body=DONE.replace(b"p/k", b"other")),
        Answer(body=DONE.replace(b"<ETag>&quot;e-1&quot;</ETag>", b"")),
        Answer(body=DONE, send_bytes=40),
    ],
)
def test_200_to_complete_is_success_only_if_it_names_the_object(
    server: ScriptedS3, store: ObjectStore, answer: Answer
) -> None:
    server.script(answer)
    with pytest.raises(errors.AmbiguousWrite):
        _complete(store)


def test_a_put_without_an_etag_is_ambiguous(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(Answer())
    with pytest.raises(errors.AmbiguousWrite):
        _put(store)


def test_an_upload_id_that_lacks_is_no_upload(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(Answer(body=b"<InitiateMultipartUploadResult/>"))
    with pytest.raises(errors.UnknownAnswer):
        store.create_upload(KEY, metadata={})


def test_an_upload_that_is_gone_counts_as_aborted(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(Answer(status=404, body=error_body("NoSuchUpload")))
    store.abort_upload(KEY, "u1")
    server.script(Answer(status=403, body=error_body("AccessDenied")))
    with pytest.raises(errors.PermissionRefused):
        store.abort_upload(KEY, "u1")


# --- sent again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        Answer(status=503, body=error_body("SlowDown")),  # case B50
        Answer(status=400, body=error_body("IncompleteBody")),  # case B107
        Answer(status=500, body=error_body("InternalError")),
        Answer(is_dropped=True),
    ],
)
def test_what_is_sent_again_is_sent_whole(server: ScriptedS3, store: ObjectStore, first: Answer) -> None:
    server.script(first, OK, first, OK)
    retrying = RetryingStore(store, RetryPolicy(), clock=ManualClock())
    _put(retrying)
    retrying.upload_part(KEY, "u1", number=1, body=memoryview(BODY), crc64nvme=CRC)
    assert [request.body == BODY for request in server.seen] == [True] * 4


# --- parts ----------------------------------------------------------------------------------------------------------


def _parts(numbers: range, *, following: int | None) -> Answer:
    rows = "".join(
        f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;e{n}&quot;</ETag><Size>{n}</Size></Part>" for n in numbers
    )
    more = "" if following is None else f"<NextPartNumberMarker>{following}</NextPartNumberMarker>"
    is_truncated = "true" if following is not None else "false"
    body = f"<ListPartsResult><IsTruncated>{is_truncated}</IsTruncated>{more}{rows}</ListPartsResult>"
    return Answer(body=body.encode())


def test_parts_are_listed_over_all_pages(server: ScriptedS3, store: ObjectStore) -> None:
    # case B153
    server.script(
        _parts(range(1, 11), following=10), _parts(range(11, 21), following=20), _parts(range(21, 36), following=None)
    )
    parts = store.list_parts(KEY, "u1")
    assert [part.number for part in parts] == list(range(1, 36))
    assert parts[4] == PartReply(number=5, etag='"e5"', size_bytes=5, crc64nvme="")
    assert [request.query.get("part-number-marker") for request in server.seen] == ["0", "10", "20"]


def test_a_parts_page_that_does_not_go_on_is_no_answer(server: ScriptedS3, store: ObjectStore) -> None:
    server.script(_parts(range(1, 11), following=10))
    with pytest.raises(errors.UnknownAnswer):
        store.list_parts(KEY, "u1")
    assert len(server.seen) == 2
    server.script(Answer(body=b"<html/>"))
    with pytest.raises(errors.UnknownAnswer):
        store.list_parts(KEY, "u1")
