"""Time for what hypothesis does once it has found something."""

from __future__ import annotations

from pathlib import Path

import pytest

_SHRINKING_S = 380
"""It cuts a failing example down for up to 300 s: a shorter time limit would hide the example behind its own error."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent and "exhaustive" not in item.keywords:
            item.add_marker(pytest.mark.timeout(_SHRINKING_S))
