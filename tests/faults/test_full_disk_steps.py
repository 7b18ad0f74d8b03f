"""A disk that is full at one step of a store's work, whichever it is: the work waits, goes on, and loses nothing."""

from __future__ import annotations

import contextlib
import errno
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.errors import DurastoreError, PackFailed
from durastore.objectstore.memory import MemoryStore
from durastore.store.store import Store
from durastore.testing.faulty import FaultyStore
from durastore.verify.verifier import Verifier
from tests.faults.full_points import FullPoints, refuse_to_set_aside, refuse_to_write
from tests.faults.trial import CLOCK, Trial, arm, tensors_of

STRETCHES = ((1, errno.ENOSPC), (1, errno.EDQUOT), (4, errno.ENOSPC))


def live(trial: Trial, points: FullPoints) -> None:
    """A small job: groups in common tars, a sample of its own file, one put again under another input, all freed."""
    store = trial.open(pack_target_bytes=9_000, single_pack_bytes=6_000, stall_s=3_000.0)
    try:
        with points.installed():
            trial.put(store, "a/1", "a/2")
            group = {name: tensors_of(name) for name in ("g/1", "g/2", "g/3", "g/4", "g/5")}
            tickets = store.put_many(group)
            assert all(ticket.is_new for ticket in tickets.values())
            trial.acknowledged |= group
            trial.put(store, "big", size=7_000)
            store.flush(900)
            store.put("a/1", {"h": np.arange(3)}, input_digest="ab" * 16)
            trial.acknowledged["a/1"] = {"h": np.arange(3)}
            trial.put(store, "a/3")
            store.drain(900)
        assert store.status().failures == ()
        assert store.status().samples_put == 10
        assert store.status().only_local_ids == ()
    finally:
        store.abandon()


