"""`python -m tests.fuzz.run`: every fuzz target in a process of its own, then mutated Parquet and SQLite files.

Prints executions, seconds and peak memory of each. Ends with exit code 1 if anything was found; what was found lies in
the working directory.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.files import KINDS, FileRun, run_files
from tests.fuzz.target import CORPUS

REPO = Path(__file__).resolve().parents[2]
_EXECUTIONS = re.compile(r'(?:stat::number_of_executed_units: |"executions": )(\d+)')
_COVERAGE = re.compile(r"DONE\s+cov: (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRun:
    """What one target's process did."""

    name: str
    executions: int
    seconds: float
    peak_mib: int
    coverage: str
    is_clean: bool

    def line(self) -> str:
        verdict = "ok" if self.is_clean else "FOUND"
        return (
            f"{self.name:<16} {self.executions:>9} executions {self.seconds:>7.1f} s "
            f"{self.peak_mib:>4} MiB peak  {self.coverage:<9} {verdict}"
        )


def run_target(name: str, executions: int, *, work: Path, seed: int, is_plain: bool) -> TargetRun:
    """Run one target in a process of its own; its output goes to a log in `work`."""
    command = [sys.executable, "-m", "tests.fuzz.engine", name, str(executions), f"--seed={seed}", f"--work={work}"]
    started = time.monotonic()
    with (work / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*command, *(["--plain"] if is_plain else [])], stdout=log, stderr=log, cwd=REPO)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = (work / f"{name}.log").read_text(errors="replace")
    done, covered = _EXECUTIONS.findall(text), _COVERAGE.findall(text)
    return TargetRun(
        name=name,
        executions=int(done[-1]) if done else 0,
        seconds=time.monotonic() - started,
        peak_mib=usage.ru_maxrss >> 10,
        coverage=f"cov {covered[-1]}" if covered else "",
        is_clean=process.returncode == 0 and bool(done),
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=1_000_000, help="of each of our own parsers")
    parser.add_argument("--files", type=int, default=100_000, help="mutated Parquet and SQLite files together")
    parser.add_argument("--target", action="append", help="only this one; may be given again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="random mutation even where atheris is installed")
    parser.add_argument("--work", type=Path, default=REPO / "build" / "fuzz")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    is_plain = given.plain or find_spec("atheris") is None
    _say(f"engine: {'plain random mutation' if is_plain else 'atheris'}, seed {given.seed}")
    all_names = [*sorted(folder.name for folder in CORPUS.iterdir()), *KINDS]
    is_clean = True
    for name in given.target or all_names:
        done: TargetRun | FileRun
        if name in KINDS:
            done = run_files(name, given.files // len(KINDS), work=given.work, seed=given.seed)
        else:
            done = run_target(name, given.executions, work=given.work, seed=given.seed, is_plain=is_plain)
        _say(done.line())
        is_clean = is_clean and done.is_clean
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
