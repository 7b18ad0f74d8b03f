"""The guard mutants still fit the sources: text that moved on would make `make mutants` say less than it claims."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.architecture.source_tree import REPO
from tests.mutants.__main__ import MUTANTS
from tests.mutants.equivalent import EXPLAINED
from tests.mutants.mutant import Mutant
from tests.mutants.sweep import SWEPT
from tests.mutants.syntax import find_changes


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_changes_exactly_one_place_and_names_tests_that_exist(mutant: Mutant) -> None:
    text = (REPO / mutant.file).read_text(encoding="utf-8")
    changed = mutant.apply(text)
    assert ast.dump(ast.parse(changed)) != _dumped(text)
    for test in mutant.tests:
        file, _, function = test.partition("::")
        names = _functions_in(file)
        assert not function or function in names, test


@cache
def _dumped(text: str) -> str:
    return ast.dump(ast.parse(text))


@cache
def _functions_in(file: str) -> frozenset[str]:
    found = ast.parse((REPO / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(found) if isinstance(node, ast.FunctionDef))


def test_names_are_unique() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


def test_text_that_is_not_there_once_is_refused() -> None:
    for before in ("not in the file", "e"):
        mutant = Mutant(name="m", clause="c", file="f", before=before, after="", tests=())
        with pytest.raises(ValueError, match="times in f"):
            mutant.apply("else: else")


def test_every_explained_survivor_is_still_made() -> None:
    made = {
        f"{path.relative_to(REPO).as_posix()} | {change.key}"
        for folder in SWEPT
        for path in (REPO / folder).glob("*.py")
        for change in find_changes(path.read_text(encoding="utf-8"))
    }
    assert set(EXPLAINED) <= made
    assert all(EXPLAINED.values())


def test_changes_are_small_and_all_different() -> None:
    source = """\
def f(a: int = 3) -> int:
    if a < 2 and not a:
        raise ValueError('no')
    g(a)
    return a + 1
"""
    found = find_changes(source)
    assert len({change.text for change in found}) == len(found)
    assert sorted(f"{change.before} -> {change.after}".strip() for change in found) == [
        "+ -> -",
        "1 -> 2",
        "2 -> 3",
        "< -> <=",
        "< -> >=",
        "and -> or",
        "g(a) -> pass",
        "not ->",
        "raise ValueError('no') -> pass",
        "return a + 1 -> return None",
    ]


def test_the_document_lists_every_guard_mutant() -> None:
    text = (REPO / "docs" / "testing.md").read_text(encoding="utf-8")
    assert [mutant.name for mutant in MUTANTS if f"`{mutant.name}`" not in text] == []
    assert f"{len(MUTANTS)} of {len(MUTANTS)} killed" in text


def test_the_document_explains_every_survivor_of_the_sweep() -> None:
    text = (REPO / "docs" / "testing.md").read_text(encoding="utf-8")
    assert [reason for reason in EXPLAINED.values() if reason not in text] == []
