"""Each `durastore ...` command line of each page is one that the command line takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.source_tree import REPO
from tests.pages.commands import CommandLine, fault_of, find_commands

PAGES = sorted(
    path.relative_to(REPO).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in REPO.glob(pattern)
)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_is_taken(page: str) -> None:
    faults = [(line.text, fault_of(line)) for line in find_commands(REPO / page, page)]
    assert [fault for fault in faults if fault[1] is not None] == []


def test_pages_have_commands() -> None:
    lines = [line for page in PAGES for line in find_commands(REPO / page, page)]
    assert len(lines) > 150
    assert sum(line.is_typed for line in lines) > 25


@pytest.mark.parametrize(
    "text, fault",
    [
        ("durastore reconsile --local d", "no command"),
        ("durastore manifest shew", "no command"),
        ("durastore reconcile --local d --bukket b", "No such option"),
        ("durastore migrate a", "DST is missing"),
        ("durastore migrate a b c", "too many"),
        ("durastore probe --addressing-style odd --bucket b", "cannot be"),
        ("durastore ls --bucket b | head", None),
        ("durastore artifacts ls --bucket b  # all of them", None),
    ],
)
def test_planted_faults_are_found(text: str, fault: str | None, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"text\n\n```sh\n{text}\n```\n", encoding="utf-8")
    (line,) = find_commands(page, "page.md")
    found = fault_of(line)
    assert (found is None) == (fault is None)
    assert fault is None or fault in (found or "")


def test_what_is_in_brackets_counts_too(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = (
        "run `durastore status [--wach] ...` or\n\n```\n$ durastore ls --bucket b\nan answer\n"
        "durastore monitor: a line of the answer\n```\n\n"
        "    durastore drain --local D [--timeout S]\n        [--nothing]\n"
    )
    page.write_text(text, encoding="utf-8")
    lines = list(find_commands(page, "page.md"))
    assert [line.text.split()[1] for line in lines] == ["status", "ls", "drain"]
    assert [fault_of(line) for line in lines] == ["there is no option --wach", None, "there is no option --nothing"]
    assert fault_of(CommandLine(page="p", text="durastore", is_typed=False)) is None
