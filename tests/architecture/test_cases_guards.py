"""Guards cannot be left out by a slip: a misspelt keyword that is swallowed, or a guard that is no longer called."""

from __future__ import annotations

import ast

from tests.architecture.source_tree import REPO, SourceFile, load_sources

GUARDED = ("durastore/verify/", "durastore/reclaim/", "durastore/fsio/")


def _sources() -> list[SourceFile]:
    return [source for source in load_sources(REPO) if source.name.startswith(GUARDED)]


def _functions(source: SourceFile) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef)]


def test_nothing_on_the_way_to_an_unlink_takes_arguments_it_does_not_name() -> None:
    # case B07
    found = [
        f"{source.name}: {function.name}"
        for source in _sources()
        for function in _functions(source)
        if function.args.kwarg is not None or (function.args.vararg is not None and function.name != "__exit__")
    ]
    assert found == []


def test_every_guard_is_called_on_every_way_to_a_receipt() -> None:
    # case B07: each as a statement of its own, under no condition
    by_name = {source.name: source for source in _sources()}
    guards = {f.name for f in _functions(by_name["durastore/verify/guards.py"]) if f.name.startswith("guard_")}
    assert len(guards) >= 6
    (prove,) = [f for f in _functions(by_name["durastore/verify/verifier.py"]) if f.name == "_prove"]
    called = set()
    for statement in prove.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.Expr) else None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            called.add(value.func.id)
    assert guards <= called, guards - called
    returns = [node for node in ast.walk(prove) if isinstance(node, ast.Return)]
    assert len(returns) == 1
    assert returns[0] is prove.body[-1]
