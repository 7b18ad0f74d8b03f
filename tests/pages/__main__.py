"""Writes the reference pages: `python -m tests.pages`, or `make reference`."""

from __future__ import annotations

from pathlib import Path

from tests.pages.api_reference import render_api_reference
from tests.pages.cli_reference import render_cli_reference

_ROOT = Path(__file__).parents[2]

if __name__ == "__main__":
    folder = _ROOT / "docs/reference"
    folder.mkdir(exist_ok=True)
    (folder / "cli.md").write_text(render_cli_reference(), encoding="utf-8")
    (folder / "api.md").write_text(render_api_reference(_ROOT), encoding="utf-8")
