"""A pack that both sides lost while a store is open: the run says so, and the next one can make its samples again."""

from __future__ import annotations

from pathlib import Path

import pytest

from durastore.errors import PackFailed
from tests.faults.trial import Trial, trial
from tests.unit.reclaim_lab import Chosen

__all__ = ["trial"]


def test_what_both_sides_lost_is_said_and_can_be_made_again(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # cases B23, B102
    monkeypatch.setattr("random.SystemRandom", Chosen)  # the canary is the last pack
    store = trial.open()
    trial.put(store, "s/0", "s/1")
    store.flush(400)
    key = trial.key_of(store, "s/0")
    trial.packs[0].rename(tmp_path / "taken")
    trial.objects.lose(key)
    error = trial.stop(store)
    assert isinstance(error, PackFailed), "a run that lost a sample does not end well"
    assert "does not give it back" in str(error)
    with trial.open(reclaim="never") as again:
        assert "s/0" not in again, "INV-8: a row alone is not done"
        assert "s/1" in again
        trial.put(again, "s/0")
        again.flush(400)
    trial.check_nothing_lost()
