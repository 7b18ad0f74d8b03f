"""The picture in docs/design/overview.md is the one that import-linter holds the code to."""

from __future__ import annotations

import re
import tomllib

from tests.architecture.source_tree import REPO

_TEXT = (REPO / "docs/design/overview.md").read_text(encoding="utf-8")


def _contracts() -> dict[str, list[str]]:
    facts = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    return {c["id"]: c.get("layers", []) for c in facts["tool"]["importlinter"]["contracts"]}


def test_the_layers_are_those_of_the_contracts() -> None:
    block = re.findall(r"^```layers\n(.*?)^```", _TEXT, re.MULTILINE | re.DOTALL)[0]
    shown = [re.split(r" {3,}", line)[0].split(" | ") for line in block.splitlines()]
    contracts = _contracts()
    held = [re.sub(r"[()]", "", layer).split(" | ") for layer in contracts["layers"]]
    assert shown == [contracts["cli-on-top"][:1], *held]


def test_the_parts_are_the_folders_and_modules() -> None:
    table = _TEXT[_TEXT.index("\n## The parts\n") : _TEXT.index("\n## Where data can leave a disk\n")]
    shown = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    parts = {path.name for path in (REPO / "durastore").iterdir() if (path / "__init__.py").exists()}
    parts |= {path.stem for path in (REPO / "durastore").glob("*.py") if path.stem != "__init__"}
    assert sorted(shown) == sorted({*parts, "durastore_cli"})


def test_the_code_that_is_named_exists() -> None:
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", _TEXT)
    assert len(named) > 15
    roots = (REPO, REPO / "durastore")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []
