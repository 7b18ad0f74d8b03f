"""docs/failure-model.md is true: every test it names exists."""

from __future__ import annotations

import re

from tests.architecture.case_map import find_test
from tests.architecture.source_tree import REPO

TEXT = (REPO / "docs" / "failure-model.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[^`]+)`", TEXT)


def test_every_test_named_exists() -> None:
    assert len(NAMED) > 40
    faults = [
        name for name in NAMED if (find_test(REPO, name) is None if "::" in name else not (REPO / name).is_file())
    ]
    assert faults == []


def test_every_invariant_has_a_test() -> None:
    rows = {line.split("|")[1].strip(): line for line in TEXT.splitlines() if line.startswith("| INV-")}
    assert list(rows) == [f"INV-{number}" for number in range(1, 12)]
    assert all("tests/" in line for line in rows.values())
