"""Mutated Parquet and SQLite files, each opened in a forked child under a limit of memory and time.

These formats are read by native libraries, where a fault is a signal and not an exception. `run_files` starts a worker
(`python -m tests.fuzz.file_worker`) that imports what it needs once and forks a child for every few files. Mutation
number n of a seed is always the same file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KINDS", "FileRun", "run_files"]

REPO = Path(__file__).resolve().parents[2]
KINDS = ("parquet_files", "sqlite_files")
_START_S = 60.0
_EACH_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRun:
    """What became of a run over files of one kind."""

    kind: str
    files: int
    accepted: int
    """Files that gave values in spite of their mutation."""
    seconds: float
    peak_mib: int
    grown_mib: int
    """Peak memory over that of the worker before the first file."""
    findings: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def line(self) -> str:
        verdict = "ok" if self.is_clean else f"FOUND {len(self.findings)}"
        return (
            f"{self.kind:<16} {self.files:>9} files      {self.seconds:>7.1f} s {self.peak_mib:>4} MiB peak "
            f"(+{self.grown_mib}), {self.accepted} readable  {verdict}"
        )


def run_files(kind: str, count: int, *, work: Path, seed: int) -> FileRun:
    """Open `count` mutated files of `kind`; what is found is written to `work` and named in the result."""
    command = [sys.executable, "-m", "tests.fuzz.file_worker", kind, str(count), str(seed), str(work)]
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=REPO, capture_output=True, text=True, check=False, timeout=_START_S + _EACH_S * count
    )
    (work / f"{kind}.log").write_text(done.stderr)
    if done.returncode:
        raise RuntimeError(f"the worker for {kind} failed:\n{done.stderr[-4000:]}")
    facts = json.loads(done.stdout)
    return FileRun(
        kind=kind,
        files=count,
        accepted=facts["accepted"],
        seconds=time.monotonic() - started,
        peak_mib=facts["peak_mib"],
        grown_mib=facts["grown_mib"],
        findings=tuple(facts["findings"]),
    )
