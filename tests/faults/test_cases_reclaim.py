"""Losses of other tools at the moment of deleting, tried on a whole store: each refusal leaves the bytes in place."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from durastore.errors import (
    DurastoreError,
    IntegrityError,
    NotVerified,
    PackFailed,
    PermissionRefused,
    SpoolFull,
)
from durastore.fsio.sys import SYS
from durastore.model import ObjectKey
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.port import ObjectReader, ObjectStat
from durastore.testing.faulty import Fault, FaultRule, FaultyReader, FaultyStore
from tests.faults.trial import CLOCK, Trial, tensors_of, trial, wait_until

__all__ = ["trial"]

NAMES = [f"s/{number}" for number in range(10)]


def contents(paths: list[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths}


def manifested(trial: Trial, names: list[str]) -> dict[str, bytes]:
    """A spool in which all is uploaded, verified and manifested, and nothing is freed yet; returns its pack files."""
    store = trial.open()
    trial.put(store, *names)
    store.flush(400)
    store.abandon()
    held = contents(trial.packs)
    assert len(held) == len(names)
    return held


# --- what is not uploaded stays ---------------------------------------------------------------------------------------


def test_one_failed_upload_keeps_its_own_file_and_is_named(trial: Trial) -> None:
    # case B01
    store = trial.open(reclaim="eager")
    trial.objects.add(FaultRule(op="put", fault=Fault.LOSE_OBJECT, count=None, key_part="/000000000007-"))
    trial.put(store, *NAMES)
    held = contents(trial.packs)
    with pytest.raises(PackFailed, match="-000000000007"):
        store.flush(400)
    wait_until(lambda: len(trial.unlinked) == 9)
    assert store.status().only_local_ids == (NAMES[6],)
    with pytest.raises(PackFailed, match="-000000000007"):
        store.close()
    (kept,) = trial.packs
    assert "-000000000007." in kept.name
    assert kept.read_bytes().startswith(held[kept.name])  # it was sealed since, which adds the trailer
    trial.check_nothing_lost()


class LastChosen:
    """No chance: the canary of a batch is its last pack, and no pack is audited."""

    def choice(self, records: list[Any]) -> Any:
        return records[-1]

    def random(self) -> float:
        return 1.0

    def randrange(self, stop: int) -> int:
        return stop - 1


def test_only_what_the_bucket_holds_goes_and_strangers_stay(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B03: of 12 known packs the bucket lost 2; 8 more files in the root were never ours
    names = [f"s/{number}" for number in range(12)]
    held = manifested(trial, names)
    strangers = {}
    for number in range(8):
        place = trial.local if number % 2 else trial.local / "w-00" / "packs"
        path = place / f"{number}.safetensors"
        path.write_bytes(os.urandom(50 + number))
        strangers[path.name] = path.read_bytes()
    for key in trial.object_keys()[:2]:
        trial.objects.lose(key)
    lost = {key.text for key in trial.object_keys()[:2]}
    begun = len(trial.objects.calls)
    monkeypatch.setattr("random.SystemRandom", LastChosen)
    assert trial.stop(trial.open()) is None
    assert sorted(trial.unlinked) == sorted(held)
    sent = {key for op, key in trial.objects.calls[begun:] if op == "put" and "/packs/" in key}
    assert sent == lost, "the two lost ones were sent again, and no other"
    kept = {path.name: path.read_bytes() for path in trial.local.rglob("*.safetensors")}
    assert kept == strangers
    trial.check_nothing_lost()


def test_an_object_gone_behind_the_journals_back_is_seen_before_the_unlink(trial: Trial) -> None:
    # case B23
    held = manifested(trial, NAMES)
    for key in trial.object_keys():
        trial.objects.lose(key)
    trial.objects.add(FaultRule(op="put", fault=Fault.FORBIDDEN, count=None))
    trial.refuse(trial.open())
    assert contents(trial.packs) == held
    assert "reclaimed" not in trial.states().values()
    trial.check_nothing_lost()


def test_equal_content_under_two_ids_is_proven_for_each(trial: Trial) -> None:
    # case B38: equal content under two ids is two packs, each with a proof of its own
    store = trial.open()
    same = tensors_of("one content")
    for name in ("twin/a", "twin/b"):
        store.put(name, same)
        trial.acknowledged[name] = same
    store.flush(400)
    store.abandon()
    first, second = trial.object_keys()
    kept = trial.packs[1]
    data = kept.read_bytes()
    assert data == trial.content(second) != trial.content(first)
    trial.objects.lose(second)
    trial.objects.add(FaultRule(op="put", fault=Fault.DROP_REQUEST, count=None, key_part=second.text))
    assert trial.stop(trial.open(), timeout_s=15) is not None
    assert kept.read_bytes() == data
    trial.check_nothing_lost()


# --- the disk is not what it was --------------------------------------------------------------------------------------


def test_an_unmount_between_two_files_stops_the_batch(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B20: after the first unlink another directory lies where the root was
    held = manifested(trial, NAMES)
    away = trial.local.with_name("unmounted")
    plain = SYS.unlink

    def unlink(name: str, *, dir_fd: int) -> None:
        plain(name, dir_fd=dir_fd)
        if name in held and trial.local.exists():
            trial.local.rename(away)
            trial.local.mkdir()

    monkeypatch.setattr(SYS, "unlink", unlink)
    assert trial.stop(trial.open(), timeout_s=15) is not None
    assert list(trial.local.iterdir()) == [], "nothing was written where the root had been"
    assert len(trial.unlinked) == 1
    trial.local.rmdir()
    away.rename(trial.local)
    assert contents(trial.packs) == {name: data for name, data in held.items() if name not in trial.unlinked}
    trial.check_nothing_lost()


def test_a_root_without_its_marker_frees_nothing(trial: Trial) -> None:
    # case B17
    held = manifested(trial, NAMES[:3])
    store = trial.open()
    marker = next(path for path in trial.local.iterdir() if path.is_file())
    marker.rename(trial.local.with_name("marker"))
    trial.refuse(store)
    assert contents(trial.packs) == held
    trial.local.with_name("marker").rename(marker)
    trial.check_nothing_lost()


def test_a_lock_file_that_is_another_frees_nothing(trial: Trial) -> None:
    # case B33: whoever cannot show its lock any more has no right to unlink
    held = manifested(trial, NAMES[:3])
    store = trial.open()
    lock = trial.local / "w-00" / "lock"
    lock.rename(trial.local.with_name("lock"))
    lock.write_bytes(b"made by another process, which may hold it")
    trial.refuse(store)
    assert contents(trial.packs) == held
    trial.check_nothing_lost()


def test_a_lock_that_was_let_go_frees_nothing(trial: Trial) -> None:
    # case B33
    held = manifested(trial, NAMES[:3])
    store = trial.open()
    store._parts.lanes[0].spool._lock.close()
    trial.refuse(store)
    assert contents(trial.packs) == held
    trial.check_nothing_lost()


def test_two_owners_never_have_one_spool(trial: Trial) -> None:
    # case B32: names and pids say nothing; the kernel's lock does
    first = trial.open()
    second = trial.open()
    trial.put(first, "s/first")
    trial.put(second, "s/second")
    assert sorted(path.parent.parent.name for path in trial.packs) == ["w-00", "w-01"]
    assert trial.stop(first) is None
    assert trial.stop(second) is None
    assert len(trial.unlinked) == 2
    trial.check_nothing_lost()


def test_another_name_of_the_file_keeps_every_byte(trial: Trial) -> None:
    # cases B35, B11: the link count is not ours to rely on, and nothing is cut before it is unlinked
    held = manifested(trial, NAMES[:3])
    links = trial.local.with_name("links")
    links.mkdir()
    for path in trial.packs:
        os.link(path, links / path.name)
    assert trial.stop(trial.open()) is None
    assert trial.packs == []
    assert contents(sorted(links.iterdir())) == held
    trial.check_nothing_lost()


def test_a_damaged_local_file_is_put_aside_and_never_unlinked(trial: Trial) -> None:
    # case B25
    manifested(trial, NAMES[:3])
    store = trial.open()
    victim = trial.packs[0]
    with victim.open("r+b") as file:
        file.seek(1500)
        file.write(b"damaged")
    damaged = victim.read_bytes()
    trial.stop(store)
    assert victim.name not in trial.unlinked
    assert [path.read_bytes() for path in trial.quarantined] == [damaged]
    trial.check_nothing_lost()


def test_an_unlink_that_fails_is_a_failure_and_is_finished_later(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    # cases B43, B102: one of three cannot go; the journal does not say it went, and a rerun proves it anew
    held = manifested(trial, NAMES[:3])
    stuck = sorted(held)[1]
    plain = SYS.unlink

    def unlink(name: str, *, dir_fd: int) -> None:
        if name == stuck:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        plain(name, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(SYS, "unlink", unlink)
        error = trial.stop(trial.open())
        assert isinstance(error, DurastoreError)
        assert error.exit_code != 0
    assert (trial.local / "w-00" / "packs" / stuck).read_bytes() == held[stuck]
    assert trial.states()[stuck] == "manifested"
    assert trial.stop(trial.open()) is None
    assert trial.packs == []
    trial.check_nothing_lost()


def test_packs_still_being_written_are_never_touched(trial: Trial) -> None:
    # case B37: reclaim runs all the while
    store = trial.open(pack_target_bytes=9000, reclaim="eager")
    stop = threading.Event()

    def drain() -> None:
        while not stop.is_set():
            store.flush(400)

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        for number in range(30):
            trial.put(store, f"s/{number}")
    finally:
        stop.set()
        thread.join(30)
    assert trial.stop(store) is None
    assert len(trial.unlinked) > 3
    trial.check_nothing_lost()


# --- the bucket is not what it was ------------------------------------------------------------------------------------


def test_a_bucket_made_anew_under_the_same_name_voids_every_proof(trial: Trial) -> None:
    # case B164
    held = manifested(trial, NAMES[:4])
    store = trial.open()
    trial.objects.inner = MemoryStore(name="made-anew", clock=CLOCK)
    trial.objects._reader = FaultyReader(trial.objects.inner, trial.objects._state)
    trial.refuse(store)
    assert contents(trial.packs) == held
    trial.check_nothing_lost()
    store = trial.open()  # another store id: whatever was proven is not any more
    store.flush(400)
    store.abandon()
    assert contents(trial.packs) == held
    assert sorted(filter(None, map(trial.content, trial.object_keys()))) == sorted(held.values())
    assert trial.stop(trial.open()) is None
    trial.check_nothing_lost()


@pytest.mark.parametrize("fault", [Fault.ZERO_BLOCK, Fault.FLIP_BYTE])
def test_an_object_damaged_after_its_proof_is_found_by_the_canary(trial: Trial, fault: Fault) -> None:
    # case B61: HEAD answers as before, the data are not there any more
    held = manifested(trial, NAMES[:4])
    for key in trial.object_keys():
        trial.objects.damage(key, fault)
    error = trial.stop(trial.open())
    assert isinstance(error, PackFailed)
    assert "stopped" in str(error)
    assert trial.unlinked == []
    assert contents(trial.packs) == held
    trial.check_nothing_lost()


@pytest.mark.parametrize("lost", [1, 4])
def test_writes_the_server_forgot_after_the_first_look_are_sent_again(trial: Trial, lost: int) -> None:
    # case B62: acknowledged, read back, then lost with the server's power; the look after `settle_s` finds it
    held = manifested(trial, NAMES[:4])
    for key in trial.object_keys()[:lost]:
        trial.objects.lose(key)
    store = trial.open()
    trial.stop(store)  # where the canary is a lost one all reclaiming stops, else the lost ones are found one by one
    store = trial.open()
    store.flush(400)
    store.abandon()
    assert sorted(filter(None, map(trial.content, trial.object_keys()))) == sorted(held.values())
    trial.check_nothing_lost()


@pytest.mark.parametrize("op", ["head", "fetch", "fetch_chunks"])
def test_a_403_when_proving_is_not_knowing(trial: Trial, op: str) -> None:
    # case B165
    held = manifested(trial, NAMES[:3])
    before = trial.objects.count("put")
    store = trial.open()
    trial.objects.add(FaultRule(op=op, fault=Fault.FORBIDDEN, count=None))
    trial.refuse(store)
    assert contents(trial.packs) == held
    assert trial.objects.count("put") == before, "not knowing sends nothing again"
    trial.check_nothing_lost()


def test_a_403_when_verifying_says_permission(trial: Trial) -> None:
    # case B165
    store = trial.open()
    trial.objects.add(FaultRule(op="head", fault=Fault.FORBIDDEN, count=None, key_part="packs/"))
    trial.put(store, "s/0")
    error = trial.stop(store)
    assert isinstance(error, PermissionRefused)
    assert error.exit_code == 21
    assert len(trial.packs) == 1
    assert len([key for op, key in trial.objects.calls if op == "put" and "packs/" in key]) == 1
    trial.check_nothing_lost()


class Changed:
    """A store whose HEAD of a pack tells something else than it did."""

    def __init__(self, objects: FaultyStore) -> None:
        self._objects = objects
        self.changes: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def head(self, key: ObjectKey) -> ObjectStat:
        return self._told(self._objects.head(key))

    def fresh_reader(self) -> ObjectReader:
        inner = self._objects.fresh_reader()
        reader: Any = type("Reader", (), {"__getattr__": lambda _, name: getattr(inner, name)})()
        type(reader).head = lambda _, key: self._told(inner.head(key))
        return reader  # type: ignore[no-any-return]  # a proxy with the protocol's methods

    def _told(self, stat: ObjectStat) -> ObjectStat:
        facts = {name: getattr(stat, name) for name in ObjectStat.__slots__}
        return ObjectStat(**(facts | (self.changes if "packs/" in stat.key.text else {})))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"size_bytes": None}, id="no length, B64"),
        pytest.param({"is_readable": False, "storage_class": "GLACIER"}, id="archived"),
        pytest.param({"crc64nvme": "AAAAAAAAAAA="}, id="other checksum"),
        pytest.param({"etag": ""}, id="no etag"),
    ],
)
def test_what_the_last_look_tells_has_to_be_what_was_proven(trial: Trial, changes: dict[str, Any]) -> None:
    # case B64, case B147
    held = manifested(trial, NAMES[:3])
    changed = Changed(trial.objects)
    store = trial.open(objects=changed)
    changed.changes = changes
    trial.refuse(store)
    assert contents(trial.packs) == held
    trial.check_nothing_lost()


def test_an_object_written_again_since_its_proof_is_read_in_full_before_it_counts(trial: Trial) -> None:
    # case B147: another version is the current one
    manifested(trial, NAMES[:3])
    changed = Changed(trial.objects)
    store = trial.open(objects=changed)
    begun = len(trial.objects.calls)
    changed.changes = {"etag": '"another"'}
    assert trial.stop(store) is None
    read = [key for op, key in trial.objects.calls[begun:] if op == "fetch_chunks"]
    assert set(read) == {key.text for key in trial.object_keys()}
    trial.check_nothing_lost()


def test_verifying_twice_at_once_takes_nothing_away(trial: Trial) -> None:
    # case B24
    store = trial.open()
    trial.put(store, *NAMES[:2])
    store.flush(400)
    verifier = store._parts.services.verifier
    held, objects = contents(trial.packs), {key: trial.content(key) for key in trial.object_keys()}
    records = store._parts.lanes[0].unreclaimed()
    barrier = threading.Barrier(6)
    outcomes: list[Any] = []

    def look(number: int) -> None:
        barrier.wait()
        try:
            outcomes.append(verifier.verify_remote_copy(records[number % 2]))
        except (IntegrityError, NotVerified) as exc:
            outcomes.append(exc)

    trial.objects.add(FaultRule(op="fetch_chunks", fault=Fault.WRONG_BYTE, first=3, count=2))
    threads = [threading.Thread(target=look, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    store.abandon()
    assert len(outcomes) == 6
    assert any(isinstance(outcome, IntegrityError) for outcome in outcomes)
    assert contents(trial.packs) == held
    assert {key: trial.content(key) for key in trial.object_keys()} == objects


def test_a_pack_verified_by_an_ended_process_is_proven_again_and_goes(trial: Trial) -> None:
    # case B102
    held = manifested(trial, NAMES[:3])
    looks = trial.objects.count("head")
    assert trial.stop(trial.open()) is None
    assert trial.objects.count("head") - looks >= 3
    assert sorted(trial.unlinked) == sorted(held)
    trial.check_nothing_lost()


def test_a_put_that_waits_for_room_hurries_what_keeps_it(trial: Trial) -> None:
    """One open pack, far from full and young, is all that the spool holds."""
    store = trial.open(
        high_watermark_bytes=20_000,
        low_watermark_bytes=0,
        pack_target_bytes=1 << 20,
        seal_age_s=1_000_000.0,
        stall_s=300.0,
        reclaim="eager",
    )
    trial.put(store, *[f"s/{number}" for number in range(20)])
    assert trial.stop(store) is None
    assert trial.packs == []
    trial.check_nothing_lost()


def test_a_full_spool_blocks_and_evicts_nothing(trial: Trial) -> None:
    # case B04
    store = trial.open(high_watermark_bytes=20_000, low_watermark_bytes=0, stall_s=2.0, reclaim="eager")
    trial.objects.add(FaultRule(op="put", fault=Fault.DROP_REQUEST, count=None))
    with pytest.raises(SpoolFull):
        trial.put(store, *[f"s/{number}" for number in range(20)])
    held = contents(trial.packs)
    assert len(held) == len(trial.acknowledged) >= 2
    assert len(store.status().only_local_ids) == len(held)
    store.abandon()
    assert trial.unlinked == []
    assert contents(trial.packs).keys() == held.keys()
    trial.check_nothing_lost()
    assert trial.stop(trial.open()) is None
    assert trial.packs == []
