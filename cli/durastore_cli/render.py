"""Results on stdout: one JSON document, or lines for people.

Duty: printing, and forms that several commands share. Text from data (ids, reasons) is shown with control characters
escaped, so that no sample id can steer a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from durastore.reconcile.findings import Finding

__all__ = ["finding_facts", "finding_lines", "print_json", "print_json_lines", "print_lines", "shown", "time_text"]


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


def time_text(time_ns: int) -> str:
    """Unix nanoseconds as ISO 8601 in UTC, whole seconds."""
    return datetime.fromtimestamp(time_ns / 1e9, tz=UTC).isoformat(timespec="seconds")


def finding_facts(finding: Finding) -> dict[str, Any]:
    """A finding as JSON has it."""
    return {
        "kind": finding.kind.value,
        "key": finding.key.text,
        "detail": finding.detail,
        "size_bytes": finding.size_bytes,
    }


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Findings for people, one a line."""
    for finding in findings:
        yield f"{finding.kind.value}: {finding.key}: {finding.detail}"
