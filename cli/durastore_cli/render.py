"""Results on stdout: one JSON document, or lines for people.

Duty: printing. Text from data (ids, reasons) is shown with control characters escaped, so that no sample id can steer a
terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

__all__ = ["print_json", "print_json_lines", "print_lines", "shown"]


def print_json(value: Any) -> None:
    """One JSON document, stable in its order of keys."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False, allow_nan=False))


def print_json_lines(values: Iterable[Any]) -> None:
    """One JSON document a line; give them in batches."""
    print_lines(map(_json_line, values))


def _json_line(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if text.isprintable() else json.dumps(value, allow_nan=False)  # escaped as JSON has it


def print_lines(lines: Iterable[str]) -> None:
    """All in one write, because a listing has millions of lines; give them in batches."""
    shown_lines = [shown(line) for line in lines]
    if shown_lines:
        click.echo("\n".join(shown_lines))


def shown(text: str) -> str:
    """The text on one line, with everything unprintable escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
