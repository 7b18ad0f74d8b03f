"""One fault suite over both transports: what breaks on the way, and what the engine makes of it.

Every test ends with the same oracle: the file is untouched, and the bucket holds the file's bytes or nothing.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from durastore.errors import (
    AmbiguousWrite,
    BucketMissing,
    CredentialsRefused,
    DurastoreError,
    EndpointUnreachable,
    IntegrityError,
    OverloadedEndpoint,
    RequestRefused,
    StoreClosed,
    UnknownAnswer,
)
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.objectstore.retrying import RetryPolicy
from durastore.observe.events import Counting
from durastore.upload.engine import Uploader
from durastore.upload.job import UploadLimits, UploadReply
from durastore.upload.transports import choose_transport
from tests.faults.upload_server import (
    INTERNAL,
    SLOW_DOWN,
    Act,
    FaultyS3,
    Reply,
    StoredObject,
    answer,
    drop_answer,
    drop_request,
    error,
)
from tests.unit.upload_fakes import Pack

PART = 64 * 1024
POLICY = RetryPolicy(budget_s=20, base_s=0.01, cap_s=0.05, max_attempts=4)
LIMITS = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=8 * PART, max_requests=8)


@dataclass
class Bench:
    """An endpoint with faults, an engine on it, and the packs that were sent."""

    s3: FaultyS3
    transport: str
    folder: Path
    shared: Uploader
    packs: list[Pack] = field(default_factory=list)
    engines: list[Uploader] = field(default_factory=list)
    events: Counting = field(default_factory=Counting)

    def pack(self, size_bytes: int) -> Pack:
        name = f"pack-{len(self.packs)}"
        pack = Pack.make(self.folder, name, random.Random(name).randbytes(size_bytes))
        self.packs.append(pack)
        return pack

    def engine(self, *, limits: UploadLimits = LIMITS, policy: RetryPolicy = POLICY) -> Uploader:
        """An engine of the test's own, for other limits or where what an engine learned would disturb later tests."""
        engine = _engine(self.transport, self.s3, limits=limits, policy=policy, events=self.events)
        self.engines.append(engine)
        return engine

    def send(self, pack: Pack, *, engine: Uploader | None = None, is_overwriting: bool = False) -> Future[UploadReply]:
        return (engine or self.shared).submit(pack.job(is_overwriting=is_overwriting))

    def stored(self, pack: Pack) -> StoredObject | None:
        return self.s3.objects.get(pack.key.text)


def _engine(transport: str, s3: FaultyS3, *, limits: UploadLimits, policy: RetryPolicy, events: Counting) -> Uploader:
    options = S3Options(endpoint_url=s3.endpoint_url, region="us-east-1", connect_timeout_s=2, read_timeout_s=4)
    store = open_object_store(BucketUrl.parse("s3://bucket"), s3=options)
    factory = choose_transport(store, transport, s3=options, max_requests=limits.max_requests)
    return Uploader(factory, limits=limits, policy=policy, observer=events)


