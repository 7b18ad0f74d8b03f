"""Runs the import contracts of pyproject.toml on a copy of the repository, in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_RUN = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
_BROKEN = re.compile(r"^(.+) BROKEN$", re.MULTILINE)
_KEPT = re.compile(r"^(.+) KEPT$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractReport:
    """Which contracts hold, which are broken, and what import-linter said."""

    kept: frozenset[str]
    broken: frozenset[str]
    text: str


def check_contracts(root: Path) -> ContractReport:
    """Check the sources below `root` (not the installed ones) against `root`'s own pyproject.toml."""
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'cli'}", "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    text = done.stdout + done.stderr
    kept, broken = frozenset(_KEPT.findall(text)), frozenset(_BROKEN.findall(text))
    if (done.returncode == 0) != (not broken) or not kept | broken:
        raise RuntimeError(f"import-linter did not finish (exit {done.returncode}):\n{text}")
    return ContractReport(kept=kept, broken=broken, text=text)


def copy_sources(source: Path, target: Path) -> Path:
    """Copy what is shipped, and the contracts, so that a test can plant a mistake in it."""
    for name in ("durastore", "cli"):
        shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "pyproject.toml", target)
    return target
