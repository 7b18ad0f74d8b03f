"""Runs one target: with atheris, guided by coverage, or by plain random mutation where atheris is not installed.

`python -m tests.fuzz.engine TARGET EXECUTIONS [--seed N] [--plain] [--work DIR]` ends with one JSON line. A finding is
written to DIR and ends the run with exit code 1 (plain) or 77 (atheris).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.fuzz.target import CORPUS, FuzzTarget, load_corpus

__all__ = ["Finding", "run_plain"]

HANG_S = 20
LIMIT_MIB = 256
_POOL = 200


class Finding(Exception):
    """An input that made a parser raise what it must not, with the input."""

    def __init__(self, target: str, data: bytes) -> None:
        super().__init__(f"{target}: {data!r}")
        self.data = data


def run_plain(target: FuzzTarget, executions: int, *, seed: int) -> None:
    """`executions` mutated inputs, the same for the same seed. `Finding` from the first one that is a finding."""
    rng = random.Random(seed)
    seeds = load_corpus(target.name)
    mutants: list[bytes] = []
    for data in seeds[:executions]:
        _try(target, data)
    for _ in range(len(seeds), executions):
        pool = mutants if mutants and rng.randrange(2) else seeds
        data, has_structure = target.mutate(rng.choice(pool), rng, others=seeds)
        _try(target, data)
        if has_structure:  # mutants of mutants reach further, but a broken one stays broken
            if len(mutants) < _POOL:
                mutants.append(data)
            else:
                mutants[rng.randrange(_POOL)] = data


def _try(target: FuzzTarget, data: bytes) -> None:
    try:
        target.check(data)
    except Exception as exc:
        raise Finding(target.name, data) from exc


def run_guided(target: FuzzTarget, executions: int, *, seed: int, work: Path) -> None:
    """The same with atheris, which ends the process itself."""
    import atheris

    rng = random.Random(seed)
    seeds = load_corpus(target.name)

    def mutate(data: bytes, max_bytes: int, _: int) -> bytes:
        if rng.randrange(3) == 0:
            return target.mutate(data, rng, others=seeds)[0][:max_bytes]
        changed: bytes = atheris.Mutate(data, max_bytes)
        return changed

    corpus = work / "corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    arguments = [
        sys.argv[0], f"-runs={executions}", f"-max_len={target.max_bytes}", f"-seed={seed}", f"-timeout={HANG_S}",
        f"-rss_limit_mb={LIMIT_MIB}", f"-artifact_prefix={work}/{target.name}-", "-print_final_stats=1", "-verbosity=1",
        "-reload=0", str(corpus), str(CORPUS / target.name),
    ]  # fmt: skip
    atheris.Setup(arguments, target.check, custom_mutator=mutate)
    atheris.Fuzz()


def load_target(name: str, *, is_guided: bool) -> FuzzTarget:
    """The target; with atheris its modules are instrumented, so only its own group is imported."""
    if not is_guided:
        from tests.fuzz.registry import TARGETS

        return TARGETS[name]
    import atheris

    group: tuple[FuzzTarget, ...]
    with atheris.instrument_imports(include=["durastore", "tests.fuzz"]):
        if name in ("segment_row", "failure_row"):
            from tests.fuzz.row_targets import ROW_TARGETS

            group = ROW_TARGETS
        elif name.startswith(("sample_", "pack_", "planes_")):
            from tests.fuzz.codec_targets import CODEC_TARGETS

            group = CODEC_TARGETS
        else:
            from tests.fuzz.text_targets import TEXT_TARGETS

            group = TEXT_TARGETS
    return {target.name: target for target in group}[name]


def _peak_mib() -> int:
    """Of this program alone: `ru_maxrss` still counts the process that started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) >> 10 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("executions", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--work", type=Path, default=Path("build/fuzz"))
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    is_guided = not given.plain and find_spec("atheris") is not None
    target = load_target(given.target, is_guided=is_guided)
    if is_guided:
        run_guided(target, given.executions, seed=given.seed, work=given.work)
        return 0
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    started = time.monotonic()
    try:
        for part in range(-(-given.executions // 1000)):  # the alarm then tells a hang from a long run
            signal.alarm(10 * HANG_S)
            run_plain(target, min(1000, given.executions - 1000 * part), seed=given.seed * 1_000_003 + part)
    except Finding as found:
        artifact = given.work / f"{given.target}-finding-{abs(hash(found.data)):x}"
        artifact.write_bytes(found.data)
        raise
    facts: dict[str, Any] = {
        "executions": given.executions,
        "seconds": round(time.monotonic() - started, 1),
        "peak_rss_mib": _peak_mib(),
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0 if facts["peak_rss_mib"] <= LIMIT_MIB else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
