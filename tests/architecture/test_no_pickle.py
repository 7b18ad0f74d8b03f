"""Nothing that is read can run code: no pickle or anything built on it, no YAML objects, no `eval`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source_tree import REPO, SourceFile, Use, load_sources

MODULES = frozenset(
    {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve", "pandas"}
)
# Calls that unpickle or run what they read, unless the keyword says otherwise: name -> (keyword, harmless value).
CALLS: dict[str, tuple[str, bool] | None] = {
    "torch.load": ("weights_only", True),
    "torch.hub.load": None,
    "torch.jit.load": None,
    "torch.package.PackageImporter": None,
    "numpy.load": ("allow_pickle", False),
    "numpy.fromregex": None,
    "yaml.load": None,
    "yaml.full_load": None,
    "yaml.unsafe_load": None,
    "yaml.load_all": None,
    "ruamel.yaml.YAML": None,
    "pyarrow.deserialize": None,
    "multiprocessing.reduction.ForkingPickler": None,
    "eval": None,
    "exec": None,
    "compile": None,
    "__import__": None,
}
METHODS = frozenset({"__reduce__", "__reduce_ex__", "__setstate__"})
EXPECTED = {
    # A worker process hands its error to its parent; nothing is kept or read.
    Use(file="durastore/errors.py", function="DurastoreError", what="__reduce__"),
    # Refuses to be pickled.
    Use(file="durastore/verify/receipt.py", function="_Spendable", what="__reduce_ex__"),
}


def find_code_readers(root: Path) -> list[Use]:
    """Imports of, and calls into, anything that makes objects of any kind out of bytes."""
    return sorted(use for source in load_sources(root) for use in _uses(source))


def _uses(source: SourceFile) -> Iterator[Use]:
    for node, around in source.walk():
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            names = []
        for name in names:
            if name.partition(".")[0] in MODULES:
                yield source.use(around, f"import {name}")
        if isinstance(node, ast.Call):
            called = source.dotted(node.func) or ""
            full = called.replace("np.", "numpy.", 1) if called.startswith("np.") else called
            if full in CALLS and not _is_harmless(node, CALLS[full]):
                yield source.use(around, full)
        if isinstance(node, ast.FunctionDef) and node.name in METHODS:
            yield source.use(around, node.name)


def _is_harmless(call: ast.Call, rule: tuple[str, bool] | None) -> bool:
    if rule is None:
        return False
    keyword, wanted = rule
    values = [k.value for k in call.keywords if k.arg == keyword]
    return len(values) == 1 and isinstance(values[0], ast.Constant) and values[0].value is wanted


def test_nothing_unpickles() -> None:
    found = [use for use in find_code_readers(REPO) if not use.what.startswith("__")]
    assert found == [], "\n" + "\n".join(map(str, found))


def test_what_is_made_for_pickling_is_known() -> None:
    assert {use for use in find_code_readers(REPO) if use.what.startswith("__")} == EXPECTED


@pytest.mark.parametrize(
    "line, what",
    [
        ("import pickle", "import pickle"),
        ("from pickle import loads as parse_it", "import pickle"),
        ("import torch as t\nt.load('x')", "torch.load"),
        ("import torch\ntorch.load('x', weights_only=False)", "torch.load"),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", "numpy.load"),
        ("from yaml import load\nload('x')", "yaml.load"),
        ("def f(text: str) -> object:\n    return eval(text)", "eval"),
        ("import shelve", "import shelve"),
        ("import marshal as m", "import marshal"),
    ],
)
def test_planted_reader_is_found(line: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "durastore").mkdir()
    (tmp_path / "cli").mkdir()
    (tmp_path / "durastore" / "planted.py").write_text(line + "\n", encoding="utf-8")
    assert what in {use.what for use in find_code_readers(tmp_path)}


def test_safe_forms_are_not_found(tmp_path: Path) -> None:
    (tmp_path / "durastore").mkdir()
    (tmp_path / "cli").mkdir()
    text = (
        "import json, torch\nimport numpy as np\ntorch.load('x', weights_only=True)\nnp.load('x', allow_pickle=False)\n"
    )
    (tmp_path / "durastore" / "sound.py").write_text(text + "json.loads('1')\n", encoding="utf-8")
    assert find_code_readers(tmp_path) == []
