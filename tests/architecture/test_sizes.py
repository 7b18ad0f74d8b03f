"""Modules, functions and signatures stay small; names say what they mean."""

from __future__ import annotations

from tests.architecture.shapes import find_busy_packages, find_oversized, find_unsaying_names
from tests.architecture.source_tree import REPO

# Signatures that somebody else sets. Each line says who.
FOREIGN_SIGNATURES = {
    ("cli/durastore_cli/options.py", "_Size.convert"): "click.ParamType.convert",
    ("cli/durastore_cli/options.py", "_Share.convert"): "click.ParamType.convert",
    ("cli/durastore_cli/completion.py", "_Path.shell_complete"): "click.ParamType.shell_complete",
    ("durastore/monitor/guard.py", "Guard.__call__"): "ASGI",
    ("durastore/extract/transformers_engine.py", "_output_hook.hook"): "torch forward hook",
    ("durastore/extract/transformers_engine.py", "_input_hook.hook"): "torch forward pre-hook with keywords",
}
# `import durastore` must stay cheap, so its package resolves the heavy names on first use.
LAZY_PACKAGES = {"durastore/__init__.py"}


def test_nothing_is_oversized() -> None:
    found = [use for use in find_oversized(REPO) if (use.file, use.function) not in FOREIGN_SIGNATURES]
    assert found == [], "\n" + "\n".join(map(str, found))


def test_no_exemption_is_left_over() -> None:
    assert {(use.file, use.function) for use in find_oversized(REPO)} >= set(FOREIGN_SIGNATURES)


def test_no_name_says_nothing() -> None:
    assert find_unsaying_names(REPO) == []


def test_packages_only_re_export() -> None:
    assert [use for use in find_busy_packages(REPO) if use.file not in LAZY_PACKAGES] == []
