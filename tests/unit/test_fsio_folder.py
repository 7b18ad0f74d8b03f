"""A held folder: names in it lead nowhere else, whatever becomes of its path."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from durastore.errors import SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.publish import TempFile


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../b", "/b", "a\0"])
def test_a_name_is_one_segment(tmp_path: Path, name: str) -> None:
    (tmp_path / "held").mkdir()
    (tmp_path / "b").write_bytes(b"outside")
    with Folder.open(tmp_path / "held") as folder:
        for act in (folder.open_read, folder.child, folder.ensure_child, folder.identity, folder.has):
            with pytest.raises(ValueError, match="single path segment"):
                act(name)
    assert list((tmp_path / "held").iterdir()) == []


def test_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "held").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "file").write_bytes(b"outside")
    (tmp_path / "held" / "folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "held" / "file").symlink_to(tmp_path / "file")
    with Folder.open(tmp_path / "held") as folder:
        for name in ("folder", "file"):
            with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
                folder.child(name)
        with pytest.raises(OSError, match="symbolic links"):
            folder.open_read("file")
        with pytest.raises(OSError, match="Not a directory"):
            folder.ensure_child("folder")
        with pytest.raises(SpoolUnreadable):
            folder.identity("file")
        assert folder.has("file")


def test_names_are_those_of_the_held_folder_and_not_of_its_path(tmp_path: Path) -> None:
    path = tmp_path / "held"
    path.mkdir()
    (path / "pack").write_bytes(b"held")
    with Folder.open(path) as folder:
        path.rename(tmp_path / "away")
        path.mkdir()
        (path / "pack").write_bytes(b"in another folder under the same path")
        assert folder.read_bytes("pack", limit_bytes=100) == b"held"
        assert folder.identity("pack").inode == (tmp_path / "away" / "pack").stat().st_ino
        folder.ensure_child("made").close()
        assert (tmp_path / "away" / "made").is_dir()
        assert os.listdir(path) == ["pack"]


def test_two_threads_that_list_one_folder_each_get_all_of_it(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03d}").touch()
    expected = sorted(os.listdir(tmp_path))
    with Folder.open(tmp_path) as folder, ThreadPoolExecutor(4) as pool:
        assert all(names == expected for names in pool.map(lambda _: folder.names(), range(400)))


def test_a_new_file_is_opened_in_no_way_that_a_server_may_refuse(tmp_path: Path) -> None:
    with Folder.open(tmp_path) as folder, TempFile.open(folder) as temp:
        flags = fcntl.fcntl(temp.fd, fcntl.F_GETFL)
    assert not flags & os.O_NOATIME  # NFS that is not to serve root refuses it for files of another owner
