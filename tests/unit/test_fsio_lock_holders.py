"""Who holds a lock is told on file systems whose `stat` has other numbers than the kernel's tables."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from durastore.errors import InventoryIncomplete
from durastore.extract import stop as stop_module
from durastore.extract.stop import stop
from durastore.formats.spool_root import LOCK_NAME
from durastore.fsio.folder import Folder
from durastore.fsio.lock import FlockedFile, holders


def _run(*command: str | Path) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    image, shown = tmp_path / "image", tmp_path / "btrfs"
    image.touch()
    os.truncate(image, 160 << 20)
    shown.mkdir()
    if not (_run("mkfs.btrfs", "-q", image) and _run("mount", "-o", "loop", image, shown)):
        pytest.skip("a btrfs cannot be made and mounted here")
    yield shown
    assert _run("umount", shown)


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    for name in ("lower", "upper", "work", "overlay"):
        (tmp_path / name).mkdir()
    shown = tmp_path / "overlay"
    layers = f"lowerdir={tmp_path / 'lower'},upperdir={tmp_path / 'upper'},workdir={tmp_path / 'work'}"
    if not _run("mount", "-t", "overlay", "none", "-o", layers, shown):
        pytest.skip("an overlay cannot be mounted here")
    yield shown
    assert _run("umount", shown)


@pytest.mark.parametrize("kind", ["btrfs", "overlay"])
def test_holders_are_named_where_stat_has_other_numbers(request: pytest.FixtureRequest, kind: str) -> None:
    path: Path = request.getfixturevalue(kind)
    with Folder.open(path) as folder:
        lock = FlockedFile.try_lock(folder, LOCK_NAME)
        assert lock is not None
        with closing(lock):
            assert holders(path / LOCK_NAME) == [os.getpid()]
    assert holders(path / LOCK_NAME) == []


def test_stop_does_not_say_that_nobody_is_there_where_the_holder_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of a process outside of this container is not in its `/proc/locks`."""
    (tmp_path / "w-00").mkdir()
    monkeypatch.setattr(stop_module, "holders", lambda _: [])
    with Folder.open(tmp_path / "w-00") as folder:
        lock = FlockedFile.try_lock(folder, LOCK_NAME)
        assert lock is not None
        with closing(lock), pytest.raises(InventoryIncomplete, match="cannot be named from here"):
            stop(tmp_path)
    assert stop(tmp_path).processes == ()
