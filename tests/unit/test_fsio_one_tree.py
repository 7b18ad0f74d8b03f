"""Two folders that show one tree are told from two trees, from either side."""

from __future__ import annotations

from pathlib import Path

import pytest

from durastore.fsio.folder import Folder
from durastore.fsio.one_tree import is_one_tree


class Merged(Folder):
    """A folder that shows a branch too, as an overlay or a pool does: what is made in it comes to another branch."""

    branch: Folder

    def has(self, name: str) -> bool:
        return super().has(name) or self.branch.has(name)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    return one, other


def test_two_folders_are_two(two: tuple[Path, Path]) -> None:
    with Folder.open(two[0]) as one, Folder.open(two[1]) as other:
        assert not is_one_tree(one, other)
    assert [list(path.iterdir()) for path in two] == [[], []], "nothing is left behind"


def test_one_folder_is_one(two: tuple[Path, Path]) -> None:
    with Folder.open(two[0]) as one, one.again() as again:
        assert is_one_tree(one, again)
    assert list(two[0].iterdir()) == []


def test_a_pool_shows_its_branch_whichever_is_asked_for(two: tuple[Path, Path]) -> None:
    with Folder.open(two[0]) as branch, Merged.open(two[1]) as pool:
        assert isinstance(pool, Merged)
        pool.branch = branch
        assert is_one_tree(branch, pool)
        assert is_one_tree(pool, branch)


def test_a_folder_in_which_nothing_can_be_made_tells_nothing(two: tuple[Path, Path]) -> None:
    with Folder.open(two[0]) as one, Folder.open(two[1]) as other:
        two[1].rmdir()
        with pytest.raises(Exception, match="No such file"):
            is_one_tree(one, other)
