"""`make mutation`: every small change of `verify/` and `reclaim/`, and whether a test notices.

Ends with 1 if a mutant survives that `equivalent.py` does not explain, and prints the score. Arguments: parts of file
names; without any, all files. `--quick`: what survives the tests of its own file does not meet the rest of them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.equivalent import EXPLAINED
from tests.mutants.syntax import Change, find_changes
from tests.mutants.workbench import REPO, Workbench

__all__ = ["SWEPT", "main"]

SWEPT = ("durastore/verify", "durastore/reclaim")
_UNIT = "tests/unit/test_"
_ENGINE = (f"{_UNIT}reclaim_engine.py",)
_FOREIGN = (f"{_UNIT}reclaim_foreign.py", f"{_UNIT}reconcile_folder.py")
_ATTEST = (f"{_UNIT}verify_attest.py",)
# The tests of a file first: most mutants end there, at little cost. What survives meets all of the rest.
_FIRST = {
    "attest": _ATTEST,
    "guards": (f"{_UNIT}verify_guards.py",),
    "policy": (f"{_UNIT}verify_policy.py", f"{_UNIT}verify_guards.py"),
    "receipt": (f"{_UNIT}verify_receipt.py",),
    "remote": (f"{_UNIT}verify_remote.py",),
    "verifier": (*_ATTEST, *_ENGINE),
    "plan": (f"{_UNIT}reclaim_plan.py",),
    "foreign": _FOREIGN,
}
_ALL = (
    f"{_UNIT}verify_attest.py",
    f"{_UNIT}verify_guards.py",
    f"{_UNIT}verify_local.py",
    f"{_UNIT}verify_policy.py",
    f"{_UNIT}verify_receipt.py",
    f"{_UNIT}verify_remote.py",
    f"{_UNIT}reclaim_plan.py",
    *_ENGINE,
    *_FOREIGN,
    f"{_UNIT}store_lane_reclaim.py",
    f"{_UNIT}store_probing.py",
    f"{_UNIT}store_settling.py",
    f"{_UNIT}store_stopping.py",
    "tests/architecture/test_receipts.py",
    "tests/faults/test_reclaim_losses.py",
)
_FIRST_LIMIT_S = 90.0
_ALL_LIMIT_S = 300.0


@dataclass(slots=True)
class _Score:
    killed: int = 0
    explained: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.killed + len(self.explained) + len(self.survived)


def main(arguments: Sequence[str]) -> int:
    is_quick = "--quick" in arguments
    arguments = [part for part in arguments if part != "--quick"]
    files = [
        path.relative_to(REPO).as_posix()
        for folder in SWEPT
        for path in sorted((REPO / folder).glob("*.py"))
        if not arguments or any(part in path.as_posix() for part in arguments)
    ]
    score = _Score()
    with tempfile.TemporaryDirectory(prefix="durastore-sweep-") as folder:
        bench = Workbench(Path(folder))
        plain = bench.run(_ALL, limit_s=_ALL_LIMIT_S, is_plain=True)
        if plain.is_killed:
            _say(f"without any mutant a test fails already: {plain.by}")
            return 2
        for file in files:
            for change in find_changes(bench.text(file)):
                _judge(bench, file, change=change, score=score, rest=() if is_quick else _ALL)
    percent = 100 * score.killed / score.total if score.total else 0.0
    _say(f"{score.killed} of {score.total} mutants killed ({percent:.1f} %), {len(score.explained)} explained")
    for key in score.survived:
        _say(f"SURVIVED {key}")
    return 1 if score.survived else 0


def _judge(bench: Workbench, file: str, *, change: Change, score: _Score, rest: Sequence[str]) -> None:
    key = f"{file} | {change.key}"
    first = _FIRST.get(Path(file).stem, _ENGINE)
    with bench.changed(file, change.text):
        outcome = bench.run(first, limit_s=_FIRST_LIMIT_S)
        if not outcome.is_killed and rest and key not in EXPLAINED:
            outcome = bench.run(rest, limit_s=_ALL_LIMIT_S)
    if outcome.is_killed:
        score.killed += 1
    elif key in EXPLAINED:
        score.explained.append(key)
    else:
        score.survived.append(key)
    verdict = "killed" if outcome.is_killed else "explained" if key in EXPLAINED else "SURVIVED"
    _say(f"{verdict:9} {outcome.seconds:5.1f} s  {key}  {outcome.by.rpartition('/')[2]}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
