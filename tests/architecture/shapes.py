"""Finds modules, functions and names that outgrew the project's rules of size and wording."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.architecture.source_tree import SourceFile, Use, load_sources

MODULE_LINES = 400
FUNCTION_LINES = 50
PARAMETERS = 5
POSITIONAL = 2
MODULE_WORDS = frozenset({"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"})
DELETE_WORDS = frozenset(
    {"clean", "cleaned", "cleanup", "delete", "deleted", "deletes", "purge", "purged", "remove", "removed", "removes"}
)
# Their signatures are set by Python (`__exit__`) or counted in decorators, one option each (click).
_FIXED_SIGNATURES = frozenset({"__exit__", "__aexit__", "__get__", "__set__"})
_CLICK = frozenset({"argument", "command", "group", "option"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_oversized(root: Path) -> list[Use]:
    """Modules, functions and signatures over the limit. Nested functions count for themselves and for those around."""
    found = []
    for source in load_sources(root):
        lines = len(source.text.splitlines())
        if lines >= MODULE_LINES:
            found.append(source.use("<module>", f"{lines} lines"))
        methods = _methods(source)
        for node, around in source.walk():
            if isinstance(node, Function):
                name = node.name if around == "<module>" else f"{around}.{node.name}"
                found += [source.use(name, what) for what in _oversized(node, is_method=node in methods)]
    return sorted(found)


def find_unsaying_names(root: Path) -> list[Use]:
    """Modules named for nothing in particular, and names that say delete where only reclaim may."""
    found = []
    for source in load_sources(root):
        for part in Path(source.name).with_suffix("").parts:
            found += [source.use("<module>", word) for word in _split(part) if word in MODULE_WORDS | DELETE_WORDS]
        for node, around in source.walk():
            if isinstance(node, Function | ast.ClassDef):
                found += [source.use(around, node.name) for word in _split(node.name) if word in DELETE_WORDS]
    return sorted(found)


def find_busy_packages(root: Path) -> list[Use]:
    """`__init__.py` files that do more than describe and re-export."""
    found = []
    for source in load_sources(root):
        if not source.name.endswith("/__init__.py"):
            continue
        busy = [statement for statement in source.tree.body if not _is_re_export(statement)]
        found += [source.use("<module>", ast.unparse(statement).splitlines()[0]) for statement in busy]
    return found


def _oversized(node: Function, *, is_method: bool) -> list[str]:
    found = []
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines >= FUNCTION_LINES:
        found.append(f"{lines} lines")
    if node.name in _FIXED_SIGNATURES or any(_is_click(decorator) for decorator in node.decorator_list):
        return found
    positional = len(node.args.posonlyargs) + len(node.args.args) - is_method
    total = positional + len(node.args.kwonlyargs) + bool(node.args.vararg) + bool(node.args.kwarg)
    if positional > POSITIONAL:
        found.append(f"{positional} positional parameters")
    if total > PARAMETERS:
        found.append(f"{total} parameters")
    return found


def _methods(source: SourceFile) -> set[ast.AST]:
    """Functions whose first parameter Python fills in."""
    found: set[ast.AST] = set()
    for owner in ast.walk(source.tree):
        if isinstance(owner, ast.ClassDef):
            found |= {item for item in owner.body if isinstance(item, Function) and not _is_static(item)}
    return found


def _is_static(node: Function) -> bool:
    return any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in node.decorator_list)


def _is_click(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Attribute) and target.attr in _CLICK


def _split(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


def _is_re_export(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id.startswith("__") for target in statement.targets)
    return False
