"""What is asked again, what never is, and that an unclear outcome stays unclear."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durastore import errors
from durastore.clock import ManualClock
from durastore.model import ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ListPage
from durastore.objectstore.retrying import RetryingStore, RetryPolicy
from durastore.testing.faulty import Fault, FaultRule, FaultyStore

KEY = ObjectKey("p/k")
BODY = bytes(range(256)) * 64
CRC = crc64nvme_b64(BODY)
POLICY = RetryPolicy(budget_s=60.0, base_s=0.5, cap_s=8.0, max_attempts=6, jitter=lambda: 1.0)


def _stores(*rules: FaultRule, policy: RetryPolicy = POLICY) -> tuple[RetryingStore, FaultyStore, list[float]]:
    slept: list[float] = []
    faulty = FaultyStore(MemoryStore(), *rules)
    return RetryingStore(faulty, policy, clock=ManualClock(on_sleep=slept.append)), faulty, slept


def _put(store: RetryingStore, *, if_absent: bool = False) -> None:
    store.put(KEY, BODY, crc64nvme=CRC, metadata={}, if_absent=if_absent)


def test_delays_double_up_to_the_cap_and_overload_waits_longer() -> None:
    error = errors.EndpointUnreachable("x")
    assert [POLICY.delay_s(attempt, error) for attempt in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]
    assert POLICY.delay_s(1, errors.OverloadedEndpoint("x")) == 2.0


def test_jitter_is_full() -> None:
    delays = [RetryPolicy(base_s=1.0).delay_s(3, errors.UnknownAnswer("x")) for _ in range(200)]
    known = [delay for delay in delays if delay is not None]
    assert len(known) == 200
    assert 0.0 <= min(known) < 1.0 < max(known) <= 4.0


@pytest.mark.parametrize(
    "error",
    [
        errors.IntegrityError("x"),
        errors.ObjectExists("x"),
        errors.ObjectAbsent("x"),
        errors.RequestRefused("x"),
        errors.CredentialsRefused("x"),
        errors.PermissionRefused("x"),
        errors.InventoryIncomplete("x"),
        KeyboardInterrupt(),
        ValueError("x"),
    ],
)
def test_what_is_never_asked_again(error: BaseException) -> None:
    assert POLICY.delay_s(1, error) is None


@pytest.mark.parametrize("fault", [Fault.DROP_REQUEST, Fault.DROP_RESPONSE, Fault.SERVER_ERROR, Fault.SLOW_DOWN])
@pytest.mark.parametrize("op", ["put", "head", "fetch", "fetch_chunks", "list"])
def test_every_operation_survives_two_failures(op: str, fault: Fault) -> None:
    store, faulty, slept = _stores(FaultRule(op=op, fault=fault, count=2))
    _put(store)
    assert store.head(KEY).size_bytes == len(BODY)
    assert store.fetch(KEY, offset=10, length=20) == BODY[10:30]
    assert b"".join(store.fetch_chunks(KEY, chunk_bytes=1000)) == BODY
    assert [row.key for page in store.list("p/") for row in page] == [KEY]
    assert len(slept) == 2
    assert faulty.count(op) == 3


def test_a_body_damaged_on_its_way_is_sent_once_more_and_no_more() -> None:
    error = errors.RequestRefused("x", status=400, server_code="BadDigest")
    assert POLICY.delay_s(1, error) is not None
    assert POLICY.delay_s(2, error) is None


def test_the_budget_ends_the_attempts() -> None:
    # case B156
    policy = RetryPolicy(budget_s=10.0, base_s=1.0, cap_s=100.0, max_attempts=1000, jitter=lambda: 1.0)
    store, faulty, slept = _stores(FaultRule(op="put", fault=Fault.SERVER_ERROR, count=None), policy=policy)
    with pytest.raises(errors.AmbiguousWrite):
        _put(store)
    assert slept == [1.0, 2.0, 4.0]
    assert faulty.count("put") == 4


def test_a_create_only_put_that_meets_itself_stays_unclear() -> None:
    # case B98 (settling by write id is the caller's)
    store, faulty, _ = _stores(FaultRule(op="put", fault=Fault.DROP_RESPONSE))
    with pytest.raises(errors.AmbiguousWrite) as caught:
        _put(store, if_absent=True)
    assert isinstance(caught.value.__cause__, errors.ObjectExists)
    assert faulty.inner.fetch(KEY) == BODY


def test_a_create_only_put_that_meets_another_object_says_so() -> None:
    store, _, slept = _stores()
    _put(store)
    with pytest.raises(errors.ObjectExists):
        _put(store, if_absent=True)
    assert slept == []


def test_a_lost_complete_that_finds_its_upload_gone_stays_unclear() -> None:
    # case B99 (settling by write id is the caller's)
    store, faulty, _ = _stores(FaultRule(op="complete_upload", fault=Fault.DROP_RESPONSE))
    upload_id = store.create_upload(KEY, metadata={})
    part = store.upload_part(KEY, upload_id, number=1, body=BODY, crc64nvme=CRC)
    with pytest.raises(errors.AmbiguousWrite):
        store.complete_upload(KEY, upload_id, parts=[part], size_bytes=len(BODY), crc64nvme=CRC)
    assert faulty.inner.fetch(KEY) == BODY


def test_an_upload_that_was_never_there_is_refused_plainly() -> None:
    store, _, _ = _stores()
    with pytest.raises(errors.RequestRefused):
        store.complete_upload(KEY, "no-such-upload", parts=[], size_bytes=0, crc64nvme=CRC)


@pytest.mark.parametrize("op", ["create_upload", "upload_part", "list_parts", "abort_upload", "check_bucket"])
def test_upload_steps_survive_a_failure(op: str) -> None:
    store, faulty, slept = _stores(FaultRule(op=op, fault=Fault.SLOW_DOWN))
    store.check_bucket()
    upload_id = store.create_upload(KEY, metadata={})
    part = store.upload_part(KEY, upload_id, number=1, body=BODY, crc64nvme=CRC)
    assert store.list_parts(KEY, upload_id) == (part,)
    store.abort_upload(KEY, upload_id)
    assert len(slept) == 1
    assert faulty.count(op) == 2


def test_a_stream_that_breaks_goes_on_where_it_was() -> None:
    store, faulty, _ = _stores(FaultRule(op="fetch_chunks", fault=Fault.CUT_BODY, count=3))
    _put(store)
    chunks = list(store.fetch_chunks(KEY, chunk_bytes=1000))
    assert b"".join(chunks) == BODY
    assert faulty.count("fetch_chunks") == 4


def test_a_short_object_is_not_asked_for_again() -> None:
    store, faulty, slept = _stores(FaultRule(op="fetch", fault=Fault.TRUNCATE))
    _put(store)
    with pytest.raises(errors.IntegrityError):
        store.fetch(KEY)
    assert (faulty.count("fetch"), slept) == (1, [])


def test_a_fresh_reader_asks_again_too() -> None:
    store, faulty, _ = _stores(FaultRule(op="head", fault=Fault.SERVER_ERROR))
    _put(store)
    reader = store.fresh_reader()
    assert reader.head(KEY).size_bytes == len(BODY)
    assert faulty.count("head") == 2


def test_only_the_page_that_failed_is_listed_again() -> None:
    class Flaky(MemoryStore):
        failures = 2

        def _pages(self, prefix: str, start_after: str | None) -> Iterator[ListPage]:
            return FlakyPages(self, super()._pages(prefix, start_after))

    class FlakyPages(Iterator[ListPage]):
        def __init__(self, store: Flaky, pages: Iterator[ListPage]) -> None:
            self.store, self.pages, self.served = store, pages, 0

        def __next__(self) -> ListPage:
            if self.served == 1 and self.store.failures:
                self.store.failures -= 1
                raise errors.EndpointUnreachable("broke")
            self.served += 1
            return next(self.pages)

    inner = Flaky()
    keys = [f"p/{number:05d}" for number in range(2_500)]
    for key in keys:
        inner.put(ObjectKey(key), b"x", crc64nvme=None, metadata={})
    store = RetryingStore(inner, POLICY, clock=ManualClock())
    assert [row.key.text for page in store.list("p/") for row in page] == keys
    assert inner.failures == 0
