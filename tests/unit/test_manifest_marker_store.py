"""Creating and adopting the bucket marker: races, lost answers, other runs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from durastore.clock import ManualClock
from durastore.errors import (
    AmbiguousWrite,
    IntegrityError,
    NotVerified,
    ObjectAbsent,
    PermissionRefused,
    RunMismatch,
    UnknownAnswer,
)
from durastore.formats.keys import marker_key
from durastore.formats.marker import MARKER_FORMAT, Marker
from durastore.manifest.marker_store import ensure_marker, fetch_marker
from durastore.model import ObjectKey, Run
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import Body, WriteReply

PREFIX = "data/set"
KEY = marker_key(PREFIX)
RUN = Run.of({"model": {"name": "a", "size": 1}, "layers": [2, 15]})


def _marker(store_id: str, run: Run | None = RUN) -> bytes:
    return Marker(store_id=store_id * 32, format=MARKER_FORMAT, run=run, created_ns=1).render()


def _overwrite(store: MemoryStore, data: bytes) -> None:
    store.put(KEY, data, crc64nvme=None, metadata={})


class _NoConditions(MemoryStore):
    """An endpoint that takes create-only writes and ignores the condition, as measured on two servers."""

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        del if_absent
        return super().put(key, body, crc64nvme=crc64nvme, metadata=metadata)


class _Answering(MemoryStore):
    """Raises `error` on the first `times` writes, after or instead of keeping the bytes."""

    def __init__(self, error: Exception, *, is_kept: bool, times: int = 1, only_conditional: bool = False) -> None:
        super().__init__()
        self._error = error
        self._is_kept = is_kept
        self._left = times
        self._only_conditional = only_conditional

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        if self._left and (if_absent or not self._only_conditional):
            self._left -= 1
            if self._is_kept:
                super().put(key, body, crc64nvme=crc64nvme, metadata=metadata)
            raise self._error
        return super().put(key, body, crc64nvme=crc64nvme, metadata=metadata, if_absent=if_absent)


def test_a_new_prefix_gets_a_marker_that_later_opens_adopt() -> None:
    store = MemoryStore()
    assert fetch_marker(store, PREFIX) is None
    made = ensure_marker(store, PREFIX, run=RUN, clock=ManualClock())
    assert fetch_marker(store, PREFIX) == made
    assert made.run == RUN
    assert ensure_marker(store, PREFIX, run=RUN, clock=ManualClock(), settle_s=0) == made


def test_a_write_is_settled_for_two_seconds_by_default() -> None:
    slept: list[float] = []
    ensure_marker(MemoryStore(), PREFIX, run=RUN, clock=ManualClock(on_sleep=slept.append))
    assert slept == [2.0]


def test_a_racing_writer_that_overwrites_during_the_wait_is_adopted() -> None:
    store = _NoConditions()
    rival = _marker("b")
    clock = ManualClock(on_sleep=lambda _: _overwrite(store, rival))
    assert ensure_marker(store, PREFIX, run=RUN, clock=clock) == Marker.parse(rival)


def test_two_writers_interleaved_on_an_endpoint_without_conditions_agree() -> None:
    store = _NoConditions()
    other: list[Marker] = []

    def second_writer(_: float) -> None:
        if not other:  # it starts while the first one waits, having seen no marker just before
            _overwrite(store, _marker("c"))
            other.append(Marker.parse(store.fetch(KEY)))

    first = ensure_marker(store, PREFIX, run=RUN, clock=ManualClock(on_sleep=second_writer))
    assert [first] == other
    assert fetch_marker(store, PREFIX) == first


def test_a_racing_writer_with_another_run_is_refused_not_overwritten() -> None:
    store = _NoConditions()
    rival = _marker("b", Run.of({"model": "other"}))
    clock = ManualClock(on_sleep=lambda _: _overwrite(store, rival))
    with pytest.raises(RunMismatch):
        ensure_marker(store, PREFIX, run=RUN, clock=clock)
    assert store.fetch(KEY) == rival


def test_a_marker_that_keeps_changing_is_not_verified() -> None:
    store = _NoConditions()
    flips = 0

    class Flipping(_NoConditions):
        def fresh_reader(self) -> MemoryStore:
            nonlocal flips
            flips += 1
            store.put(KEY, _marker("bc"[flips % 2]), crc64nvme=None, metadata={})
            return store

    with pytest.raises(NotVerified, match="does not settle"):
        ensure_marker(Flipping(), PREFIX, run=RUN, clock=ManualClock())
    assert flips == 10


def test_a_marker_acknowledged_and_forgotten_is_not_verified() -> None:
    class Forgetful(MemoryStore):
        def put(
            self,
            key: ObjectKey,
            body: Body,
            *,
            crc64nvme: str | None,
            metadata: Mapping[str, str],
            if_absent: bool = False,
        ) -> WriteReply:
            return WriteReply(etag='"x"')

    with pytest.raises(NotVerified):
        ensure_marker(Forgetful(), PREFIX, run=RUN, clock=ManualClock())


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_lost_answer_is_settled_by_reading(is_kept: bool) -> None:
    store = _Answering(AmbiguousWrite("lost"), is_kept=is_kept)
    made = ensure_marker(store, PREFIX, run=RUN, clock=ManualClock())
    assert fetch_marker(store, PREFIX) == made


def test_an_endpoint_without_create_only_writes_is_usable() -> None:
    store = _Answering(UnknownAnswer("501 NotImplemented"), is_kept=False, times=9, only_conditional=True)
    made = ensure_marker(store, PREFIX, run=RUN, clock=ManualClock())
    assert fetch_marker(store, PREFIX) == made


def test_refused_credentials_are_not_taken_for_an_answer() -> None:
    store = _Answering(PermissionRefused("403"), is_kept=False, times=9)
    with pytest.raises(PermissionRefused):
        ensure_marker(store, PREFIX, run=RUN, clock=ManualClock())
    with pytest.raises(ObjectAbsent):
        store.fetch(KEY)


def test_a_young_marker_of_another_writer_is_settled_before_it_is_adopted() -> None:
    server = ManualClock()
    store = _NoConditions(clock=server)
    _overwrite(store, _marker("a"))
    late = _marker("b")

    def on_sleep(seconds: float) -> None:
        server.advance(seconds)
        _overwrite(store, late)

    assert ensure_marker(store, PREFIX, run=RUN, clock=ManualClock(on_sleep=on_sleep)) == Marker.parse(late)


def test_an_old_marker_is_adopted_without_waiting() -> None:
    server = ManualClock()
    store = MemoryStore(clock=server)
    _overwrite(store, _marker("a"))
    server.advance(3)
    slept: list[float] = []
    ensure_marker(store, PREFIX, run=RUN, clock=ManualClock(on_sleep=slept.append))
    assert slept == []


def test_another_run_is_refused_with_the_old_and_new_value_of_each_key() -> None:
    store = MemoryStore()
    _overwrite(store, _marker("a"))
    new = Run.of({"model": {"name": "b", "size": 1.0}, "layers": [2, 15, 27], "norm": True})
    with pytest.raises(RunMismatch) as caught:
        ensure_marker(store, PREFIX, run=new, clock=ManualClock(), settle_s=0)
    assert caught.value.facts["differences"] == [
        "layers: [2, 15] -> [2, 15, 27]",
        'model.name: "a" -> "b"',
        "model.size: 1 -> 1.0",
        "norm: (absent) -> true",
    ]
    assert 'model.name: "a" -> "b"' in str(caught.value)
    assert caught.value.message.startswith(f"prefix {PREFIX} already holds another run")
    assert store.fetch(KEY) == _marker("a")


def test_a_long_difference_is_cut_and_counted() -> None:
    store = MemoryStore()
    _overwrite(store, _marker("a", Run.of({"old": 1})))
    new = Run.of({f"k{i:03d}": "v" * 500 for i in range(100)})
    with pytest.raises(RunMismatch) as caught:
        ensure_marker(store, PREFIX, run=new, clock=ManualClock(), settle_s=0)
    assert "... and 61 more" in caught.value.message
    assert len(caught.value.message) < 12_000


@pytest.mark.parametrize("held", [RUN, None])
def test_no_run_adopts_whatever_run_is_there(held: Run | None) -> None:
    store = MemoryStore()
    _overwrite(store, _marker("a", held))
    assert ensure_marker(store, PREFIX, run=None, clock=ManualClock(), settle_s=0).run == held


def test_a_store_made_without_a_run_holds_the_empty_run() -> None:
    store = MemoryStore()
    _overwrite(store, _marker("a", None))
    ensure_marker(store, PREFIX, run=Run.of({}), clock=ManualClock(), settle_s=0)
    with pytest.raises(RunMismatch):
        ensure_marker(store, PREFIX, run=RUN, clock=ManualClock(), settle_s=0)


def test_a_damaged_marker_stops_and_stays() -> None:
    store = MemoryStore()
    _overwrite(store, b"{}")
    with pytest.raises(IntegrityError):
        ensure_marker(store, PREFIX, run=RUN, clock=ManualClock(), settle_s=0)
    assert store.fetch(KEY) == b"{}"
