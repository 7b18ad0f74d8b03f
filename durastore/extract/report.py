"""How an extraction ended.

Duty: the final `ExtractReport` and the exit code it stands for. Must never call a run done while an input has no
outcome or a sample is only on this machine.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

from durastore.errors import DurastoreError
from durastore.extract.rows import RowFailure
from durastore.extract.semantic import CheckReport
from durastore.extract.tally import Counts

__all__ = ["ExtractReport", "LeftSpool"]

_PARTLY_DONE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftSpool:
    """A spool on another machine that may hold what its worker did not bring to the bucket. What the manifest lacked of
    it was made again, unless the report says otherwise.
    """

    host: str
    spool: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractReport:
    """Counts over distinct inputs, failures with reasons, and what is not in the bucket yet."""

    run: str
    counts: Counts
    rows: int
    duplicates: int
    """Rows that repeat an earlier row's id and content; not part of `counts.inputs`."""
    failures: tuple[RowFailure, ...]
    """The first thousand."""
    failures_file: str
    elapsed_s: float
    shard: str
    """Which part of the input these are the counts of; `0/1` is all of it."""
    signal: int | None
    error: DurastoreError | None
    """What ended the run early, or kept samples from the bucket."""
    local_only: tuple[str, ...]
    """Samples that are durable on this machine but not in the bucket's manifest."""
    left_behind: tuple[LeftSpool, ...] = ()
    """Spools on other machines that nobody could look into any more."""
    is_abandoned: bool
    """The grace time ended before everything was flushed; threads may still be waiting for the network."""
    checks: CheckReport = field(default_factory=CheckReport)

    @property
    def exit_code(self) -> int:
        """DESIGN 4: 130/143 interrupted, the error's own code, 3 partly done, 0 all inputs are in the bucket."""
        if self.signal is not None:
            return 128 + self.signal
        if self.error is not None:
            return self.error.exit_code
        return _PARTLY_DONE if self.counts.failed or self.counts.left or self.local_only else 0

    def render(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return {
            "run": self.run,
            "rows": self.rows,
            "inputs": self.counts.inputs,
            "ok": self.counts.ok,
            "failed": self.counts.failed,
            "skipped": self.counts.skipped,
            "not_attempted": self.counts.left,
            "duplicates": self.duplicates,
            "tokens": self.counts.tokens,
            "tensor_bytes": self.counts.tensor_bytes,
            "shard": self.shard,
            "elapsed_s": round(self.elapsed_s, 3),
            "interrupted_by": signal.Signals(self.signal).name if self.signal is not None else None,
            "error": {"code": self.error.code, "message": self.error.message} if self.error is not None else None,
            "local_only": list(self.local_only),
            "left_behind": [
                {"host": left.host, "spool": left.spool, "reason": left.reason} for left in self.left_behind
            ],
            "checks": self.checks.render(),
            "failures_file": self.failures_file,
            "failures": [
                {
                    "line": failure.line,
                    "id": str(failure.sample_id) if failure.sample_id is not None else None,
                    "stage": failure.stage,
                    "reason": failure.reason,
                    "attempts": failure.attempts,
                }
                for failure in self.failures
            ],
            "exit_code": self.exit_code,
        }
