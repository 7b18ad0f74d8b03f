"""A disk that is full at one step of a store's work, whichever it is: the work waits, goes on, and loses nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from durastore.objectstore.memory import MemoryStore
from durastore.testing.faulty import FaultyStore
from tests.faults.full_points import FullPoints
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
    trial = Trial(folder / "spool", FaultyStore(MemoryStore(name=f"full-{folder.name}", clock=CLOCK)))
    arm(trial, monkeypatch)
    return trial


def steps_of(tmp_path: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        points = FullPoints()
        live(made(tmp_path / "count", patch), points)
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
def test_a_full_disk_at_some_steps_is_waited_for(tmp_path: Path, share: int) -> None:
    # cases B83, B89: every eighth step, from another one on in each of the eight
    count = steps_of(tmp_path)
    assert count > 60
    seen: set[str] = set()
    for at in range(1 + share, count + 1, 8):
        width, code = STRETCHES[at % 3]
        points = FullPoints(at, width=width, code=code)
        check(tmp_path / f"at-{at}", points)
        seen |= set(points.refused)
    assert {"commit"} < seen