@pytest.fixture(scope="module", params=["threads", "aio"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[tuple[FaultyS3, Uploader, str]]:
    """One server and one engine for most tests: making a client costs more than a test does."""
    with pytest.MonkeyPatch.context() as patch, FaultyS3() as s3:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        engine = _engine(request.param, s3, limits=LIMITS, policy=POLICY, events=Counting())
        yield s3, engine, request.param
        engine.close(5)


@pytest.fixture
def bench(endpoint: tuple[FaultyS3, Uploader, str], tmp_path: Path) -> Iterator[Bench]:
    s3, shared, transport = endpoint
    s3.reset()
    bench = Bench(s3=s3, transport=transport, folder=tmp_path, shared=shared)
    yield bench
    for engine in bench.engines:
        engine.close(5)
    for pack in bench.packs:
        stored = s3.objects.get(pack.key.text)
        assert stored is None or stored.body == pack.path.read_bytes() or stored.metadata == {"is": "foreign"}


def assert_arrived(bench: Bench, pack: Pack) -> None:
    stored = bench.stored(pack)
    assert stored is not None
    assert stored.body == pack.data
    assert stored.metadata["durastore-write-id"] == pack.write_id
    assert pack.key.text not in [upload.key for upload in bench.s3.uploads.values()]


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_b49_sizes_around_part_edges(bench: Bench, extra: int) -> None:
    packs = [bench.pack(k * PART + extra) for k in range(1, 8)]
    for future, pack in [(bench.send(pack), pack) for pack in packs]:
        assert future.result(30).settled_by == "answer"
        assert future.result().part_bytes == (PART if len(pack.data) > PART else 0)
        assert_arrived(bench, pack)


def test_an_empty_pack(bench: Bench) -> None:
    pack = bench.pack(0)
    bench.send(pack).result(10)
    assert_arrived(bench, pack)


@pytest.mark.parametrize("op, size", [("put", PART), ("part", 3 * PART), ("create", 3 * PART), ("complete", 3 * PART)])
@pytest.mark.parametrize(
    "fault",
    [SLOW_DOWN, INTERNAL, drop_request, drop_answer, answer(error(400, "IncompleteBody"))],
    ids=["b50-slow-down", "b156-500", "request-lost", "b98-b99-answer-lost", "b107-incomplete-body"],
)
def test_one_fault_that_passes(bench: Bench, op: str, size: int, fault: Callable[[Act], Reply | None]) -> None:
    # case B50, case B107
    bench.s3.fault(op, 1, fault)
    pack = bench.pack(size)
    reply = bench.send(pack).result(30)
    stored = bench.stored(pack)
    assert stored is not None
    assert stored.body == pack.data
    assert reply.etag == stored.etag
    assert reply.write_id == pack.write_id


def test_b98_a_lost_answer_to_put_is_settled_by_a_look_and_not_sent_twice(bench: Bench) -> None:
    bench.s3.fault("put", 1, drop_answer)
    pack = bench.pack(1000)
    reply = bench.send(pack).result(10)
    assert (reply.settled_by, reply.part_bytes) == ("head", None)
    assert bench.s3.calls["put"] == 1
    assert_arrived(bench, pack)


def test_b99_a_lost_answer_to_complete_is_settled_by_a_look(bench: Bench) -> None:
    bench.s3.fault("complete", 1, drop_answer)
    pack = bench.pack(3 * PART)
    reply = bench.send(pack).result(20)
    assert (reply.settled_by, reply.part_bytes) == ("head", None)
    assert bench.s3.calls["complete"] == 1
    assert bench.s3.calls["part"] == 3
    assert_arrived(bench, pack)


def test_b99_the_look_is_repeated_when_the_endpoint_shows_the_object_late(bench: Bench) -> None:
    bench.s3.fault("complete", 1, drop_answer)
    bench.s3.fault("head", 1, answer(Reply(status=404)))
    bench.s3.fault("get", 1, answer(error(404, "NoSuchKey")))
    pack = bench.pack(3 * PART)
    assert bench.send(pack).result(20).settled_by == "head"
    assert bench.s3.calls["part"] == 3, "NoSuchUpload after the first look led to a second look, not to a second upload"
    assert_arrived(bench, pack)


def test_b99_an_earlier_process_completed_and_died(bench: Bench) -> None:
    pack = bench.pack(3 * PART)
    bench.send(pack).result(20)
    assert pack.session is not None
    again = bench.send(pack).result(20)
    assert (again.settled_by, again.part_bytes) == ("head", None)
    assert bench.s3.calls["part"] == 3


def test_412_for_a_put_of_an_earlier_process_is_recognised(bench: Bench) -> None:
    pack = bench.pack(1000)
    bench.send(pack).result(10)
    assert bench.send(pack).result(10).settled_by == "head"


@pytest.mark.parametrize("size", [1000, 3 * PART])
@pytest.mark.parametrize("other_size", [0, 1])
def test_b80_other_bytes_under_our_key_are_a_conflict(bench: Bench, size: int, other_size: int) -> None:
    pack = bench.pack(size)
    other = StoredObject(body=b"x" * (size - other_size), etag='"x"', crc="AAAAAAAAAAA=", metadata={"is": "foreign"})
    bench.s3.objects[pack.key.text] = other
    if size > PART:  # no condition on Complete: here an earlier process's upload is gone and other bytes lie there
        bench.s3.fault("complete", 1, answer(error(404, "NoSuchUpload")))
    with pytest.raises(IntegrityError, match="conflict") as caught:
        bench.send(pack).result(20)
    assert caught.value.facts["is_conflict"] is True
    assert bench.stored(pack) is other
    assert pack.path.read_bytes() == pack.data


@pytest.mark.parametrize("size", [1000, 3 * PART])
def test_a_wrong_object_is_replaced_when_told_to(bench: Bench, size: int) -> None:
    pack = bench.pack(size)
    bench.send(pack).result(20)
    stored = bench.stored(pack)
    assert stored is not None
    stored.body = b"damaged at rest" + stored.body[15:]
    pack.session = None
    bench.send(pack, is_overwriting=True).result(20)
    assert_arrived(bench, pack)


def test_a_lost_answer_while_replacing_is_not_settled_by_the_wrong_object(bench: Bench) -> None:
    pack = bench.pack(1000)
    bench.send(pack).result(20)
    stored = bench.stored(pack)
    assert stored is not None
    stored.body = b"damaged at rest" + stored.body[15:]
    bench.s3.fault("put", 2, drop_request)
    assert bench.send(pack, is_overwriting=True).result(20).settled_by == "answer"
    assert_arrived(bench, pack)


def test_b53_complete_answers_200_with_an_error_document(bench: Bench) -> None:
    document = error(500, "InternalError").body.removeprefix(b"<?xml version='1.0' encoding='UTF-8'?>")
    bench.s3.fault("complete", 1, answer(Reply(status=200, body=document, delay_s=0.2)))
    pack = bench.pack(3 * PART)
    bench.send(pack).result(20)
    assert bench.s3.calls["complete"] == 2
    assert_arrived(bench, pack)


@pytest.mark.parametrize("body", [b"", b"<html>ok</html>", b"<Error><Code>InternalError</Code></Error>"])
def test_b53_complete_always_answers_200_without_success(bench: Bench, body: bytes) -> None:
    bench.s3.always("complete", answer(Reply(status=200, body=body)))
    pack = bench.pack(3 * PART)
    with pytest.raises(UnknownAnswer):
        bench.send(pack).result(30)
    assert bench.stored(pack) is None
    assert pack.session is not None
    assert len(pack.session.parts) == 3
    bench.s3.always("complete", None)
    bench.send(pack).result(20)
    assert bench.s3.calls["part"] == 3
    assert_arrived(bench, pack)


def test_b47_an_endpoint_that_forgets_a_part_and_says_200(bench: Bench) -> None:
    def forget(act: Act) -> Reply | None:
        for upload in bench.s3.uploads.values():
            body = b"".join(part for number, (_, part) in sorted(upload.parts.items()) if number != 2)
            bench.s3.objects[upload.key] = StoredObject(body=body, etag='"e"', metadata={"is": "foreign"})
        inner = f"<Key>{pack.key}</Key><ETag>&quot;e&quot;</ETag>"
        return Reply(
            status=200, body=f"<CompleteMultipartUploadResult>{inner}</CompleteMultipartUploadResult>".encode()
        )

    bench.s3.fault("complete", 1, forget)
    pack = bench.pack(4 * PART)
    with pytest.raises(IntegrityError, match="bytes instead of"):
        bench.send(pack).result(20)
    assert pack.path.read_bytes() == pack.data


@pytest.mark.parametrize("op", ["put", "part", "create", "complete"])
@pytest.mark.parametrize("fault, kind", [(INTERNAL, UnknownAnswer), (SLOW_DOWN, OverloadedEndpoint)])
def test_b156_the_retry_budget_ends(
    bench: Bench, op: str, fault: Callable[[Act], Reply | None], kind: type[DurastoreError]
) -> None:
    bench.s3.always(op, fault)
    pack = bench.pack(1000 if op == "put" else 2 * PART)
    engine = bench.engine() if fault is SLOW_DOWN else bench.shared
    with pytest.raises(kind):
        bench.send(pack, engine=engine).result(30)
    assert bench.s3.calls[op] <= POLICY.max_attempts * 2
    assert bench.stored(pack) is None
    assert pack.path.read_bytes() == pack.data
    bench.s3.always(op, None)
    bench.send(pack, engine=engine).result(30)
    assert_arrived(bench, pack)


def test_an_endpoint_that_is_gone_is_told_as_unreachable(bench: Bench) -> None:
    with FaultyS3() as gone:
        pass
    pack = bench.pack(1000)
    engine = _engine(bench.transport, gone, limits=LIMITS, policy=POLICY, events=bench.events)
    bench.engines.append(engine)
    with pytest.raises(EndpointUnreachable):
        bench.send(pack, engine=engine).result(60)


@pytest.mark.parametrize(
    "reply, kind",
    [
        (error(403, "ExpiredToken"), CredentialsRefused),
        (error(403, "AccessDenied"), CredentialsRefused),
        (error(404, "NoSuchBucket"), BucketMissing),
        (error(400, "InvalidRequest"), RequestRefused),
    ],
)
@pytest.mark.parametrize("op", ["put", "create"])
def test_what_cannot_pass_is_asked_once(bench: Bench, reply: Reply, kind: type[DurastoreError], op: str) -> None:
    bench.s3.always(op, answer(reply))
    pack = bench.pack(1000 if op == "put" else 2 * PART)
    with pytest.raises(kind):
        bench.send(pack).result(20)
    assert bench.s3.calls[op] == 1


def test_b149_expired_credentials_end_every_future_once(bench: Bench) -> None:
    expired = threading.Event()
    served = threading.Semaphore(60)

    def expire(act: Act) -> Reply | None:
        if expired.is_set() or not served.acquire(blocking=False):
            expired.set()
            return error(403, "ExpiredToken")
        return act()

    for op in ("put", "part", "create", "complete", "head", "parts"):
        bench.s3.always(op, expire)
    packs = [bench.pack(1000 if n % 3 else 2 * PART + n) for n in range(100)]
    ended: list[Future[UploadReply]] = []
    futures = [bench.send(pack) for pack in packs]
    for future in futures:
        future.add_done_callback(ended.append)
    outcomes = [future.exception(60) for future in futures]
    assert expired.is_set()
    assert len(ended) == len(futures) == len({id(future) for future in ended})
    assert any(outcome is None for outcome in outcomes)
    assert all(outcome is None or isinstance(outcome, CredentialsRefused) for outcome in outcomes)
    for outcome, pack in zip(outcomes, packs, strict=True):
        if outcome is None:
            stored = bench.stored(pack)
            assert stored is not None
            assert stored.body == pack.data


def test_b157_a_request_limit_is_respected(bench: Bench) -> None:
    """A server that serves 100 requests a second and answers SlowDown beyond: few requests are wasted."""
    lock = threading.Lock()
    clock = threading.Event()
    tokens = [10.0]
    refused = [0]

    def refill() -> None:
        while not clock.wait(0.02):
            with lock:
                tokens[0] = min(10.0, tokens[0] + 2.0)

    def limited(act: Act) -> Reply | None:
        with lock:
            if tokens[0] < 1:
                refused[0] += 1
                return error(503, "SlowDown")
            tokens[0] -= 1
        return act()

    bench.s3.always("put", limited)
    filler = threading.Thread(target=refill)
    filler.start()
    try:
        policy = RetryPolicy(budget_s=60, base_s=0.05, cap_s=1.0, max_attempts=50)
        engine = bench.engine(limits=UploadLimits(max_requests=64, max_jobs=64), policy=policy)
        packs = [bench.pack(100) for _ in range(120)]
        for future in [bench.send(pack, engine=engine) for pack in packs]:
            future.result(60)
    finally:
        clock.set()
        filler.join()
    assert refused[0] > 0, "the scene did not reach the limit"
    assert bench.s3.calls["put"] < 2 * len(packs)


def test_b44_a_file_cut_while_it_is_read_is_never_completed(bench: Bench) -> None:
    pack = bench.pack(20 * PART)

    def cut(act: Act) -> Reply | None:
        os.truncate(pack.path, 15 * PART)
        return act()

    bench.s3.fault("part", 2, cut)
    with pytest.raises(IntegrityError, match="source changed"):
        bench.send(pack).result(20)
    assert bench.s3.calls["complete"] == 0
    assert not bench.s3.uploads, "the upload was aborted"
    assert pack.session is None
    assert pack.path.stat().st_size == 15 * PART


@pytest.mark.parametrize("size", [PART // 2, 5 * PART])
def test_a_byte_that_changed_since_the_seal_is_never_completed(bench: Bench, size: int) -> None:
    pack = bench.pack(size)
    with pack.path.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes([pack.data[size // 2] ^ 1]))
    with pytest.raises(IntegrityError, match="source changed"):
        bench.send(pack).result(20)
    assert bench.s3.calls["put"] == bench.s3.calls["complete"] == 0
    assert not bench.s3.objects
    assert not bench.s3.uploads


def test_b46_a_file_unlinked_during_its_upload_is_still_sent_whole(bench: Bench) -> None:
    pack = bench.pack(20 * PART)
    aside = pack.path.with_name("aside")

    def unlink(act: Act) -> Reply | None:
        os.rename(pack.path, aside)
        return act()

    bench.s3.fault("part", 2, unlink)
    bench.send(pack).result(20)
    os.rename(aside, pack.path)
    assert_arrived(bench, pack)


def _interrupt_after(bench: Bench, pack: Pack, parts: int, *, limits: UploadLimits) -> None:
    """Leaves the pack's session with some parts recorded, as a killed process does."""
    reached, go_on = threading.Event(), threading.Event()

    def hold(act: Act) -> Reply | None:
        reached.set()
        go_on.wait(0.2)
        return None

    bench.s3.fault("part", parts + 1, hold)
    engine = bench.engine(limits=limits)
    future = engine.submit(pack.job())
    assert reached.wait(10)
    engine.close(0)
    go_on.set()
    assert isinstance(future.exception(5), StoreClosed)
    assert pack.session is not None
    assert bench.stored(pack) is None
    assert bench.s3.calls["abort"] == 0


def test_b94_b96_resume_keeps_parts_and_the_recorded_part_size(bench: Bench) -> None:
    one_by_one = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=PART, max_requests=1)
    pack = bench.pack(8 * PART + 7)
    _interrupt_after(bench, pack, 3, limits=one_by_one)
    assert pack.session is not None
    assert [part.number for part in pack.session.parts] == [1, 2, 3]

    before = bench.s3.received_bytes
    larger = bench.engine(limits=UploadLimits(part_bytes=2 * PART, multipart_above=100 * PART))
    assert bench.send(pack, engine=larger).result(20).part_bytes == PART
    assert bench.s3.calls["create"] == 1
    assert bench.s3.received_bytes - before <= len(pack.data) - 3 * PART + 10_000
    assert_arrived(bench, pack)


def test_resume_sends_a_part_again_that_the_endpoint_lost(bench: Bench) -> None:
    pack = bench.pack(6 * PART)
    one_by_one = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=PART, max_requests=1)
    _interrupt_after(bench, pack, 4, limits=one_by_one)
    assert pack.session is not None
    bench.s3.uploads[pack.session.upload_id].parts.pop(2)
    sent = bench.s3.calls["part"]
    bench.send(pack, engine=bench.engine()).result(20)
    assert bench.s3.calls["part"] - sent == 3
    assert_arrived(bench, pack)


def test_resume_begins_anew_when_the_endpoint_forgot_the_upload(bench: Bench) -> None:
    pack = bench.pack(6 * PART)
    one_by_one = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=PART, max_requests=1)
    _interrupt_after(bench, pack, 4, limits=one_by_one)
    bench.s3.uploads.clear()
    bench.send(pack, engine=bench.engine()).result(20)
    assert bench.s3.calls["create"] == 2
    assert_arrived(bench, pack)


def test_an_upload_forgotten_between_two_parts_begins_anew(bench: Bench) -> None:
    def forget(act: Act) -> Reply | None:
        bench.s3.uploads.clear()
        return act()

    bench.s3.fault("part", 3, forget)
    pack = bench.pack(6 * PART)
    bench.send(pack).result(20)
    assert bench.s3.calls["create"] == 2
    assert_arrived(bench, pack)


def test_resume_without_the_right_to_list_parts_trusts_the_record(bench: Bench) -> None:
    pack = bench.pack(6 * PART)
    one_by_one = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=PART, max_requests=1)
    _interrupt_after(bench, pack, 4, limits=one_by_one)
    bench.s3.always("parts", answer(error(403, "AccessDenied")))
    sent = bench.s3.calls["part"]
    bench.send(pack, engine=bench.engine()).result(20)
    assert bench.s3.calls["part"] - sent == 2
    assert_arrived(bench, pack)


def test_a_resumed_upload_that_is_refused_begins_anew_once(bench: Bench) -> None:
    pack = bench.pack(6 * PART)
    one_by_one = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=PART, max_requests=1)
    _interrupt_after(bench, pack, 4, limits=one_by_one)
    bench.s3.always("parts", answer(error(403, "AccessDenied")))
    assert pack.session is not None
    bench.s3.uploads[pack.session.upload_id].parts.pop(1)  # Complete will answer InvalidPart
    bench.send(pack, engine=bench.engine()).result(20)
    assert bench.s3.calls["create"] == 2
    assert_arrived(bench, pack)


def test_b153_parts_are_listed_over_all_pages(bench: Bench) -> None:
    bench.s3.page_parts = 10
    pack = bench.pack(35 * PART)
    one_by_one = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=PART, max_requests=1)
    _interrupt_after(bench, pack, 33, limits=one_by_one)
    sent = bench.s3.calls["part"]
    bench.send(pack, engine=bench.engine()).result(20)
    assert bench.s3.calls["parts"] == 4
    assert bench.s3.calls["part"] - sent == 2
    assert_arrived(bench, pack)


def test_b152_parts_sent_again_are_one_part_each_and_an_abort_leaves_none(bench: Bench) -> None:
    for nth in (1, 2, 4, 5, 7):
        bench.s3.fault("part", nth, drop_answer)
    bench.s3.always("complete", answer(error(400, "InvalidRequest")))
    seen: list[int] = []

    def look(act: Act) -> Reply | None:
        seen.extend(len(upload.parts) for upload in bench.s3.uploads.values())
        return act()

    bench.s3.always("abort", look)
    pack = bench.pack(3 * PART)
    one_by_one = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=PART, max_requests=1)
    with pytest.raises(RequestRefused):
        bench.send(pack, engine=bench.engine(limits=one_by_one)).result(20)
    assert bench.s3.calls["part"] == 8
    assert seen == [3]
    assert not bench.s3.uploads
    assert pack.session is None


