"""The guard mutants still fit the sources: text that moved on would make `make mutants` say less than it claims."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.source_tree import REPO
from tests.mutants.__main__ import MUTANTS
from tests.mutants.mutant import Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_changes_exactly_one_place_and_names_tests_that_exist(mutant: Mutant) -> None:
    text = (REPO / mutant.file).read_text(encoding="utf-8")
    changed = mutant.apply(text)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    for test in mutant.tests:
        file, _, function = test.partition("::")
        found = ast.parse((REPO / file).read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(found) if isinstance(node, ast.FunctionDef)}
        assert not function or function in names, test


def test_names_are_unique() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


def test_text_that_is_not_there_once_is_refused() -> None:
    for before in ("not in the file", "e"):
        mutant = Mutant(name="m", clause="c", file="f", before=before, after="", tests=())
        with pytest.raises(ValueError, match="times in f"):
            mutant.apply("else: else")
