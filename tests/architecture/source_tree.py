"""Reads the shipped source as syntax trees, so that rules about it can be checked on any copy of the repository."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
SHIPPED = ("durastore", "cli")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Use:
    """Something found at one place: file (relative), qualified name of the function around it, and what it is."""

    file: str
    function: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.function}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceFile:
    """One parsed module. Nobody changes its tree: copies with the same text share it."""

    name: str
    text: str
    tree: ast.Module
    aliases: dict[str, str]
    """Local name -> what it was imported as: `o` -> `os` for `import os as o`."""
    nodes: tuple[tuple[ast.AST, str], ...]

    def walk(self) -> Iterator[tuple[ast.AST, str]]:
        """Every node with the qualified name of the function or class around it (`<module>` outside any)."""
        return iter(self.nodes)

    def use(self, function: str, what: str) -> Use:
        return Use(file=self.name, function=function, what=what)

    def dotted(self, node: ast.AST) -> str | None:
        """`o.path.join` as `os.path.join`; None for anything that is not a plain dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        parts.append(self.aliases.get(node.id, node.id))
        return ".".join(reversed(parts))


@lru_cache(maxsize=4)
def load_sources(root: Path) -> tuple[SourceFile, ...]:
    """Every Python file that is shipped, below `root`. A file that does not parse is an error, never skipped.

    Remembered, so a copy must be complete before it is first looked at.
    """
    paths = [path for folder in SHIPPED for path in sorted((root / folder).rglob("*.py"))]
    found = [_parsed(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in paths]
    if not found:
        raise FileNotFoundError(f"no sources below {root}")
    return tuple(found)


@cache
def _parsed(name: str, text: str) -> SourceFile:
    tree = ast.parse(text, filename=name)
    return SourceFile(name=name, text=text, tree=tree, aliases=_aliases(tree), nodes=_nodes(tree))


def _nodes(tree: ast.Module) -> tuple[tuple[ast.AST, str], ...]:
    """Parents before their children, in the order of the text."""
    found: list[tuple[ast.AST, str]] = []
    left: list[tuple[ast.AST, tuple[str, ...]]] = [(tree, ())]
    while left:
        node, around = left.pop()
        found.append((node, ".".join(around) or "<module>"))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            around = (*around, node.name)
        left.extend((child, around) for child in reversed(list(ast.iter_child_nodes(node))))
    return tuple(found)


def _aliases(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found
