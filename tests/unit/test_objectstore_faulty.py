"""The scripted faults do what their names say, so that a test that survives them means something."""

from __future__ import annotations

from typing import Any

import pytest

from durastore import errors
from durastore.model import ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ObjectReader, ObjectStore
from durastore.testing.faulty import Fault, FaultRule, FaultyStore

KEY = ObjectKey("p/k")
BODY = bytes(range(1, 256)) * 100
CRC = crc64nvme_b64(BODY)


def _store(*rules: FaultRule, is_filled: bool = True) -> FaultyStore:
    inner = MemoryStore()
    if is_filled:
        inner.put(KEY, BODY, crc64nvme=CRC, metadata={})
    return FaultyStore(inner, *rules)


def _put(store: FaultyStore, body: bytes = BODY) -> None:
    store.put(KEY, body, crc64nvme=crc64nvme_b64(body), metadata={})


@pytest.mark.parametrize(
    "fault, error, is_stored",
    [
        (Fault.DROP_REQUEST, errors.EndpointUnreachable, False),
        (Fault.DROP_RESPONSE, errors.AmbiguousWrite, True),
        (Fault.SERVER_ERROR, errors.AmbiguousWrite, False),
        (Fault.SLOW_DOWN, errors.OverloadedEndpoint, False),
        (Fault.FORBIDDEN, errors.PermissionRefused, False),
    ],
)
def test_faults_of_a_write(fault: Fault, error: type[errors.DurastoreError], is_stored: bool) -> None:
    store = _store(FaultRule(op="put", fault=fault), is_filled=False)
    with pytest.raises(error):
        _put(store)
    if is_stored:
        assert store.fetch(KEY) == BODY
    else:
        with pytest.raises(errors.ObjectAbsent):
            store.fetch(KEY)
    _put(store)
    assert store.fetch(KEY) == BODY


@pytest.mark.parametrize(
    "fault, error",
    [
        (Fault.DROP_REQUEST, errors.EndpointUnreachable),
        (Fault.DROP_RESPONSE, errors.EndpointUnreachable),
        (Fault.SERVER_ERROR, errors.UnknownAnswer),
        (Fault.SLOW_DOWN, errors.OverloadedEndpoint),
        (Fault.FORBIDDEN, errors.PermissionRefused),
        (Fault.ABSENT, errors.ObjectAbsent),
        (Fault.TRUNCATE, errors.IntegrityError),
        (Fault.CUT_BODY, errors.EndpointUnreachable),
    ],
)
def test_faults_of_a_read(fault: Fault, error: type[errors.DurastoreError]) -> None:
    store = _store(FaultRule(op="fetch", fault=fault), FaultRule(op="fetch_chunks", fault=fault))
    with pytest.raises(error):
        store.fetch(KEY)
    with pytest.raises(error):
        list(store.fetch_chunks(KEY))
    assert store.fetch(KEY) == b"".join(store.fetch_chunks(KEY)) == BODY


def test_wrong_bytes_of_one_answer() -> None:
    store = _store(
        FaultRule(op="fetch", fault=Fault.WRONG_BYTE), FaultRule(op="fetch", fault=Fault.SHORT_READ, first=2)
    )
    wrong = store.fetch(KEY, offset=5, length=10)
    assert len(wrong) == 10
    assert wrong != BODY[5:15]
    assert store.fetch(KEY, offset=0, length=10) == BODY[:5]
    assert store.fetch(KEY, offset=5, length=10) == BODY[5:15]


@pytest.mark.parametrize("fault", [Fault.ZERO_BLOCK, Fault.FLIP_BYTE])
def test_stored_damage_shows_in_every_read_and_in_no_head(fault: Fault) -> None:
    # case B79
    store = _store(FaultRule(op="put", fault=fault), is_filled=False)
    _put(store)
    assert (store.head(KEY).size_bytes, store.head(KEY).crc64nvme) == (len(BODY), CRC)
    whole = store.fetch(KEY)
    assert len(whole) == len(BODY)
    assert whole != BODY
    assert b"".join(store.fresh_reader().fetch_chunks(KEY)) == whole
    assert store.fetch(KEY, offset=4000, length=300) == whole[4000:4300]
    if fault is Fault.ZERO_BLOCK:
        assert whole == BODY[:4096] + bytes(4096) + BODY[8192:]
    _put(store)
    assert store.fetch(KEY) == BODY


