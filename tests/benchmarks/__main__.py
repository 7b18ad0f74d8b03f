"""`make bench`: comparisons in one run, printed and written to `build/bench.json`. `--quick` takes fewer turns.

`--uploads`, `--reading`, `--reconciling`, `--adopting`, `--memory`, `--monitoring` (the page), `--migrating` (as root,
with 20 GB of disk) and `--scale` (`make bench ARGS=--scale`) run alone: minutes each, and the last most of an hour with
15 GB.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.adopting import adopting_lines
from tests.benchmarks.codec import codec_lines
from tests.benchmarks.extraction import extraction_lines
from tests.benchmarks.gpu import gpu_lines, why_no_gpu
from tests.benchmarks.handover import handover_lines
from tests.benchmarks.memory import memory_lines
from tests.benchmarks.migrating import migrating_lines
from tests.benchmarks.monitoring import monitoring_lines, why_no_browser
from tests.benchmarks.pairs import Line
from tests.benchmarks.put import put_lines
from tests.benchmarks.reading import reading_lines
from tests.benchmarks.reconciling import reconciling_lines
from tests.benchmarks.scale import SCALE_PUTS, scale_lines
from tests.benchmarks.states import hidden_states
from tests.benchmarks.telling import telling_line
from tests.benchmarks.upload import upload_lines

BUILD = Path(__file__).parents[2] / "build"
_TURNS = 41


def _lines(turns: int) -> Iterator[Line]:
    if (reason := why_no_gpu()) is not None:
        print(reason, flush=True)  # noqa: T201 - so that a missing line is not taken for a forgotten one
    samples = hidden_states(BUILD / "bench-states.pt")
    yield from codec_lines(samples, turns=turns)
    yield from put_lines(samples, turns=turns, work=BUILD)
    yield from handover_lines(samples, turns=turns, work=BUILD)
    yield from gpu_lines(samples, turns=turns, work=BUILD)
    yield from extraction_lines(work=BUILD)
    is_quick = turns < _TURNS
    yield from upload_lines(BUILD / "bench-states.pt", turns=1 if is_quick else 5, is_quick=is_quick)


def _long_lines(options: argparse.Namespace) -> Iterator[Line]:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if options.uploads:
        hidden_states(BUILD / "bench-states.pt")
        yield from upload_lines(BUILD / "bench-states.pt", turns=5, is_quick=options.quick)
    if options.reading:
        hidden_states(BUILD / "bench-states.pt")
        yield from reading_lines(states=BUILD / "bench-states.pt", turns=1 if options.quick else 3)
    if options.reconciling:
        yield from reconciling_lines(turns=3 if options.quick else 5, work=BUILD)
    if options.adopting:
        yield from adopting_lines(turns=1 if options.quick else 3, work=BUILD)
    if options.migrating:
        yield from migrating_lines(work=BUILD, turns=1 if options.quick else 3)
    if options.monitoring:
        yield telling_line(turns=6001)
    if options.monitoring and (reason := why_no_browser()) is not None:
        print(reason, flush=True)  # noqa: T201 - so that a missing line is not taken for a forgotten one
    elif options.monitoring:
        yield from monitoring_lines(seconds=30.0 if options.quick else 600.0, work=BUILD)
    if options.memory:
        yield from memory_lines(work=BUILD)
    if options.scale:
        yield from scale_lines(puts=SCALE_PUTS, turns=301, work=BUILD)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns: about three minutes")
    parser.add_argument("--uploads", action="store_true", help="only the uploads")
    parser.add_argument("--reading", action="store_true", help="only the loaders: half an hour, 20 GB of disk")
    parser.add_argument("--reconciling", action="store_true", help="only the inventories: about ten minutes")
    parser.add_argument("--adopting", action="store_true", help="only adopting files beside rclone copy and check")
    parser.add_argument("--memory", action="store_true", help="peak memory of a long run beside a short one")
    parser.add_argument("--migrating", action="store_true", help="only a verified migrate beside rsync and cp; as root")
    parser.add_argument("--monitoring", action="store_true", help="the monitor's page, for ten minutes")
    parser.add_argument("--scale", action="store_true", help="a put after five million others")
    options = parser.parse_args()
    alone = ("memory", "scale", "uploads", "reconciling", "adopting", "migrating", "monitoring", "reading")
    is_alone = any(getattr(options, name) for name in alone)
    lines = []
    for line in _long_lines(options) if is_alone else _lines(7 if options.quick else _TURNS):
        mark = {True: f"(goal {line.goal}) met", False: f"(goal {line.goal}) MISSED", None: ""}[line.is_met]
        print(  # noqa: T201 - what the command is for
            f"{line.name:44} {line.durastore:10.3f} | {line.peer_name:36} {line.peer:10.3f} {line.unit:13}"
            f" ratio {line.ratio:6.3f} {mark}",
            flush=True,
        )
        lines.append(line.facts())
    (BUILD / "bench.json").write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
