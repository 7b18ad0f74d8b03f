"""The site is built, ends at dead links, and needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="pip install 'durastore[docs]'")

from tests.architecture.source_tree import REPO
from tests.pages.site_hooks import mend_links, pages_of

_SHOWN_AS_TEXT = re.compile(r"^\s*(?:- |\* |\d+\. |\||```|#+ )", re.MULTILINE)


def _build(root: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(root / "mkdocs.yml")]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the site is made of, so that a test can plant a mistake in it, and built once."""
    root = tmp_path_factory.mktemp("site")
    for name in ("docs", "examples", "tests/pages"):
        shutil.copytree(REPO / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in {*pages_of(REPO), "mkdocs.yml"}:
        if "/" not in name:
            shutil.copy(REPO / name, root / name)
    done = _build(root)
    assert done.returncode == 0, done.stderr
    return root


def test_no_page_loads_anything_from_elsewhere(copy: Path) -> None:
    pages = sorted((copy / "build/site").rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?:https?:)?//[^\s>]+", text) == []
        assert re.findall(r"<link[^>]*\shref=\"?(?:https?:)?//[^\s>]+", text) == []


def test_lists_and_tables_are_shown_as_such(copy: Path) -> None:
    found = []
    for page in sorted((copy / "build/site").rglob("*.html")):
        for tag in ("p", "li", "td"):
            for text in re.findall(
                rf"<{tag}>((?:(?!</{tag}>).)*)</{tag}>", page.read_text(encoding="utf-8"), re.DOTALL
            ):
                found += [f"{page.name}: {line.group()}" for line in _SHOWN_AS_TEXT.finditer(text)]
    assert found == []


def test_dead_links_and_forgotten_pages_end_the_build(copy: Path) -> None:
    page, forgotten = copy / "docs/security.md", copy / "docs/forgotten.md"
    text = page.read_text(encoding="utf-8")
    dead = (
        "[x](gone.md)",
        "[x](concepts.md#no-such-part)",
        "[x](../gone.py)",
        "![x](gone.svg)",
        "[x](/gone/top)",
    )
    page.write_text(text + "\n\n".join(("", *dead)), encoding="utf-8")
    forgotten.write_text("# Forgotten\n", encoding="utf-8")
    try:
        done = _build(copy)
    finally:
        page.write_text(text, encoding="utf-8")
        forgotten.unlink()
    assert done.returncode != 0
    for said in ("gone.md", "no-such-part", "gone.py", "gone.svg", "/gone/top", "forgotten.md"):
        assert said in done.stderr


def test_links_are_those_of_the_site() -> None:
    def mended(text: str) -> str:
        return mend_links(text, name="docs/operations/extract.md", root=REPO)

    assert mended("[a](../../README.md#use-it)") == "[a](../index.md#use-it)"
    assert mended("[a\nb](probe.md)") == "[a\nb](probe.md)"
    assert mended("[a](../../examples/adopt_folder/README.md)") == "[a](../examples/adopt_folder.md)"
    assert mended("[a](../../Makefile)") == "a (`Makefile` in the repository)"
    assert mended("[a](../../gone.md)") == "[a](../../gone.md)"
    assert mended("`[a](../../Makefile)`\n```\n[a](../../Makefile)\n```\n") == (
        "`[a](../../Makefile)`\n```\n[a](../../Makefile)\n```\n"
    )
    assert mended("text:\n- one\n- two\n") == "text:\n\n- one\n- two\n"
