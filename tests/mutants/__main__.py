"""`make mutants`: takes each guard of the design out, one at a time, and sees whether a test notices.

Ends with 1 if a mutant survives. Arguments: parts of names; without any, all of them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.adopt_guards import ADOPT
from tests.mutants.disk_guards import DISK
from tests.mutants.doctor_guards import DOCTOR
from tests.mutants.failure_guards import FAILURES
from tests.mutants.foreign_guards import FOREIGN
from tests.mutants.inventory_guards import INVENTORY
from tests.mutants.lease_guards import LEASES
from tests.mutants.migrate_guards import MIGRATE
from tests.mutants.monitor_guards import MONITOR
from tests.mutants.mutant import Mutant
from tests.mutants.proof_guards import PROOF
from tests.mutants.room_guards import ROOM
from tests.mutants.row_guards import ROWS
from tests.mutants.staging_guards import STAGING
from tests.mutants.stop_guards import STOP
from tests.mutants.training_guards import TRAINING
from tests.mutants.way_back_guards import WAY_BACK
from tests.mutants.workbench import Outcome, Workbench

MUTANTS = (
    *PROOF,
    *STOP,
    *DISK,
    *ROWS,
    *ROOM,
    *INVENTORY,
    *FOREIGN,
    *ADOPT,
    *LEASES,
    *FAILURES,
    *MIGRATE,
    *TRAINING,
    *DOCTOR,
    *STAGING,
    *MONITOR,
    *WAY_BACK,
)
_LIMIT_S = 120.0
_ALL_LIMIT_S = 600.0


def main(arguments: Sequence[str]) -> int:
    chosen = [m for m in MUTANTS if not arguments or any(part in m.name for part in arguments)]
    if not chosen:
        _say(f"no mutant is named like {' or '.join(arguments)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="durastore-mutants-") as folder:
        return _run(Workbench(Path(folder)), chosen)


def _run(bench: Workbench, chosen: Sequence[Mutant]) -> int:
    plain = bench.run(sorted({test for m in chosen for test in m.tests}), limit_s=_ALL_LIMIT_S, is_plain=True)
    if plain.is_killed:
        _say(f"without any mutant a test fails already: {plain.by}")
        return 2
    survivors = []
    for mutant in chosen:
        with bench.changed(mutant.file, mutant.apply(bench.text(mutant.file))):
            outcome = bench.run(mutant.tests, limit_s=_LIMIT_S)
        _say(_line(mutant, outcome))
        if not outcome.is_killed:
            survivors.append(mutant.name)
    _say(f"{len(chosen) - len(survivors)} of {len(chosen)} guard mutants killed")
    if survivors:
        _say("SURVIVED: " + ", ".join(survivors))
    return 1 if survivors else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _line(mutant: Mutant, outcome: Outcome) -> str:
    verdict = "killed" if outcome.is_killed else "SURVIVED"
    by = outcome.by.rpartition("/")[2] if outcome.is_killed else ", ".join(mutant.tests)
    return f"{verdict:8} {outcome.seconds:5.1f} s  {mutant.name:34} {mutant.clause:58} {by}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
