"""The runbook knows every error there is."""

from __future__ import annotations

import re

from durastore import errors
from durastore.errors import DurastoreError
from tests.architecture.source_tree import REPO

_TEXT = (REPO / "docs/operations/runbook.md").read_text(encoding="utf-8")


def test_every_error_code_has_a_next_step() -> None:
    table = _TEXT[_TEXT.index("\n## By error code\n") :]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    told = [code for names, _ in rows for code in re.findall(r"`([a-z-]+)`", names)]
    assert all(step.strip() for _, step in rows)
    classes = [getattr(errors, name) for name in errors.__all__]
    assert sorted(told) == sorted(c.code for c in classes if issubclass(c, DurastoreError))
