"""What gets installed: two packages with their type markers, one command, and nothing called `cli` or `tests`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.architecture.source_tree import REPO


def test_the_wheel_holds_two_packages_and_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("durastore-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        commands = archive.read(entry_points).decode()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"durastore", "durastore_cli"}
    assert {"durastore/py.typed", "durastore_cli/py.typed"} <= set(names)
    assert "durastore = durastore_cli.main:main" in commands
    modules = {path.relative_to(REPO).as_posix() for path in (REPO / "durastore").rglob("*.py")}
    assert modules <= set(names)
