"""Reading back: every byte, of one and the same object, or no evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from durastore.clock import ManualClock
from durastore.errors import DurastoreError, IntegrityError, NotVerified, ObjectAbsent, RequestRefused
from durastore.model import Digest, EvidenceLevel, ObjectKey
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ObjectStat
from durastore.objectstore.whole import WHOLE_BYTES, WholeObject
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from durastore.verify.remote import check_segment, read_back
from tests.unit.verify_lab import DATA, DIGEST, KEY, record

CLOCK = ManualClock()
PACK = record(CLOCK)


@pytest.fixture
def store() -> FaultyStore:
    made = FaultyStore(MemoryStore(clock=CLOCK))
    made.put(KEY, DATA, crc64nvme=None, metadata={})
    return made


def test_what_was_read_is_the_evidence(store: FaultyStore) -> None:
    found = read_back(store, PACK, clock=CLOCK)
    stat = store.head(KEY)
    assert (found.level, found.key, found.size_bytes, found.digest) == (
        EvidenceLevel.READ_BACK,
        KEY,
        len(DATA),
        DIGEST,
    )
    assert (found.etag, found.version_id, found.probe) == (stat.etag, None, None)
    assert (found.taken, found.server_time_s) == (CLOCK.stamp().render(), stat.server_time_s)


@pytest.mark.parametrize("missing", ["key", "digest", "size_bytes"])
def test_what_was_never_sealed_has_no_copy(store: FaultyStore, missing: str) -> None:
    facts: dict[str, Any] = {missing: None}
    with pytest.raises(NotVerified, match="never sealed"):
        read_back(store, replace(PACK, **facts), clock=CLOCK)
    assert store.count("head") == 0


@pytest.mark.parametrize("fault", [Fault.WRONG_BYTE, Fault.SHORT_READ])
def test_other_bytes_are_a_mismatch_that_names_the_object(store: FaultyStore, fault: Fault) -> None:
    store.add(FaultRule(op="fetch_chunks", fault=fault))
    with pytest.raises(IntegrityError, match=r"holds \d+ bytes") as caught:
        read_back(store, PACK, clock=CLOCK)
    assert caught.value.facts["key"] == KEY.text


@pytest.mark.parametrize("facts", [{"size_bytes": len(DATA) - 1}, {"size_bytes": len(DATA) + 1}, {"digest": DIGEST}])
def test_size_and_digest_both_decide(store: FaultyStore, facts: dict[str, Any]) -> None:
    if "digest" in facts:
        facts = {"digest": Digest("0" * 32)}
    with pytest.raises(IntegrityError):
        read_back(store, replace(PACK, **facts), clock=CLOCK)


def test_an_absent_object_is_said_to_be_absent(store: FaultyStore) -> None:
    store.lose(KEY)
    with pytest.raises(ObjectAbsent):
        read_back(store, PACK, clock=CLOCK)


class Reader:
    """Answers what a test says; the versions asked for are noted."""

    def __init__(self, inner: FaultyStore, *, heads: list[dict[str, Any]], chunks: Iterator[bytes]) -> None:
        self._inner, self._heads, self._chunks = inner, heads, chunks
        self.versions: list[str | None] = []

    def head(self, key: ObjectKey) -> ObjectStat:
        return replace(self._inner.head(key), **self._heads.pop(0))

    def fetch_chunks(self, key: ObjectKey, *, chunk_bytes: int = 8, version_id: str | None = None) -> Iterator[bytes]:
        self.versions.append(version_id)
        yield from self._chunks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("change", [{"etag": '"again"'}, {"version_id": "v2"}])
def test_an_object_replaced_while_it_is_read_is_no_evidence(store: FaultyStore, change: dict[str, Any]) -> None:
    reader: Any = Reader(store, heads=[{}, change], chunks=iter([DATA]))
    with pytest.raises(NotVerified, match="replaced"):
        read_back(reader, PACK, clock=CLOCK)


def test_the_version_that_head_tells_is_the_one_that_is_read(store: FaultyStore) -> None:
    reader: Any = Reader(store, heads=[{"version_id": "v7"}] * 2, chunks=iter([DATA[:100], DATA[100:]]))
    assert read_back(reader, PACK, clock=CLOCK).version_id == "v7"
    assert reader.versions == ["v7"]


def test_bytes_beyond_the_pack_are_a_mismatch(store: FaultyStore) -> None:
    reader: Any = Reader(store, heads=[{}], chunks=iter([DATA, b"and more"]))
    with pytest.raises(IntegrityError, match=f"holds {len(DATA) + 8} bytes"):
        read_back(reader, PACK, clock=CLOCK)


def test_an_endless_body_is_not_read_to_its_end(store: FaultyStore) -> None:
    asked: list[int] = []

    def endless() -> Iterator[bytes]:
        while True:
            asked.append(1)
            yield bytes(400)

    reader: Any = Reader(store, heads=[{}], chunks=endless())
    with pytest.raises(IntegrityError):
        read_back(reader, PACK, clock=CLOCK)
    assert len(asked) == len(DATA) // 400 + 1


class WholeReads:
    """A store that also gives small objects whole; what it was asked is noted."""

    def __init__(self, inner: FaultyStore, *, answer: WholeObject | DurastoreError | None) -> None:
        self._inner, self._answer = inner, answer
        self.asked: list[str] = []

    def fetch_whole(self, key: ObjectKey, *, size_bytes: int) -> WholeObject | None:
        self.asked.append(f"whole {key} {size_bytes}")
        if isinstance(self._answer, DurastoreError):
            raise self._answer
        return self._answer

    def head(self, key: ObjectKey) -> ObjectStat:
        self.asked.append("head")
        return self._inner.head(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _whole(data: bytes) -> WholeObject:
    return WholeObject(data=memoryview(data), etag='"of the answer"', version_id="v7")


WHOLE_ASKED = f"whole {KEY} {len(DATA)}"


def test_a_small_object_that_nothing_goes_for_is_read_by_one_request(store: FaultyStore) -> None:
    reader: Any = WholeReads(store, answer=_whole(DATA))
    found = read_back(reader, PACK, clock=CLOCK, is_for_reclaim=False)
    assert reader.asked == [WHOLE_ASKED]
    assert (found.level, found.key, found.size_bytes) == (EvidenceLevel.READ_BACK, KEY, len(DATA))
    assert (found.digest, found.etag, found.version_id) == (DIGEST, '"of the answer"', "v7")
    assert (found.taken, found.server_time_s, found.probe) == (CLOCK.stamp().render(), None, None)


def test_for_a_reclaim_the_time_of_the_server_is_asked_for(store: FaultyStore) -> None:
    reader: Any = WholeReads(store, answer=_whole(DATA))
    found = read_back(reader, PACK, clock=CLOCK)
    assert (reader.asked, found.server_time_s) == (["head", "head"], store.head(KEY).server_time_s)
    assert found.server_time_s is not None


def test_wrong_bytes_of_one_answer_are_a_mismatch_at_once(store: FaultyStore) -> None:
    reader: Any = WholeReads(store, answer=_whole(DATA[:-1] + b"?"))
    with pytest.raises(IntegrityError, match=f"holds {len(DATA)} bytes") as caught:
        read_back(reader, PACK, clock=CLOCK, is_for_reclaim=False)
    assert (reader.asked, caught.value.facts["key"]) == ([WHOLE_ASKED], KEY.text)
    reader = WholeReads(store, answer=IntegrityError("cut"))
    with pytest.raises(IntegrityError, match="cut"):
        read_back(reader, PACK, clock=CLOCK, is_for_reclaim=False)


@pytest.mark.parametrize("answer", [None, ObjectAbsent("one answer"), RequestRefused("one answer")])
def test_where_one_answer_gives_no_bytes_head_and_get_decide(store: FaultyStore, answer: Any) -> None:
    reader: Any = WholeReads(store, answer=answer)
    found = read_back(reader, PACK, clock=CLOCK, is_for_reclaim=False)
    assert (found.etag, reader.asked) == (store.head(KEY).etag, [WHOLE_ASKED, "head", "head"])
    store.lose(KEY)
    with pytest.raises(ObjectAbsent):
        read_back(reader, PACK, clock=CLOCK, is_for_reclaim=False)


def test_a_large_object_is_not_asked_for_in_one_piece(store: FaultyStore) -> None:
    reader: Any = WholeReads(store, answer=_whole(DATA))
    with pytest.raises(IntegrityError):
        read_back(reader, replace(PACK, size_bytes=WHOLE_BYTES + 1), clock=CLOCK, is_for_reclaim=False)
    assert reader.asked == ["head"]


def test_a_segment_has_to_be_there_with_the_bytes_of_its_name(store: FaultyStore) -> None:
    data = b"rows"
    key = ObjectKey(f"p/manifest/00112233445566aa/000000000001-{Digest.of(data).short}.parquet")
    with pytest.raises(NotVerified, match="is gone") as caught:
        check_segment(store, key)
    assert caught.value.hint is not None
    store.put(key, data, crc64nvme=None, metadata={})
    check_segment(store, key)
    store.put(key, b"rowz", crc64nvme=None, metadata={})
    with pytest.raises(NotVerified, match="other bytes"):
        check_segment(store, key)
