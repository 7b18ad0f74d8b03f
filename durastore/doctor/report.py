"""What a doctor found, as a table for people and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from durastore.doctor.stages import StageReport, Status

__all__ = ["DoctorReport"]

_RESUME = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All stages, in their order."""

    root: str
    bucket: str
    stages: tuple[StageReport, ...]
    is_applied: bool

    @property
    def exit_code(self) -> int:
        """0 where no stage failed, else that of the first one that did."""
        failed = [stage.verdict.exit_code for stage in self.stages if stage.status is Status.FAILED]
        return failed[0] if failed else 0

    @property
    def resume(self) -> dict[str, Any] | None:
        """The command that goes on; None where it is not safe to, or where none is on record."""
        (stage,) = [stage for stage in self.stages if stage.name == _RESUME]
        facts = stage.verdict.facts
        return dict(facts) if self.exit_code == 0 and "line" in facts else None

    def facts(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "root": self.root,
            "bucket": self.bucket,
            "applied": self.is_applied,
            "stages": [stage.facts() for stage in self.stages],
            "resume": self.resume,
            "exit_code": self.exit_code,
        }

    def lines(self) -> Iterator[str]:
        """The table, each stage with what was found below it; then what to do."""
        yield f"doctor: {self.root} and {self.bucket}"
        width = max(len(stage.name) for stage in self.stages)
        for number, stage in enumerate(self.stages, 1):
            yield f"{number:>2}  {stage.name:<{width}}  {stage.status.value:<7}  {stage.verdict.summary}"
            for line in stage.verdict.lines:
                yield f"{'':<{width + 6}}- {line}"
        yield from self._end()

    def _end(self) -> Iterator[str]:
        failed = [stage.name for stage in self.stages if stage.status is Status.FAILED]
        if failed:
            yield f"not yet safe to go on: {', '.join(failed)}; then the same command again"
        elif self.resume is not None:
            yield "safe to go on:"
            yield f"  {self.resume['line']}"
        else:
            yield "nothing speaks against going on"
