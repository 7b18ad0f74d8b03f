"""How an adoption of old files as samples ended.

Duty: the final report and its exit code. Must never call it done while a file is neither a sample nor named with the
reason why not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from durastore.adopt.loading import Unloaded
from durastore.errors import DurastoreError

__all__ = ["SampleAdoptionReport"]

_PARTLY_DONE = 3
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAdoptionReport:
    """Counts over the folder's files."""

    run: str
    is_dry_run: bool
    files: int
    """All files below the folder, and all else that lies there."""
    adopted: int
    """Put by this call; in a dry run: that would be."""
    adopted_bytes: int
    """Of their files."""
    held: int
    """The run has their sample, made from this input: not read."""
    refused: tuple[Unloaded, ...]
    """Every other file, and why."""
    error: DurastoreError | None = None
    """What ended it early, or kept samples from the bucket."""
    local_only: Sequence[str] = ()

    @property
    def not_attempted(self) -> int:
        return self.files - self.adopted - self.held - len(self.refused)

    @property
    def exit_code(self) -> int:
        """0: every file is a sample in the bucket's manifest. 3: some are not, and are named. Else the error's own."""
        if self.error is not None:
            return self.error.exit_code
        return _PARTLY_DONE if self.refused or self.not_attempted or self.local_only else 0

    def facts(self) -> dict[str, Any]:
        """The report as plain values, all names included."""
        return {
            "run": self.run,
            "dry_run": self.is_dry_run,
            "files": self.files,
            "adopted": self.adopted,
            "adopted_bytes": self.adopted_bytes,
            "held": self.held,
            "refused": [{"path": each.path, "trouble": each.trouble, "reason": each.reason} for each in self.refused],
            "not_attempted": self.not_attempted,
            "local_only": list(self.local_only),
            "error": {"code": self.error.code, "message": self.error.message} if self.error is not None else None,
            "exit_code": self.exit_code,
        }

    def lines(self) -> Iterator[str]:
        """The report for people: a few names."""
        done = "would be adopted" if self.is_dry_run else "adopted"
        yield f"files {self.files}: {done} {self.adopted}, held before {self.held}, not adopted {len(self.refused)}"
        if self.not_attempted:
            yield f"not attempted: {self.not_attempted}"
        yield f"run {self.run}: {self.adopted_bytes} bytes of files"
        for trouble, count in sorted(Counter(each.trouble for each in self.refused).items()):
            yield f"{trouble}: {count}"
            for each in [one for one in self.refused if one.trouble == trouble][:_SHOWN]:
                yield f"    {each.path}: {each.reason}"
            if count > _SHOWN:
                yield f"    ... and {count - _SHOWN} more (--json names all)"
        if self.local_only:
            yield f"only on this machine so far: {len(self.local_only)} samples; the same command goes on"
