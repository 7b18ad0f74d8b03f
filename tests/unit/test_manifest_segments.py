"""Publishing a segment: nothing counts before it was read back."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from durastore.errors import AmbiguousWrite, IntegrityError, NotVerified, ObjectAbsent
from durastore.formats.keys import segment_key
from durastore.formats.segment import SegmentContent, render_segment
from durastore.manifest.segments import publish_segment
from durastore.model import Digest, ObjectKey, WriterId
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import Body, ObjectReader, WriteReply

DATA = render_segment(SegmentContent(rows=()))
WRITER = WriterId("a" * 16)
KEY = segment_key("p", WRITER, seq=1, digest=Digest.of(DATA))


class _Endpoint(MemoryStore):
    """Keeps `kept(body)` (None: nothing) and answers with `answer` if given."""

    def __init__(self, kept: bytes | None, answer: Exception | None = None) -> None:
        super().__init__()
        self._kept = kept
        self._answer = answer
        self.fresh_readers = 0

    def fresh_reader(self) -> ObjectReader:
        self.fresh_readers += 1
        return super().fresh_reader()

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        if self._kept is not None:
            super().put(key, self._kept, crc64nvme=None, metadata=metadata)
        if self._answer is not None:
            raise self._answer
        return WriteReply(etag='"x"')


def _publish(store: MemoryStore) -> ObjectKey:
    return publish_segment(store, DATA, prefix="p", writer=WRITER, seq=1)


def test_a_segment_is_put_under_its_digest_and_read_back_on_a_new_connection() -> None:
    store = _Endpoint(DATA)
    assert _publish(store) == KEY
    assert store.fresh_readers == 1
    assert store.fetch(KEY) == DATA


def test_publishing_again_is_the_same_and_heals_a_damaged_copy() -> None:
    store = MemoryStore()
    store.put(KEY, b"damaged", crc64nvme=None, metadata={})
    assert _publish(store) == _publish(store) == KEY
    assert store.fetch(KEY) == DATA


@pytest.mark.parametrize("kept", [DATA[:-1], b"", DATA + b"x", bytes(len(DATA))])
def test_other_bytes_than_sent_are_no_segment(kept: bytes) -> None:
    with pytest.raises(IntegrityError):
        _publish(_Endpoint(kept))


def test_an_acknowledged_segment_that_is_not_there_is_not_verified() -> None:
    with pytest.raises(NotVerified):
        _publish(_Endpoint(None))


def test_a_lost_answer_is_settled_by_reading_back() -> None:
    assert _publish(_Endpoint(DATA, AmbiguousWrite("lost"))) == KEY
    store = _Endpoint(None, AmbiguousWrite("lost"))
    with pytest.raises(AmbiguousWrite):
        _publish(store)
    with pytest.raises(ObjectAbsent):
        store.fetch(KEY)
