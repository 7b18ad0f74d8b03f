"""Who may import whom."""

from __future__ import annotations

from tests.architecture.layer_contracts import check_contracts
from tests.architecture.source_tree import REPO


def test_contracts_hold() -> None:
    report = check_contracts(REPO)
    assert report.broken == frozenset(), report.text
    assert len(report.kept) == 5
