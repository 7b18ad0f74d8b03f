"""A loader forks its workers at any moment, also while something is locked: the lock is still its owner's alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import durastore
from durastore.adopt.place import FolderPlace, opened_place
from durastore.artifacts import pushing

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@contextmanager
def epoch_under_way() -> Iterator[None]:
    """A loader's worker is forked here, and lives until the block ends."""
    numbers: Any = range(100)
    batches = iter(DataLoader(numbers, num_workers=1, multiprocessing_context="fork"))
    next(batches)
    (worker,) = batches._workers  # type: ignore[attr-defined]
    try:
        yield
        assert worker.is_alive(), "it lived all the time"
    finally:
        batches._shutdown_workers()  # type: ignore[attr-defined]


def test_a_checkpoint_arrives_though_workers_were_forked_during_the_push_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, go_on = threading.Event(), threading.Event()

    @contextmanager
    def slowly(*asked: Any, **options: Any) -> Iterator[FolderPlace]:
        with opened_place(*asked, **options) as place:
            held.set()
            assert go_on.wait(60)
            yield place

    monkeypatch.setattr(pushing, "opened_place", slowly)
    folder = tmp_path / "out"
    (folder / "checkpoint-1").mkdir(parents=True)
    (folder / "checkpoint-1/model.bin").write_bytes(b"first")
    place: dict[str, Any] = {"is_any_filesystem_allowed": True, "settle_s": 0}
    with durastore.Artifacts(folder, bucket="memory://forked-push/run", **place) as artifacts:
        artifacts.saved()
        assert held.wait(60)
        with epoch_under_way():
            go_on.set()
            artifacts.close()
            (folder / "checkpoint-2").mkdir()
            (folder / "checkpoint-2/model.bin").write_bytes(b"second")
            artifacts.saved()
            artifacts.close()
        newest = artifacts.newest()
    assert newest is not None
    assert [file.path.text for file in newest.files] == ["checkpoint-1/model.bin", "checkpoint-2/model.bin"]


def test_a_store_that_is_opened_again_gets_its_spool_though_workers_were_forked_meanwhile(tmp_path: Path) -> None:
    place: dict[str, Any] = {"local": tmp_path / "spool", "reclaim": "never"}
    with ExitStack() as epoch:
        with durastore.open("memory://forked-store/run", **place) as store:
            store.put("first", {"x": np.arange(5)})
            epoch.enter_context(epoch_under_way())
        with durastore.open("memory://forked-store/run", **place) as store:
            store.put("second", {"x": np.arange(7)})
    assert [path.name for path in sorted((tmp_path / "spool").glob("w-*"))] == ["w-00"]