def test_a_lost_object_was_acknowledged_and_is_gone() -> None:
    # case B05
    store = _store(FaultRule(op="put", fault=Fault.LOSE_OBJECT), is_filled=False)
    _put(store)
    for reader in (store, store.fresh_reader()):
        with pytest.raises(errors.ObjectAbsent):
            reader.head(KEY)
        with pytest.raises(errors.ObjectAbsent):
            reader.fetch(KEY)
    assert list(store.list("")) in ([], [[]])
    _put(store)
    assert store.head(KEY).size_bytes == len(BODY)


def test_zero_bytes_are_stored() -> None:
    # case B75
    store = _store(FaultRule(op="put", fault=Fault.STORE_EMPTY), is_filled=False)
    _put(store)
    assert store.head(KEY).size_bytes == 0


def test_a_stale_head_answers_as_before_the_write() -> None:
    # case B27
    store = _store(FaultRule(op="head", fault=Fault.STALE_HEAD, count=2))
    _put(store, b"new bytes")
    assert store.head(KEY).size_bytes == len(BODY)
    assert store.head(KEY).size_bytes == len(BODY)
    assert store.head(KEY).size_bytes == len(b"new bytes")
    fresh = _store(FaultRule(op="head", fault=Fault.STALE_HEAD), is_filled=False)
    _put(fresh)
    with pytest.raises(errors.ObjectAbsent):
        fresh.head(KEY)


def test_listings_that_lack_or_repeat() -> None:
    # case B140, case B141
    store = _store(FaultRule(op="list", fault=Fault.SHORT_PAGE), FaultRule(op="list", fault=Fault.REPEAT_PAGE, first=2))
    store.put(ObjectKey("p/z"), b"x", crc64nvme=None, metadata={})
    assert [row.key for page in store.list("p/") for row in page] == [KEY]
    with pytest.raises(errors.InventoryIncomplete):
        list(store.list("p/"))
    assert [row.key.text for page in store.list("p/") for row in page] == ["p/k", "p/z"]


def test_rules_count_only_what_they_name() -> None:
    rule = FaultRule(op="put", fault=Fault.FORBIDDEN, first=2, count=1, key_part="other")
    store = _store(rule, is_filled=False)
    for name in ("other-1", "k", "k2"):
        store.put(ObjectKey(name), b"x", crc64nvme=None, metadata={})
    with pytest.raises(errors.PermissionRefused):
        store.put(ObjectKey("other-2"), b"x", crc64nvme=None, metadata={})
    assert store.count("put") == 4
    store.add(FaultRule(op="*", fault=Fault.SERVER_ERROR, count=None))
    with pytest.raises(errors.UnknownAnswer):
        store.head(KEY)
    store.heal()
    store.check_bucket()


@pytest.mark.parametrize(
    "op, fault, more, words",
    [
        ("puts", Fault.FORBIDDEN, {}, "no operation of a store is called 'puts'"),
        ("head", Fault.FLIP_BYTE, {}, "FLIP_BYTE never acts on head"),
        ("check_bucket", Fault.DROP_RESPONSE, {}, "never acts on check_bucket"),
        ("put", Fault.FORBIDDEN, {"first": 0}, "no call is due"),
        ("put", Fault.FORBIDDEN, {"count": 0}, "no call is due"),
    ],
)
def test_a_rule_that_could_never_be_due_is_refused(op: str, fault: Fault, more: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidInput, match=words):
        FaultRule(op=op, fault=fault, **more)


def test_the_operations_of_rules_are_those_of_the_port() -> None:
    calls = {name for name in vars(ObjectStore) if not name.startswith("_")} - {"url", "failure_domain", "close"}
    calls |= {name for name in vars(ObjectReader) if not name.startswith("_")} - {"close", "fresh_reader"}
    for op in calls - {"fresh_reader"}:
        FaultRule(op=op, fault=Fault.FORBIDDEN)


def test_only_damage_can_be_done_to_stored_bytes() -> None:
    with pytest.raises(errors.InvalidInput, match="LOSE_OBJECT is no damage"):
        FaultyStore(MemoryStore("t")).damage(ObjectKey("a"), Fault.LOSE_OBJECT)
