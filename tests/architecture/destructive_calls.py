"""Finds every place in the shipped source that can take away a name or bytes, locally or in a bucket.

The rule, on syntax alone (no type is known, so what cannot be told apart counts):

1. A name that resolves through the imports to one of `FUNCTIONS` (`os.unlink`, `shutil.rmtree`, ...), called or only
   mentioned, also through an alias, `from os import unlink`, `from os import *` or `getattr(os, "unlink")`.
2. An attribute of any object named in `METHODS` (`.unlink`, `.rename`, `.truncate`, `.write_bytes`, ...).
3. `.remove(x)` and `.move(x)` with an argument: a set has `discard`, a list can be rebuilt.
4. `.replace(...)`, unless one of its arguments is a text or bytes literal and there are two or more (`str.replace`).
   `dataclasses.replace` is a plain function and passes.
5. `open`, `io.open`, `os.fdopen` and any `.open` whose mode holds w, a, x or +, or whose mode cannot be read.
6. A subprocess that runs `rm`, `mv` and the like, or a shell.

Remote: anything called delete_object(s), delete_bucket, `.delete`, also as text (`"DeleteObject"`), and the bare HTTP
verb (upper case).
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.architecture.source_tree import SourceFile, Use, load_sources

FUNCTIONS = frozenset(
    {
        "os.O_TRUNC",
        "os.ftruncate",
        "os.popen",
        "os.remove",
        "os.removedirs",
        "os.rename",
        "os.renames",
        "os.replace",
        "os.rmdir",
        "os.system",
        "os.truncate",
        "os.unlink",
        "shutil.copy",
        "shutil.copy2",
        "shutil.copyfile",
        "shutil.copytree",
        "shutil.move",
        "shutil.rmtree",
        "tempfile.NamedTemporaryFile",
        "tempfile.SpooledTemporaryFile",
        "tempfile.TemporaryDirectory",
    }
)
METHODS = frozenset(
    {
        "ftruncate",
        "removedirs",
        "rename",
        "renameat",
        "renameat2",
        "renames",
        "rmdir",
        "rmtree",
        "truncate",
        "unlink",
        "unlinkat",
        "write_bytes",
        "write_text",
    }
)
PROGRAMS = frozenset({"bash", "dd", "find", "mv", "rm", "rmdir", "rsync", "sh", "shred", "truncate", "unlink"})
_MODULES = frozenset({"os", "shutil", "pathlib", "tempfile"})
_MODE = re.compile(r"[rwaxbtU+]{1,4}\Z")
_REMOTE = re.compile(r"(delete|remove)(object|bucket)")
_REMOTE_METHODS = frozenset({"delete", "delete_async", "adelete"})


def find_destructive_calls(root: Path) -> list[Use]:
    """Every local one, sorted; a place that does two things is there twice."""
    return sorted(use for source in load_sources(root) for use in _destructive_in(source))


@cache
def _destructive_in(source: SourceFile) -> tuple[Use, ...]:
    found = ((function, _destructive(source, node)) for node, function in source.walk())
    return tuple(source.use(function, what) for function, what in found if what is not None)


def find_remote_deletes(root: Path) -> list[Use]:
    """Every place that could delete in a bucket. The right answer is: none."""
    return sorted(use for source in load_sources(root) for use in _remote_deletes_in(source))


@cache
def _remote_deletes_in(source: SourceFile) -> tuple[Use, ...]:
    found: list[Use] = []
    documentation = _docstrings(source.tree)
    for node, function in source.walk():
        if node in documentation:
            continue
        found += [source.use(function, word) for word in _words(source, node) if _is_remote_delete(word, node)]
    return tuple(found)


def _destructive(source: SourceFile, node: ast.AST) -> str | None:
    if isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        bad = [name for name in names if name in FUNCTIONS or (name.endswith(".*") and node.module in _MODULES)]
        return f"from {node.module} import {bad[0].rpartition('.')[2]}" if bad else None
    if isinstance(node, ast.Attribute | ast.Name):
        return _mention(source, node)
    if isinstance(node, ast.Call):
        return _call(source, node)
    return None


def _mention(source: SourceFile, node: ast.Attribute | ast.Name) -> str | None:
    dotted = source.dotted(node)
    if dotted in FUNCTIONS:
        return dotted
    if isinstance(node, ast.Attribute) and node.attr in METHODS:
        return dotted or f".{node.attr}"
    return None


def _call(source: SourceFile, node: ast.Call) -> str | None:
    dotted = source.dotted(node.func) or ""
    if isinstance(node.func, ast.Attribute):
        attribute, shown = node.func.attr, dotted or f".{node.func.attr}"
        if attribute in {"remove", "move"} and (node.args or node.keywords) and dotted not in FUNCTIONS:
            return shown
        if attribute == "replace" and dotted not in FUNCTIONS and not _is_text_replace(dotted, node):
            return shown
    if dotted in {"open", "io.open", "os.fdopen", "codecs.open"} or dotted.endswith(".open"):
        return _open(dotted, node)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "open":
        return _open(".open", node)
    if dotted == "getattr":
        return _getattr(source, node)
    if dotted.startswith(("subprocess.", "os.exec", "os.spawn", "os.posix_spawn")):
        return _subprocess(dotted, node)
    return None


def _is_text_replace(dotted: str, node: ast.Call) -> bool:
    if dotted == "dataclasses.replace":
        return True
    has_literal = any(isinstance(arg, ast.Constant) and isinstance(arg.value, str | bytes) for arg in node.args)
    return has_literal and len(node.args) >= 2


def _open(dotted: str, node: ast.Call) -> str | None:
    """Plain functions take the mode second; a method takes it first (`Path.open`) or second (`gzip.open`)."""
    if dotted == "os.open":
        return None  # flags, not a mode: O_TRUNC is found by name
    is_function = dotted in {"open", "io.open", "os.fdopen", "codecs.open"}
    given = [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
    given += node.args[1:2] if is_function else node.args[:2]
    for value in given:
        if not isinstance(value, ast.Constant):
            if is_function or value in [keyword.value for keyword in node.keywords]:
                return f"{dotted}(mode unknown)"
            continue
        if isinstance(value.value, str) and _MODE.match(value.value) and set(value.value) & set("wax+"):
            return f"{dotted}({value.value!r})"
    return None


def _getattr(source: SourceFile, node: ast.Call) -> str | None:
    if len(node.args) < 2:
        return None
    owner, name = source.dotted(node.args[0]), node.args[1]
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        is_bad = name.value in METHODS or f"{owner}.{name.value}" in FUNCTIONS
        return f"getattr({owner}, {name.value!r})" if is_bad else None
    return f"getattr({owner}, name unknown)" if owner in _MODULES else None


def _subprocess(dotted: str, node: ast.Call) -> str | None:
    for keyword in node.keywords:
        if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False):
            return f"{dotted}(shell)"
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.strip():
            program = part.value.split()[0].rpartition("/")[2]
            if program in PROGRAMS:
                return f"{dotted}({program})"
    return None


def _words(source: SourceFile, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Attribute):
        return [source.dotted(node) or f".{node.attr}"]
    if isinstance(node, ast.Name):
        return [source.aliases.get(node.id, node.id)]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.Call) and source.dotted(node.func) == "getattr" and len(node.args) >= 2:
        name = node.args[1]
        return [f"getattr.{name.value}"] if isinstance(name, ast.Constant) and isinstance(name.value, str) else []
    return []


def _is_remote_delete(word: str, node: ast.AST) -> bool:
    squeezed = word.lower().replace("_", "").replace("-", "")
    if _REMOTE.search(squeezed):
        return True
    if isinstance(node, ast.Constant):
        return word == "DELETE"
    return word.rpartition(".")[2] in _REMOTE_METHODS


def _docstrings(tree: ast.Module) -> set[ast.AST]:
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            found.add(body[0].value)
    return found
