"""The ballast: really there, really given back, and never anything else."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from durastore.fsio import ballast as ballast_module
from durastore.fsio.ballast import Ballast
from durastore.fsio.folder import Folder
from durastore.fsio.sys import SYS

SIZE = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder.open(tmp_path) as opened:
        yield opened


def make(folder: Folder) -> Ballast:
    return Ballast(folder, "ballast", size_bytes=SIZE)


def allocated(folder: Folder) -> int:
    path = folder.path / "ballast"
    return path.stat().st_blocks * 512 if path.exists() else 0


def refuse(code: int) -> object:
    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


def test_it_holds_the_space_until_it_is_given_back_and_comes_again(folder: Folder) -> None:
    ballast = make(folder)
    for _ in range(2):
        assert ballast.ensure()
        assert ballast.ensure()
        assert allocated(folder) >= SIZE
        assert (ballast.is_wanted, ballast.missing_bytes) == (False, 0)
        assert ballast.release()
        assert not ballast.release()
        assert allocated(folder) == 0
        assert ballast.missing_bytes > SIZE


@pytest.mark.parametrize("left", [0, 5_000])
def test_one_that_was_cut_short_is_made_whole(folder: Folder, left: int) -> None:
    with (folder.path / "ballast").open("wb") as file:
        file.truncate(left)
    assert make(folder).ensure()
    assert allocated(folder) >= SIZE


def test_a_copy_with_holes_is_filled(folder: Folder) -> None:
    with (folder.path / "ballast").open("wb") as file:
        file.truncate(SIZE)
    assert allocated(folder) == 0
    assert make(folder).ensure()
    assert allocated(folder) >= SIZE


@pytest.mark.parametrize("at", [0, SIZE // 2, SIZE - 1])
def test_a_file_with_a_single_byte_in_it_is_never_dropped(folder: Folder, at: int) -> None:
    data = bytearray(SIZE)
    data[at] = 1
    (folder.path / "ballast").write_bytes(data)
    assert not make(folder).release()
    assert (folder.path / "ballast").read_bytes() == data


def test_a_link_or_a_folder_under_its_name_is_left_alone(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(SIZE))
    (tmp_path / "ballast").symlink_to(tmp_path / "zeros")
    assert not make(folder).release()
    assert (tmp_path / "zeros").exists()
    assert (tmp_path / "ballast").is_symlink()
    (tmp_path / "ballast").unlink()
    (tmp_path / "ballast").mkdir()
    assert not make(folder).release()
    assert (tmp_path / "ballast").is_dir()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_room_for_it_says_no_and_keeps_no_half(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    plain = SYS.preallocate

    def half(fd: int, size_bytes: int) -> None:
        plain(fd, size_bytes // 2)
        raise OSError(code, os.strerror(code))

    ballast = make(folder)
    with monkeypatch.context() as patch:
        patch.setattr(SYS, "preallocate", half)
        assert not ballast.ensure()
    assert ballast.is_wanted
    assert not (folder.path / "ballast").exists()
    assert ballast.ensure()


def test_where_space_cannot_be_held_at_all_nothing_waits_for_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ballast = make(folder)
    monkeypatch.setattr(SYS, "preallocate", refuse(errno.EOPNOTSUPP))
    assert ballast.ensure()
    assert not ballast.is_wanted


def test_it_goes_only_when_hardly_anything_is_left(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    ballast = make(folder)
    assert ballast.ensure()
    monkeypatch.setattr(ballast_module, "free_bytes", lambda _: SIZE // 4)
    assert not ballast.release_if_scarce()
    monkeypatch.setattr(ballast_module, "free_bytes", lambda _: SIZE // 4 - 1)
    assert ballast.release_if_scarce()
    assert not ballast.ensure(), "there is no room for it"
    monkeypatch.setattr(ballast_module, "free_bytes", lambda _: SIZE + SIZE // 4)
    assert ballast.ensure()
    assert allocated(folder) >= SIZE


def test_what_is_held_is_durable(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    plain = SYS.fsync

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        plain(fd)

    monkeypatch.setattr(SYS, "fsync", fsync)
    assert make(folder).ensure()
    assert synced == [(folder.path / "ballast").stat().st_ino, folder.path.stat().st_ino]
    synced.clear()
    assert make(folder).release()
    assert synced == [folder.path.stat().st_ino]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_sync_without_room_does_not_hide_that_it_went(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    ballast = make(folder)
    assert ballast.ensure()
    with monkeypatch.context() as patch:
        patch.setattr(SYS, "fsync", refuse(code))
        assert not ballast.release()
    assert ballast.is_wanted
    assert ballast.ensure()