def test_b154_a_stuck_request_is_given_up_and_sent_again(bench: Bench) -> None:
    go_on = threading.Event()

    def hang(act: Act) -> Reply | None:
        go_on.wait(10)
        return None

    bench.s3.fault("put", 1, hang)
    pack = bench.pack(1000)
    limits = UploadLimits(request_timeout_s=0.5)
    try:
        bench.send(pack, engine=bench.engine(limits=limits)).result(20)
    finally:
        go_on.set()
    assert bench.events.count("upload.stuck") == 1
    assert_arrived(bench, pack)


def test_create_only_is_left_off_where_the_endpoint_does_not_know_it(bench: Bench) -> None:
    bench.s3.honours_if_none_match = False
    engine = bench.engine()
    packs = [bench.pack(1000) for _ in range(3)]
    for pack in packs:
        bench.send(pack, engine=engine).result(10)
        assert_arrived(bench, pack)
    assert bench.s3.calls["put"] == 4


def test_a_body_damaged_on_the_way_is_sent_again(bench: Bench) -> None:
    bench.s3.fault("put", 1, answer(error(400, "BadDigest")))
    pack = bench.pack(1000)
    bench.send(pack).result(10)
    assert_arrived(bench, pack)


def test_abort_that_fails_leaves_the_record(bench: Bench) -> None:
    bench.s3.always("abort", INTERNAL)
    pack = bench.pack(5 * PART)
    os.truncate(pack.path, 5 * PART)
    with pack.path.open("r+b") as file:
        file.write(bytes([pack.data[0] ^ 1]))
    with pytest.raises(IntegrityError):
        bench.send(pack, engine=bench.engine()).result(20)
    assert pack.session is not None
    assert bench.events.count("upload.abort-failed") == 1


def test_b150_each_request_is_signed_when_it_is_sent(bench: Bench) -> None:
    """Parts wait for their turn unsigned: with one request at a time the signing times follow the sending times."""

    def slow(act: Act) -> Reply | None:
        threading.Event().wait(0.25)
        return act()

    bench.s3.always("part", slow)
    one_by_one = UploadLimits(part_bytes=PART, multipart_above=PART, budget_bytes=8 * PART, max_requests=1)
    pack = bench.pack(6 * PART)
    bench.send(pack, engine=bench.engine(limits=one_by_one)).result(20)
    assert bench.s3.peak == 1
    assert len(set(bench.s3.signed_at)) >= 2, "signed in one go, long before they were sent"


def test_ambiguity_without_end_surfaces_as_such(bench: Bench) -> None:
    bench.s3.always("put", drop_request)
    pack = bench.pack(1000)
    with pytest.raises(AmbiguousWrite):
        bench.send(pack).result(30)
    assert bench.stored(pack) is None
