"""Loaders of training data, from their packages, each in a virtual environment of its own.

Imported in these environments too, so it needs nothing but the standard library.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

__all__ = ["PACKAGES", "RANDOM_ACCESS", "install_readers", "without_vision"]

_TORCH = "torch==2.13.0"
PACKAGES: Mapping[str, str] = {
    "s3torchconnector": "s3torchconnector==1.5.0",
    "mosaicml": "mosaicml-streaming==0.13.0",
    "litdata": "litdata==0.2.76",
    "webdataset": "webdataset==1.0.2",
}
RANDOM_ACCESS = ("s3torchconnector", "mosaicml", "litdata")


def install_readers(home: Path) -> Mapping[str, Path]:
    """The interpreter of each, installed once."""
    found = {}
    for name, package in PACKAGES.items():
        python = home / name / "bin" / "python"
        if not (home / name / "installed").exists():
            venv.create(home / name, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "-q", _TORCH, "numpy", package], check=True)
            (home / name / "installed").touch()
        found[name] = python
    return found


def without_vision() -> None:
    """Let `streaming` be imported without its image data sets: torchvision's wheel on PyPI does not load beside a torch
    for CPUs, and nothing of it is used here.
    """
    sys.modules["streaming.vision"] = ModuleType("streaming.vision")
