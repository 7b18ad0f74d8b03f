"""The kernel's mount table, read once: names of every script, escaped blanks, mounts that hide others."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from durastore.fsio import mounts
from durastore.fsio.mounts import DiskPlace, Mount, disk_place, load_mounts
from durastore.fsio.space import filesystem_of

_ROOT = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw"


def _table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str | bytes) -> None:
    raw = [line.encode() if isinstance(line, str) else line for line in lines]
    table = tmp_path / "mountinfo"
    table.write_bytes(b"\n".join(raw) + b"\n")
    monkeypatch.setattr(mounts, "_TABLE", table)


def test_a_mount_point_of_any_script_hides_no_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that somebody mounted under a Chinese name must not keep a store elsewhere from opening."""
    _table(tmp_path, monkeypatch, _ROOT, "30 22 8:17 / /mnt/数据 rw - xfs /dev/sdb1 rw")
    assert filesystem_of(tmp_path).type_name == "ext4"


def test_the_file_system_under_such_a_mount_point_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "数据 café"
    odd.mkdir()
    device = odd.stat().st_dev
    own = f"{os.major(device)}:{os.minor(device)}"
    point = "\\040".join(str(odd).split(" "))
    _table(tmp_path, monkeypatch, _ROOT, f"30 22 {own} / {point} rw - xfs /dev/sdb1 rw")
    assert filesystem_of(odd).type_name == "xfs"
    assert disk_place(odd) == DiskPlace(own, PurePosixPath("/"))


def test_a_name_that_is_no_text_is_kept_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _table(tmp_path, monkeypatch, _ROOT, b"30 22 8:17 /sub\\040vol /mnt/\xff\r rw - btrfs /dev/sdb1 rw", "torn")
    assert load_mounts()[1:] == [
        Mount(
            device="8:17",
            root=PurePosixPath("/sub vol"),
            point=PurePosixPath(os.fsdecode(b"/mnt/\xff\r")),
            type_name="btrfs",
        )
    ]


def test_of_two_mounts_at_one_point_the_later_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _table(tmp_path, monkeypatch, "22 1 0:9 / / rw - overlay none rw", "23 1 0:9 / / rw - tmpfs none rw")
    assert filesystem_of(tmp_path).type_name == "tmpfs"
