"""docs/cases.md is true: every test it names exists and says itself which case it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.case_map import find_test, names_case, parse_rows
from tests.architecture.source_tree import REPO

ROWS = parse_rows((REPO / "docs" / "cases.md").read_text(encoding="utf-8"))


def test_every_row_has_a_test_or_says_what_it_waits_for() -> None:
    assert len(ROWS) >= 110
    assert [row.case for row in ROWS] == sorted({row.case for row in ROWS}, key=lambda case: int(case[1:]))
    assert [row.case for row in ROWS if not row.tests and not row.later] == []


def test_every_test_named_exists_and_names_its_case() -> None:
    faults = []
    for row in ROWS:
        for test_id in row.tests:
            test = find_test(REPO, test_id)
            if test is None:
                faults.append(f"{row.case}: no test {test_id}")
            elif not names_case(test, row.case):
                faults.append(f"{row.case}: not named by {test_id}")
    assert faults == []


@pytest.mark.parametrize(
    "text, is_named",
    [
        ("def test_x() -> None:\n    # case B44\n    pass", True),
        ("def test_b44_x() -> None:\n    pass", True),
        ("K = ['B44']\n\n@mark(K)\ndef test_x() -> None:\n    pass", True),
        ("K = ['B44']\n\ndef test_x() -> None:\n    pass", False),
        ("def test_x() -> None:\n    # case B441\n    pass", False),
        ("# case B44\ndef test_y() -> None:\n    pass", False),
    ],
)
def test_planted_texts_are_told_apart(tmp_path: Path, text: str, is_named: bool) -> None:
    (tmp_path / "test_planted.py").write_text(text)
    found = [find_test(tmp_path, f"test_planted.py::{name}") for name in ("test_x", "test_b44_x")]
    assert any(test is not None and names_case(test, "B44") for test in found) is is_named
    assert find_test(tmp_path, "test_planted.py::test_missing") is None
    assert find_test(tmp_path, "test_absent.py::test_x") is None


def test_a_row_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="neither"):
        parse_rows("| B01 | a kind | tests/x.py::test_y |")
    with pytest.raises(ValueError, match="not a row"):
        parse_rows("| B01 | a kind |")
