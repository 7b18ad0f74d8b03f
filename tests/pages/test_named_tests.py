"""A test that a page names exists."""

from __future__ import annotations

import re

from tests.architecture.case_map import find_test
from tests.architecture.source_tree import REPO


def test_every_test_that_a_page_names_exists() -> None:
    pages = [*REPO.glob("*.md"), *REPO.glob("docs/**/*.md"), *REPO.glob("examples/**/*.md")]
    named = {
        (page.relative_to(REPO).as_posix(), name)
        for page in pages
        if page.name != "CHANGELOG.md"
        for name in re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 150
    found = (find_test(REPO, name) is not None if "::" in name else (REPO / name).is_file() for _, name in named)
    assert [which for which, is_there in zip(named, found, strict=True) if not is_there] == []
