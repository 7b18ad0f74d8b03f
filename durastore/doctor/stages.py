"""Stages that rest on each other: in which order, and what becomes of one whose ground is gone.

Duty: run each stage once, after all that it needs; turn errors into verdicts. Must never let one stage's error hide
another's verdict, and knows nothing of any stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from durastore.errors import DurastoreError

__all__ = ["Stage", "StageReport", "Status", "Verdict", "run_stages"]

_FINDINGS = 12
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


class Status(Enum):
    """What came of a stage."""

    OK = "ok"
    NOTE = "note"
    """To be known, and no reason not to go on."""
    FAILED = "failed"
    BLOCKED = "blocked"
    """Not looked at: what it would rest on failed."""
    SKIPPED = "skipped"
    """Not asked for, or not possible here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a stage says."""

    status: Status
    summary: str
    """One line."""
    lines: tuple[str, ...] = ()
    """Each thing found, and what to do about it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same as plain JSON values."""
    exit_code: int = 0
    """Of a failed stage."""

    @classmethod
    def of_faults(
        cls, faults: Iterable[str], notes: Iterable[str], *, summary: str, facts: Mapping[str, Any] = _NO_FACTS
    ) -> Verdict:
        """Failed with any fault, else a note with any note, else well."""
        wrong, told = tuple(faults), tuple(notes)
        status = Status.FAILED if wrong else Status.NOTE if told else Status.OK
        code = _FINDINGS if wrong else 0
        return cls(status=status, summary=summary, lines=(*wrong, *told), facts=facts, exit_code=code)

    @classmethod
    def skipped(cls, why: str) -> Verdict:
        return cls(status=Status.SKIPPED, summary=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One look."""

    name: str
    needs: tuple[str, ...]
    """Names of earlier stages."""
    look: Callable[[], Verdict]
    """May raise `DurastoreError`: then it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """A stage and its verdict."""

    name: str
    verdict: Verdict

    @property
    def status(self) -> Status:
        return self.verdict.status

    def facts(self) -> dict[str, Any]:
        """As plain JSON values."""
        verdict = self.verdict
        return {
            "stage": self.name,
            "status": verdict.status.value,
            "summary": verdict.summary,
            "lines": list(verdict.lines),
            **({"facts": dict(verdict.facts)} if verdict.facts else {}),
        }


def run_stages(stages: Iterable[Stage]) -> tuple[StageReport, ...]:
    """Every stage in the order given, each at most once. A stage with a need that failed or was blocked is blocked."""
    reports: dict[str, StageReport] = {}
    for stage in stages:
        missing = [name for name in stage.needs if reports[name].status in (Status.FAILED, Status.BLOCKED)]
        verdict = _blocked(missing) if missing else _looked(stage)
        reports[stage.name] = StageReport(name=stage.name, verdict=verdict)
    return tuple(reports.values())


def _blocked(missing: list[str]) -> Verdict:
    return Verdict(status=Status.BLOCKED, summary=f"not looked at: {', '.join(missing)} first")


def _looked(stage: Stage) -> Verdict:
    try:
        return stage.look()
    except DurastoreError as exc:
        return Verdict(
            status=Status.FAILED,
            summary=exc.message,
            lines=(exc.hint,) if exc.hint else (),
            facts={"error": exc.code},
            exit_code=exc.exit_code or _FINDINGS,
        )
    except OSError as exc:  # a look at a disk or at /proc that did not answer
        what = f"{exc.filename}: " if exc.filename else ""
        return Verdict(status=Status.FAILED, summary=f"{what}{exc.strerror or exc}", exit_code=_FINDINGS)
