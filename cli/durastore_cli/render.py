"""Results on stdout: one JSON document, or lines for people.

Duty: printing. Text from data (ids, reasons) is shown with control characters escaped, so that no sample id can steer a
terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

__all__ = ["print_json", "print_lines", "shown"]


def print_json(value: Any) -> None:
    """One JSON document, stable in its order of keys."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False, allow_nan=False))


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(shown(line))


def shown(text: str) -> str:
    """The text on one line, with everything unprintable escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
