"""A whole store against a bucket that lies: nothing lost, nothing freed that the bucket does not really hold.

Each trial puts samples, flushes, drains (eager reclaim), and judges from what the store below truly holds.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.clock import SystemClock
from durastore.errors import CredentialsRefused, DurastoreError, ObjectAbsent, PackFailed
from durastore.fsio.lock import holders
from durastore.fsio.sys import SYS
from durastore.model import ObjectKey
from durastore.objectstore.memory import MemoryStore
from durastore.reclaim import engine as reclaim_engine
from durastore.reclaim._unlink import unlink_proven
from durastore.store.opening import open_store
from durastore.store.store import Store
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from durastore.testing.oracles import lost_samples

SAMPLES = {f"s/{number}": {"h": np.arange(number, number + 3000, dtype=np.int32)} for number in range(6)}


class QuickClock(SystemClock):
    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.002))


def is_equal(found: Any, put: Any) -> bool:
    return bool(np.array_equal(np.asarray(found), put))


@dataclass
class Trial:
    """One bucket, one spool root, and a record of every unlink of a pack with what the bucket held at that moment."""

    local: Path
    objects: FaultyStore
    false_unlinks: list[str] = field(default_factory=list)
    unlinked: int = 0

    def open(self, **changes: Any) -> Store:
        options: dict[str, Any] = {"reclaim": "eager", "settle_s": 0.0, "pack_target_bytes": 20_000, "reserve_bytes": 1}
        return open_store(
            "memory://trial/p", local=self.local, objects=self.objects, clock=QuickClock(), **(options | changes)
        )

    def holds(self, data: bytes) -> bool:
        """Whether the bucket gives back exactly these bytes under some pack key, damage included, rules left out."""
        self.objects.heal()
        keys = [stat.key for page in self.objects.inner.list("p/packs/") for stat in page]
        return any(self._content(key) == data for key in keys)

    def _content(self, key: ObjectKey) -> bytes | None:
        try:
            return self.objects.fetch(key)
        except ObjectAbsent:
            return None

    def put_all(self, store: Store) -> None:
        for name, tensors in SAMPLES.items():
            store.put(name, tensors)

    def check_nothing_lost(self) -> None:
        """O1 and O2, with the endpoint healthy again (what it lost or damaged stays so)."""
        assert self.false_unlinks == []
        self.objects.heal()
        store = self.open(reclaim="never")
        try:
            assert lost_samples(SAMPLES, store.get, is_equal=is_equal) == {}
        finally:
            store.abandon()  # what the bucket lost for good cannot be flushed


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    made = Trial(tmp_path / "spool", FaultyStore(MemoryStore(name=f"trial-{os.urandom(4).hex()}")))
    plain = SYS.unlink

    def unlink(name: str, *, dir_fd: int) -> None:
        folder = Path(os.readlink(f"/proc/self/fd/{dir_fd}"))
        if folder.name == "packs" and not (folder.parent / "quarantine" / name).exists():
            made.unlinked += 1
            if not made.holds((folder / name).read_bytes()):
                made.false_unlinks.append(name)
        plain(name, dir_fd=dir_fd)

    monkeypatch.setattr(SYS, "unlink", unlink)
    return made


PASSING = [
    pytest.param(FaultRule(op="put", fault=Fault.DROP_REQUEST, count=2, key_part="packs/"), id="lost request"),
    pytest.param(FaultRule(op="put", fault=Fault.DROP_RESPONSE, count=2, key_part="packs/"), id="lost answer, B98"),
    pytest.param(FaultRule(op="put", fault=Fault.SERVER_ERROR, count=3, key_part="packs/"), id="500s"),
    pytest.param(FaultRule(op="put", fault=Fault.SLOW_DOWN, count=3, key_part="packs/"), id="SlowDown, B157"),
    pytest.param(FaultRule(op="put", fault=Fault.STORE_EMPTY, count=1, key_part="packs/"), id="stores nothing, B75"),
    pytest.param(FaultRule(op="fetch_chunks", fault=Fault.CUT_BODY, count=2), id="cut read-back, B56"),
    pytest.param(FaultRule(op="head", fault=Fault.SERVER_ERROR, count=3), id="HEAD 500"),
    pytest.param(
        FaultRule(op="put", fault=Fault.DROP_RESPONSE, count=2, key_part="manifest/"), id="segment answer lost"
    ),
    pytest.param(FaultRule(op="put", fault=Fault.SERVER_ERROR, count=2, key_part="manifest/"), id="segment 500"),
    pytest.param(FaultRule(op="fetch", fault=Fault.WRONG_BYTE, count=1, key_part="manifest/"), id="segment read wrong"),
]


@pytest.mark.parametrize("rule", PASSING)
def test_passing_trouble_is_waited_out(trial: Trial, rule: FaultRule) -> None:
    with trial.open() as store:
        trial.objects.add(rule)
        trial.put_all(store)
        try:
            store.drain(60)
        except (DurastoreError, TimeoutError):
            pass  # whether it may give up is another test's question: nothing may be lost either way
    trial.check_nothing_lost()


LASTING = [
    pytest.param(FaultRule(op="put", fault=Fault.LOSE_OBJECT, count=None, key_part="packs/"), id="forgets, B05"),
    pytest.param(FaultRule(op="put", fault=Fault.FLIP_BYTE, count=None, key_part="packs/"), id="wrong byte"),
    pytest.param(FaultRule(op="put", fault=Fault.ZERO_BLOCK, count=None, key_part="packs/"), id="zero block, B79"),
    pytest.param(FaultRule(op="put", fault=Fault.STORE_EMPTY, count=None, key_part="packs/"), id="always empty"),
    pytest.param(FaultRule(op="put", fault=Fault.FORBIDDEN, count=None, key_part="packs/"), id="403 on PUT"),
    pytest.param(FaultRule(op="fetch_chunks", fault=Fault.FORBIDDEN, count=None), id="403 on GET, B165"),
]


@pytest.mark.parametrize("rule", LASTING)
def test_a_bucket_that_never_holds_the_bytes_frees_none_of_them(trial: Trial, rule: FaultRule) -> None:
    store = trial.open(pack_target_bytes=10_000_000)  # nothing is sent, and so nothing refused, before all are put
    trial.objects.add(rule)
    trial.put_all(store)
    with pytest.raises((DurastoreError, TimeoutError)):
        store.drain(4)
    with pytest.raises((DurastoreError, TimeoutError)):
        store.flush(0.1)
    store.abandon()
    assert trial.unlinked == 0
    trial.check_nothing_lost()


def test_an_object_that_vanishes_between_manifest_and_unlink_is_kept_and_sent_again(trial: Trial) -> None:
    # cases B23, B62: the journal says proven, the bucket forgot
    with trial.open(settle_s=3600.0) as store:
        trial.put_all(store)
        store.flush(30)
        keys = [stat.key for page in trial.objects.inner.list("p/packs/") for stat in page]
    for key in keys:
        trial.objects.lose(key)
    with closing(trial.open()) as store:
        with pytest.raises((DurastoreError, TimeoutError)):
            store.drain(3)
        store.abandon()
    assert trial.unlinked == 0
    assert trial.false_unlinks == []


def test_refused_credentials_stop_puts_and_say_so(trial: Trial) -> None:
    store = trial.open()
    trial.objects.add(FaultRule(op="put", fault=Fault.FORBIDDEN, count=None, key_part="packs/"))
    store.put("s/0", SAMPLES["s/0"])
    with pytest.raises(CredentialsRefused):
        store.flush(20)
    with pytest.raises(CredentialsRefused):
        store.put("s/1", SAMPLES["s/1"])
    trial.objects.heal()
    store.abandon()
    with closing(trial.open()) as again:  # and the same command goes on
        assert "s/0" in again
        again.drain(30)
    assert trial.false_unlinks == []


def test_damage_found_once_stops_all_reclaiming(trial: Trial) -> None:
    store = trial.open()
    trial.objects.add(FaultRule(op="put", fault=Fault.FLIP_BYTE, count=1, key_part="packs/"))
    trial.put_all(store)
    with pytest.raises((PackFailed, TimeoutError)):
        store.drain(20)
    store.abandon()
    assert trial.unlinked == 0
    trial.check_nothing_lost()


def test_damage_found_by_one_store_stops_every_store_at_the_root(trial: Trial) -> None:
    with closing(trial.open()) as first, closing(trial.open()) as second:
        trial.objects.add(FaultRule(op="put", fault=Fault.FLIP_BYTE, count=1, key_part="packs/"))
        first.put("s/0", SAMPLES["s/0"])
        with pytest.raises(PackFailed, match="stopped"):
            first.drain(20)
        second.put("s/1", SAMPLES["s/1"])
        with pytest.raises(PackFailed, match="stopped"):
            second.drain(20)
        with closing(trial.open()) as third:  # opened while the other two still hold their journals
            third.put("s/2", SAMPLES["s/2"])
            with pytest.raises(PackFailed, match="stopped"):
                third.drain(20)
    assert trial.unlinked == 0


class Breaks:
    """An observer whose metrics socket is gone."""

    def emit(self, name: str, **facts: object) -> None:
        raise BrokenPipeError(name)


def test_an_observer_that_raises_changes_nothing(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="durastore"), trial.open(observer=Breaks()) as store:
        trial.put_all(store)
        store.drain(30)
        assert store.status().bytes_freed > 0
        trial.objects.add(FaultRule(op="put", fault=Fault.FLIP_BYTE, count=1, key_part="packs/"))
        store.put("t/1", SAMPLES["s/1"])
        with pytest.raises(PackFailed, match="stopped"):
            store.drain(20)
    assert caplog.text.count("an observer raised") == 1
    trial.check_nothing_lost()


def test_the_lock_of_a_drained_spool_is_held_until_the_last_work_on_it_has_ended(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = trial.open(reclaim="never"), trial.open(reclaim="never")
    trial.put_all(second)
    second.flush(20)
    second.abandon()
    first.abandon()
    is_there, may_go_on = threading.Event(), threading.Event()

    def waiting(*arguments: Any, **named: Any) -> int:
        is_there.set()
        assert may_go_on.wait(20)
        return unlink_proven(*arguments, **named)

    monkeypatch.setattr(reclaim_engine, "unlink_proven", waiting)
    store = trial.open()
    assert is_there.wait(20)  # between intent and unlink, in the spool of the ended process
    ending = threading.Thread(target=store.abandon)
    ending.start()
    ending.join(0.5)
    held = holders(trial.local / "w-01" / "lock")
    may_go_on.set()
    ending.join(20)
    assert held == [os.getpid()]
    assert holders(trial.local / "w-01" / "lock") == []
    assert trial.unlinked >= 1
    trial.check_nothing_lost()


def test_reclaim_never_keeps_every_file(trial: Trial) -> None:
    with trial.open(reclaim="never") as store:
        trial.put_all(store)
        store.drain(30)
        assert store.status().local_bytes > 0
    assert trial.unlinked == 0


def test_a_healthy_bucket_ends_with_an_empty_spool(trial: Trial) -> None:
    with trial.open() as store:
        trial.put_all(store)
        store.drain(30)
        assert store.status().local_bytes == 0
        assert store.status().only_local_ids == ()
    assert trial.unlinked >= 3
    trial.check_nothing_lost()


def test_a_sample_whose_both_copies_are_gone_is_said_lost_and_can_be_made_again(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    with trial.open(reclaim="never") as store:
        trial.put_all(store)
        store.flush(30)
        gone = store.rows_of("s/0")[0]
    trial.objects.lose(gone.object.key)
    (trial.local / "w-00" / "packs" / f"{gone.object.writer}-{_seq_of(gone.object.key)}.tar").unlink()
    with caplog.at_level("ERROR", logger="durastore"), trial.open(reclaim="never") as store:
        assert "LOST" in caplog.text
        assert "s/0" not in store  # INV-8: a row alone is not "done"
        assert "s/5" in store
        assert store.put("s/0", SAMPLES["s/0"]).is_new
        store.flush(30)
        assert is_equal(store.get("s/0").tensors["h"], SAMPLES["s/0"]["h"])
        assert len(store.rows_of("s/0")) == 1
        for name, tensors in SAMPLES.items():
            if name not in store:
                store.put(name, tensors)
        store.flush(30)
    trial.check_nothing_lost()


def _seq_of(key: ObjectKey) -> str:
    return key.text.rpartition("/")[2].partition("-")[0]


def test_a_row_over_a_rotted_object_does_not_stop_a_put(trial: Trial) -> None:
    with trial.open() as store:
        trial.put_all(store)
        store.drain(30)
    for page in trial.objects.inner.list("p/packs/"):
        for stat in page:
            trial.objects.damage(stat.key, Fault.ZERO_BLOCK)
    with trial.open() as store:
        tickets = [store.put(name, tensors) for name, tensors in SAMPLES.items()]
        assert any(ticket.is_new for ticket in tickets)  # only what the zeros hit has to be stored again
        store.flush(30)
    trial.check_nothing_lost()


def test_a_sample_lost_on_disk_is_said_so_and_stored_again_when_it_is_put_again(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = trial.open(seal_age_s=3600.0, pack_target_bytes=10_000_000)
    ticket = store.put("s/0", SAMPLES["s/0"])
    store.put("s/1", SAMPLES["s/1"])
    (pack,) = (trial.local / "w-00" / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[4000] ^= 1  # inside the first sample
    pack.write_bytes(data)
    plain = SYS.fdatasync

    def fails_once(fd: int) -> None:
        monkeypatch.setattr(SYS, "fdatasync", plain)
        raise OSError(5, "input/output error")

    monkeypatch.setattr(SYS, "fdatasync", fails_once)
    with pytest.raises(DurastoreError):
        store.put("s/2", SAMPLES["s/2"])
    deadline = time.monotonic() + 20
    while "s/0" in store and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "s/0" not in store
    with pytest.raises(DurastoreError):
        ticket.wait(10)
    with pytest.raises(DurastoreError, match=r"LOST|read back"):
        store.close()
    with trial.open() as again:
        assert "s/0" not in again
        assert "s/1" in again
        for name, tensors in SAMPLES.items():
            if name not in again:
                again.put(name, tensors)
        again.drain(30)
    trial.check_nothing_lost()
