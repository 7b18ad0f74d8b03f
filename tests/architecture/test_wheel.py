"""What gets installed: two packages with their type markers, one command, and nothing called `cli` or `tests`."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.architecture.source_tree import REPO
from tests.package.built import build


def test_the_wheel_holds_two_packages_and_the_command(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", tmp_path)) as archive:
        names = archive.namelist()
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        commands = archive.read(entry_points).decode()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"durastore", "durastore_cli"}
    assert {"durastore/py.typed", "durastore_cli/py.typed"} <= set(names)
    assert "durastore = durastore_cli.main:main" in commands
    modules = {path.relative_to(REPO).as_posix() for path in (REPO / "durastore").rglob("*.py")}
    assert modules <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_is_a_checkout_without_its_history(tmp_path: Path) -> None:
    """Somebody who has it can run the tests, read every page and try every example."""
    if not (REPO / ".git").exists():
        pytest.skip("no checkout: nothing to compare with")
    listed = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    tracked = {name for name in listed.splitlines() if (REPO / name).exists()}
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked - names == set()
    assert names - tracked - _untracked() == {"PKG-INFO"}


def _untracked() -> set[str]:
    """What somebody is about to add."""
    command = ["git", "ls-files", "--others", "--exclude-standard"]
    return set(subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout.splitlines())
