"""What is installed from this repository: its wheel, its sdist, and a folder that holds nothing but the core."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.source_tree import REPO

__all__ = ["EXTRAS", "build", "core_closure", "core_requirements", "make_core_site", "requirements_of"]


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


EXTRAS: tuple[str, ...] = tuple(_project()["optional-dependencies"])


def core_requirements() -> list[Requirement]:
    return [Requirement(text) for text in _project()["dependencies"]]


def requirements_of(extra: str) -> list[Requirement]:
    """Those of ours that hold on this machine; `all` names other extras of ours and has none of its own."""
    found = [Requirement(text) for text in _project()["optional-dependencies"][extra]]
    return [each for each in found if each.name != "durastore" and (each.marker is None or each.marker.evaluate())]


def build(target: str, folder: Path) -> Path:
    """The wheel or the sdist, built from the working tree into `folder`. Needs no network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("durastore-*.whl" if target == "wheel" else "durastore-*.tar.gz")
    return built


def core_closure() -> dict[str, Distribution]:
    """Every distribution that a plain `pip install durastore` brings, by name, as it is installed here."""
    found: dict[str, Distribution] = {}
    waiting = core_requirements()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        found[name] = distribution(wanted.name)
        needs = (Requirement(text) for text in found[name].requires or ())
        waiting += [each for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def make_core_site(folder: Path, wheel: Path) -> Path:
    """A folder for PYTHONPATH with the wheel unpacked and links to the core's packages, and to no other."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    for each in core_closure().values():
        for top in set(_tops(each)):
            link = folder / top
            if not link.exists():
                link.symlink_to(str(each.locate_file(top)))
    return folder


def _tops(installed: Distribution) -> Iterator[str]:
    for file in installed.files or ():
        top = file.parts[0]
        if top not in ("..", "__pycache__") and not re.fullmatch(r".*\.pth", top):
            yield top
