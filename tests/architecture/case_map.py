"""Reads docs/cases.md, and finds the tests it names in the source."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Row", "Test", "find_test", "names_case", "parse_rows"]

_ROW = re.compile(r"\| (B\d{2,3}) \| ([^|]+) \| ([^|]+) \|")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of loss and what shows that it is handled."""

    case: str
    kind: str
    tests: tuple[str, ...]
    later: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """A test function with its decorators, and the module's constants that these take their parameters from."""

    name: str
    text: str


def parse_rows(text: str) -> list[Row]:
    """Every row of the table; a line that begins like one and is none is an error."""
    rows = []
    for line in text.splitlines():
        if not line.startswith("| B"):
            continue
        match = _ROW.fullmatch(line)
        if match is None:
            raise ValueError(f"not a row: {line}")
        cells = match[3].split("<br>")
        tests = tuple(cell.strip("`") for cell in cells if cell.startswith("`"))
        later = tuple(cell for cell in cells if cell.startswith("later: "))
        if len(tests) + len(later) != len(cells):
            raise ValueError(f"neither a test nor later: {line}")
        rows.append(Row(case=match[1], kind=match[2], tests=tests, later=later))
    return rows


def find_test(root: Path, test_id: str) -> Test | None:
    """The test of a pytest id (without parameters), or None."""
    file, _, path = test_id.partition("::")
    if not (root / file).is_file():
        return None
    source, tree = _parsed(root / file)
    node: ast.AST = tree
    for name in path.split("::"):
        found = next((each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == name), None)
        if found is None:
            return None
        node = found
    if not isinstance(node, ast.FunctionDef):
        return None
    text = "\n".join(ast.get_source_segment(source, part) or "" for part in [*_constants(tree, node)])
    lines = source.splitlines()
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return Test(name=node.name, text="\n".join([text, *lines[first - 1 : node.end_lineno]]))


def names_case(test: Test, case: str) -> bool:
    """`# case B44`, an id of a parameter, or `test_b44_...`."""
    return re.search(rf"\b{case}\b", test.text) is not None or f"_{case.lower()}_" in test.name


@lru_cache(maxsize=64)
def _parsed(path: Path) -> tuple[str, ast.Module]:
    source = path.read_text(encoding="utf-8")
    return source, ast.parse(source)


def _constants(tree: ast.Module, node: ast.FunctionDef) -> list[ast.Assign]:
    used = {name.id for part in node.decorator_list for name in ast.walk(part) if isinstance(name, ast.Name)}
    return [
        each
        for each in tree.body
        if isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id in used for t in each.targets)
    ]
