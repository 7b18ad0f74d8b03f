"""The wheel with the core's packages alone: every command tells its help, the inventory commands do their work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from durastore import __version__
from durastore_cli.main import COMMANDS
from tests.architecture.source_tree import REPO
from tests.package.built import EXTRAS, build, core_closure, core_requirements, make_core_site, requirements_of

SCRIPT = REPO / "tests/package/inventory_commands.py"
RUN = {"ls", "get", "verify", "status", "reconcile", "drain", "adopt", "migrate", "doctor", "manifest", "probe"}
RUN |= {"quarantine", "artifacts"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("core")
    return make_core_site(folder / "site", build("wheel", folder))


def _python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """An interpreter that sees the standard library and `site`, and no installed package besides."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def check(seen: dict[str, Any], work: Path) -> None:
    """What `inventory_commands.py` printed of `work`."""
    wrong = {typed: told for typed, told in seen.items() if told[0] != 0 or "Traceback" in told[1]}
    assert wrong == {}
    assert {f"{name} --help" for name in COMMANDS} <= seen.keys()
    assert {typed.split()[0] for typed in seen if not typed.endswith("--help")} - {"--version"} == RUN
    assert (work / "out" / "a.safetensors").is_file()
    assert (work / "back" / "notes.txt").read_text() == "kept\n"
    assert (work / "moved" / "old.npy").read_bytes() == (work / "files" / "old.npy").read_bytes()


def test_the_core_has_no_package_of_an_extra(site: Path) -> None:
    core = core_closure().keys()
    heavy = {each.name.lower() for extra in EXTRAS for each in requirements_of(extra)}
    heavy -= {each.name.lower() for each in core_requirements()}
    assert heavy >= {"torch", "aioboto3", "transformers", "nicegui", "pytest"}
    assert not heavy & core
    done = _python(site, "-c", "import torch")
    assert "No module named 'torch'" in done.stderr


def test_the_inventory_commands_need_the_core_alone(site: Path, tmp_path: Path) -> None:
    done = _python(site, str(SCRIPT), str(tmp_path))
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout), tmp_path)
    version = _python(site, "-m", "durastore_cli.main", "--version")
    assert version.stdout == f"durastore, version {__version__}\n"


@pytest.mark.parametrize(
    "line, extra",
    [
        (["extract", "in.jsonl", "--model", "model", "--layers", "1", "--bucket", "./b", "--local", "s"], "extract"),
        (
            ["extract", "in.jsonl", "--model", "owner/model", "--layers", "1", "--bucket", "./b", "--local", "s"],
            "extract",
        ),
        (["monitor", "--local", "s"], "monitor"),
    ],
    ids=["extract", "extract-hub", "monitor"],
)
def test_a_missing_extra_is_named(line: list[str], extra: str, site: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "s").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "b"}\n')
    code = f"import os, sys; os.chdir({str(tmp_path)!r}); from durastore_cli.main import run; sys.exit(run({line!r}))"
    done = _python(site, "-c", code)
    assert done.returncode == 2, done.stderr
    assert f"hint: pip install 'durastore[{extra}]'" in done.stderr
    assert [path.name for path in (tmp_path / "s").iterdir()] == [], "nothing was begun"
