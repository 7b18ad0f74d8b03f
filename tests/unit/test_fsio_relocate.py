"""Moving a name: nothing is overwritten, and the data always has one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from durastore.errors import DiskFailed
from durastore.fsio.folder import Folder
from durastore.fsio.relocate import relocate_shared
from durastore.fsio.sys import SYS


def test_a_shared_name_is_moved_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from/a").write_bytes(b"whole")
    monkeypatch.setattr(SYS, "unlink", None)  # no name is dropped by itself
    with Folder.open(tmp_path / "from") as source, Folder.open(tmp_path / "to") as target:
        relocate_shared(source, "a", target=target, new_name="b")
    assert list((tmp_path / "from").iterdir()) == []
    assert (tmp_path / "to/b").read_bytes() == b"whole"


def test_a_taken_name_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "b").write_bytes(b"old")
    with Folder.open(tmp_path) as folder, pytest.raises(FileExistsError):
        relocate_shared(folder, "a", target=folder, new_name="b")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"new", b"old")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EXDEV])
def test_where_it_cannot_be_one_step_the_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        raise OSError(number, "not here")

    (tmp_path / "a").write_bytes(b"whole")
    monkeypatch.setattr(SYS, "rename_new", refuse)
    with Folder.open(tmp_path) as folder, pytest.raises(DiskFailed, match="not here"):
        relocate_shared(folder, "a", target=folder, new_name="b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
