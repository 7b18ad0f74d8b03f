"""Makes the page of the library's public names from the docstrings, without importing what they live in."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

_HEAD = """# Python interface

The public names of `durastore`, from their docstrings. (Made by `make reference`; a test keeps it equal to the code.)
What is not on this page, or not described in another one, may change in any version
([compatibility](../compatibility.md)).

Shapes and dtypes are kept: what `put` was given is what `get` and a `Dataset` give back, bit for bit. Sizes are in
bytes, times in seconds, `*_ns` are Unix nanoseconds, digests are hex digits of the XXH3-128. Every error that durastore
raises on purpose is a `durastore.DurastoreError`: [all of them](../operations/exit-codes.md). The options are on a
[page of their own](../operations/options.md).

"""

# Heading -> where it is defined. Beside the public names: what their methods give back.
PLACES = {
    "durastore.open": ("durastore/store/opening.py", "open_store"),
    "durastore.Store": ("durastore/store/store.py", "Store"),
    "durastore.Ticket": ("durastore/store/tickets.py", "Ticket"),
    "durastore.Evidence": ("durastore/model.py", "Evidence"),
    "durastore.EvidenceLevel": ("durastore/model.py", "EvidenceLevel"),
    "durastore.Sample": ("durastore/model.py", "Sample"),
    "durastore.Dataset": ("durastore/dataset/dataset.py", "Dataset"),
    "durastore.stacked": ("durastore/dataset/stacked.py", "stacked"),
    "durastore.NodeCache": ("durastore/dataset/cache.py", "NodeCache"),
    "durastore.Artifacts": ("durastore/artifacts/watching.py", "Artifacts"),
    "durastore.DurastoreError": ("durastore/errors.py", "DurastoreError"),
    "StoreStatus, from Store.status": ("durastore/store/status.py", "StoreStatus"),
    "EpochSampler, from Dataset.sampler": ("durastore/dataset/sampler.py", "EpochSampler"),
    "SampleStream, from Dataset.iterable": ("durastore/dataset/stream.py", "SampleStream"),
    "CountedLoader, from counted": ("durastore/dataset/counted.py", "CountedLoader"),
    "PushReport, from Artifacts.push": ("durastore/artifacts/request.py", "PushReport"),
    "PullReport, from Artifacts.pull": ("durastore/artifacts/pulling.py", "PullReport"),
}
# Special methods that are part of the interface; what a block or a loop calls is not told again.
_SPECIAL = ("__init__", "__len__", "__contains__", "__getitem__", "__getitems__", "__iter__")
# Not for callers: what `durastore.open` and a dataset make themselves, and what their loaders call.
_INTERNAL = {
    "durastore.Store": ("__init__",),
    "EpochSampler, from Dataset.sampler": ("begin",),
    "SampleStream, from Dataset.iterable": ("__init__", "stand_at"),
    "CountedLoader, from counted": ("__init__",),
}
_WIDTH = 110


def render_api_reference(root: Path) -> str:
    """The page, of the sources below `root`."""
    parts = [_HEAD]
    for title, (file, name) in PLACES.items():
        tree = ast.parse((root / file).read_text(encoding="utf-8"))
        (node,) = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name]
        parts.append(f"## {title}\n")
        if isinstance(node, ast.FunctionDef):
            parts += _function(node, shown=title.removeprefix("durastore."))
        else:
            parts += _class(node, skipped=_INTERNAL.get(title, ()))
    return "\n".join(parts)


def _class(node: ast.ClassDef, *, skipped: tuple[str, ...]) -> Iterator[str]:
    yield _text(node)
    fields = list(_fields(node))
    if fields:
        yield "| field | type | meaning |\n|---|---|---|"
        yield "".join(f"| `{name}` | `{kind}` | {text} |\n" for name, kind, text in fields)
    for member in node.body:
        if not isinstance(member, ast.FunctionDef) or member.name in skipped:
            continue
        if member.name.startswith("_") and member.name not in _SPECIAL:
            continue
        if member.name in ("__len__", "__contains__", "__iter__") and not ast.get_docstring(member):
            continue
        if member.name == "__init__" and (_is_plain(member) or not ast.get_docstring(member)):
            continue
        is_property = any("property" in ast.unparse(d) for d in member.decorator_list)
        if is_property:
            yield f"### `{node.name}.{member.name}`\n"
            yield f"```python\n{member.name}: {ast.unparse(member.returns) if member.returns else 'Any'}\n```\n"
            yield _text(member)
        else:
            shown = node.name if member.name == "__init__" else member.name
            yield f"### `{node.name}{'' if member.name == '__init__' else '.' + member.name}`\n"
            yield from _function(member, shown=shown)


def _is_plain(node: ast.FunctionDef) -> bool:
    """An initialiser that nobody calls: without parameters of its own."""
    return len(node.args.args) == 1 and not node.args.kwonlyargs and node.args.kwarg is None


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    for at, member in enumerate(node.body):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            name, kind = member.target.id, ast.unparse(member.annotation).replace("|", "\\|")
        elif isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name):
            name, kind = member.targets[0].id, ast.unparse(member.value)
        else:
            continue
        after = node.body[at + 1] if at + 1 < len(node.body) else None
        said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        if not name.startswith("_"):
            yield name, kind, " ".join(inspect.cleandoc(str(said)).split()).replace("|", "\\|")


def _function(node: ast.FunctionDef, *, shown: str) -> Iterator[str]:
    parameters = _parameters(node.args)
    back = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    line = f"{shown}({', '.join(parameters)}){back}"
    if len(line) > _WIDTH:
        line = f"{shown}(\n" + "".join(f"    {p},\n" for p in parameters) + f"){back}"
    yield f"```python\n{line}\n```\n"
    yield _text(node)


def _parameters(arguments: ast.arguments) -> list[str]:
    plain = [a for a in arguments.args if a.arg not in ("self", "cls")]
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
    found = [_parameter(a, d) for a, d in zip(plain, defaults[len(arguments.args) - len(plain) :], strict=True)]
    if arguments.vararg is not None:
        found.append("*" + _parameter(arguments.vararg, None))
    elif arguments.kwonlyargs:
        found.append("*")
    found += [_parameter(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg is not None:
        found.append("**" + _parameter(arguments.kwarg, None))
    return found


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{kind}" + (f" = {ast.unparse(default)}" if default is not None else "")


def _text(node: ast.ClassDef | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").strip() + "\n"