def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    folder.mkdir(exist_ok=True)
    trial = Trial(folder / "spool", FaultyStore(MemoryStore(name=f"full-{folder.name}", clock=CLOCK)))
    arm(trial, monkeypatch)
    return trial


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many there are when the disk is never full."""
    with pytest.MonkeyPatch.context() as patch:
        points = FullPoints()
        live(made(tmp_path_factory.mktemp("count") / "count", patch), points)
        return points.count


def check(folder: Path, points: FullPoints) -> None:
    with pytest.MonkeyPatch.context() as patch:
        trial = made(folder, patch)
        live(trial, points)
        assert points.synced_again == [], points.refused
        # a file whose making was cut off has no pack: the next open sets it aside
        assert set(trial.states().values()) == {"reclaimed"}
        trial.check_nothing_lost()


@pytest.mark.parametrize("share", range(8))
def test_a_full_disk_at_some_steps_is_waited_for(tmp_path: Path, share: int, steps: int) -> None:
    # cases B83, B89: every eighth step, from another one on in each of the eight
    assert steps > 60
    seen: set[str] = set()
    for at in range(1 + share, steps + 1, 8):
        width, code = STRETCHES[at % 3]
        points = FullPoints(at, width=width, code=code)
        check(tmp_path / f"at-{at}", points)
        seen |= set(points.refused)
    assert {"commit"} < seen


# --- a disk that is full when a damaged file is to be set aside ------------------------------------------------------


GROUP = {f"g/{n}": tensors_of(f"g/{n}") for n in range(4)}


def opened(trial: Trial, **options: Any) -> Store:
    """All samples share one tar, which is sealed when it has to be."""
    return trial.open(**({"pack_target_bytes": 100_000, "seal_age_s": 1e9, "stall_s": 3_000.0} | options))


def damage(trial: Trial) -> None:
    """The disk changes one byte of g/2."""
    (pack,) = trial.packs
    data = bytearray(pack.read_bytes())
    data[data.index(GROUP["g/2"]["h"].tobytes()) + 100] ^= 1
    with pack.open("r+b") as file:
        file.write(data)


def is_told(store: Store, ticket: Any) -> dict[str, bool]:
    """By whom it is said that g/2 is lost."""
    said = {"contains": "g/2" not in store, "flush": False, "ticket": False, "failures": False}
    try:
        store.flush(600)
    except DurastoreError as exc:
        said["flush"] = "g/2" in exc.message
    try:
        ticket.wait(60)
    except DurastoreError:
        said["ticket"] = True
    said["contains"] = "g/2" not in store
    said["failures"] = any("LOST: g/2" in error.message for error in store._parts.lanes[0].failures())
    return said


EVERYBODY = {"contains": True, "flush": True, "ticket": True, "failures": True}


@pytest.mark.parametrize("times", [0, 1])
def test_a_sample_lost_before_its_upload_is_told_although_its_file_cannot_be_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    trial = made(tmp_path / f"rescue-{times}", monkeypatch)
    store = opened(trial)
    left = refuse_to_set_aside(monkeypatch, times=times)
    try:
        tickets: dict[str, Any] = store.put_many(GROUP)
        damage(trial)
        with pytest.raises(PackFailed, match="LOST: g/2"):
            store.flush(600)
        assert left == [0]
        assert is_told(store, tickets["g/2"]) == EVERYBODY
    finally:
        store.abandon()
    trial.acknowledged |= {name: tensors for name, tensors in GROUP.items() if name != "g/2"}
    trial.check_nothing_lost()
    assert len(trial.quarantined) == 1, "the next opening sets it aside"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("times", [0, 1])
def test_a_sample_lost_in_an_abandoned_tar_is_told_although_its_file_cannot_be_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, code: int
) -> None:
    """The write of a later group fails, and what was acknowledged before does not read back as it was written."""
    trial = made(tmp_path / f"torn-{times}-{code}", monkeypatch)
    store = opened(trial)
    refuse_to_set_aside(monkeypatch, times=times, code=code)
    try:
        tickets: dict[str, Any] = store.put_many(GROUP)
        damage(trial)
        refuse_to_write(monkeypatch)
        with contextlib.suppress(DurastoreError):  # the store stops for it, at the put or at the flush
            store.put("later", tensors_of("later"))
        assert is_told(store, tickets["g/2"]) == EVERYBODY
    finally:
        store.abandon()


@pytest.mark.parametrize("reclaim", ["eager", "never"])
@pytest.mark.parametrize("times", [0, 1])
def test_what_was_saved_from_an_abandoned_tar_is_not_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reclaim: str, times: int
) -> None:
    trial = made(tmp_path / f"again-{reclaim}-{times}", monkeypatch)
    store = opened(trial, reclaim=reclaim)
    left = refuse_to_set_aside(monkeypatch, times=times)
    try:
        tickets: dict[str, Any] = store.put_many(GROUP)
        refuse_to_write(monkeypatch)
        store.put("later", tensors_of("later"))
        store.drain(600)
        time.sleep(0.6)  # 12 s of the trial's clock: what is left to be saved is tried again
        store.put("last", tensors_of("last"))
        store.drain(600)
        for ticket in tickets.values():
            ticket.wait(60)
        assert left == [0]
        assert [len(store.rows_of(name)) for name in (*GROUP, "later", "last")] == [1] * 6
        assert len(trial.object_keys()) <= 3
    finally:
        store.abandon()
    trial.acknowledged |= GROUP
    trial.check_nothing_lost()


@pytest.mark.parametrize("times", [0, 1])
def test_a_saved_copy_on_its_way_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """It is uploaded and looked at, slowly, while the writer looks for what is left to be saved."""
    trial = made(tmp_path / f"slow-{times}", monkeypatch)
    looks: list[str] = []
    plain_look = Verifier.verify_remote_copy

    def slow_look(verifier: Verifier, record: Any, **options: Any) -> Any:
        looks.append(record.name)
        if len(looks) == 1:
            time.sleep(1.0)  # 20 s of the trial's clock
        return plain_look(verifier, record, **options)

    monkeypatch.setattr(Verifier, "verify_remote_copy", slow_look)
    store = opened(trial, reclaim="never")
    refuse_to_set_aside(monkeypatch, times=times)
    try:
        store.put_many(GROUP)
        refuse_to_write(monkeypatch)
        store.put("later", tensors_of("later"))
        time.sleep(1.5)
        assert looks
        store.put("last", tensors_of("last"))
        store.flush(900)
    finally:
        store.abandon()
    trial.acknowledged |= GROUP
    trial.check_nothing_lost()
