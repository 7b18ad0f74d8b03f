"""Small changes of a source text, found from its syntax tree.

Operators: comparisons turned round or moved by one, `and`/`or` swapped, `not` dropped, plain conditions negated,
`+`/`-` swapped, numbers raised by one, `True`/`False` swapped, and the statements `raise`, `return`, `break`,
`continue` and calls taken out. Left alone: types, decorators, docstrings, texts of messages, log lines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Change", "find_changes"]

_SWAPS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_TURNS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
}
_SILENT = ("LOGGER.", "super().__init__(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One mutant: in `function`, on the source line `line`, `before` becomes `after`; the `ordinal`-th such place."""

    function: str
    line: str
    before: str
    after: str
    ordinal: int
    text: str
    """The whole mutated module."""

    @property
    def key(self) -> str:
        """Stays the same while other code moves."""
        number = f" #{self.ordinal}" if self.ordinal > 1 else ""
        return f"{self.function} | {self.line} | {self.before} -> {self.after}{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    start: int
    end: int
    after: str


def find_changes(source: str) -> list[Change]:
    """All changes of a module, in the order of the text. Each of them still parses."""
    text = _Text(source)
    seen: dict[tuple[str, str, str, str], int] = {}
    changes = []
    for node, function in _walk(ast.parse(source), ()):
        for edit in text.edits(node):
            line = text.line_of(edit.start)
            kind = (function, line, source[edit.start : edit.end], edit.after)
            seen[kind] = seen.get(kind, 0) + 1
            mutated = source[: edit.start] + edit.after + source[edit.end :]
            ast.parse(mutated)
            before, after = (" ".join(part.split()) for part in kind[2:])
            changes.append(
                Change(
                    function=function,
                    line=line,
                    before=_short(before),
                    after=_short(after),
                    ordinal=seen[kind],
                    text=mutated,
                )
            )
    return changes


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _walk(node: ast.AST, around: tuple[str, ...]) -> Iterator[tuple[ast.AST, str]]:
    """Nodes that decide or act, with the function around them."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        around = (*around, node.name)
    elif around and not isinstance(node, ast.arguments):
        yield node, ".".join(around)
    for child in _inner(node):
        yield from _walk(child, around)


def _inner(node: ast.AST) -> list[ast.AST]:
    """What of a node is mutated: no decorators, types, defaults, docstrings, messages or log lines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
        return [child for child in node.body if not _is_text(child)]
    if isinstance(node, ast.AnnAssign):
        return [node.value] if node.value is not None else []
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.arguments):
        return []
    if _is_silent(node):
        return []
    return list(ast.iter_child_nodes(node))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_silent(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith(_SILENT)


class _Text:
    """Positions of a source, in characters."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def line_of(self, at: int) -> str:
        number = next(n for n, start in enumerate(self._starts[1:]) if at < start)
        return self._lines[number].strip()

    def edits(self, node: ast.AST) -> Iterator[_Edit]:
        match node:
            case ast.Compare(ops=[operator], comparators=[right]):
                for table in (_SWAPS, _TURNS):
                    if type(operator) in table:
                        yield self._between(node.left, right, swap=table[type(operator)])
            case ast.BoolOp(op=operator, values=values):
                swap = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
                for left, right in pairwise(values):
                    yield self._between(left, right, swap=swap)
            case ast.BinOp(op=ast.Add() | ast.Sub() as operator):
                swap = ("+", "-") if isinstance(operator, ast.Add) else ("-", "+")
                yield self._between(node.left, node.right, swap=swap)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield _Edit(start=self._start(node), end=self._start(operand), after="")
            case ast.Constant(value=value) if isinstance(value, int):
                after = str(not value) if isinstance(value, bool) else str(value + 1)
                yield _Edit(start=self._start(node), end=self._end(node), after=after)
            case _:
                yield from self._statement_edits(node)

    def _statement_edits(self, node: ast.AST) -> Iterator[_Edit]:
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                    plain = self._source[self._start(test) : self._end(test)]
                    yield _Edit(start=self._start(test), end=self._end(test), after=f"not ({plain})")
            case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
                yield _Edit(start=self._start(node), end=self._end(node), after="return None")
            case ast.Raise() | ast.Break() | ast.Continue() | ast.Return():
                yield _Edit(start=self._start(node), end=self._end(node), after="pass")
            case ast.Expr(value=ast.Call()) if not _is_silent(node):
                yield _Edit(start=self._start(node), end=self._end(node), after="pass")
            case _:
                return

    def _between(self, left: ast.expr, right: ast.expr, *, swap: tuple[str, str]) -> _Edit:
        """The operator is the only such word between two operands; brackets and line ends may lie there as well."""
        start, end = self._end(left), self._start(right)
        at = self._source.index(swap[0], start, end)
        return _Edit(start=at, end=at + len(swap[0]), after=swap[1])

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._at(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        if node.end_lineno is None or node.end_col_offset is None:
            raise ValueError("a node without an end")
        return self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column_bytes: int) -> int:
        text = self._lines[line - 1].encode()[:column_bytes].decode()
        return self._starts[line - 1] + len(text)
