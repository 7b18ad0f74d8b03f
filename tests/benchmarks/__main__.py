"""`make bench`: comparisons in one run, printed and written to `build/bench.json`. `--quick` takes fewer turns."""

from __future__ import annotations

import argparse
import json
from itertools import chain
from pathlib import Path

from tests.benchmarks.codec import codec_lines
from tests.benchmarks.extraction import extraction_lines
from tests.benchmarks.gpu import gpu_lines, why_no_gpu
from tests.benchmarks.handover import handover_lines
from tests.benchmarks.put import put_lines
from tests.benchmarks.states import hidden_states

BUILD = Path(__file__).parents[2] / "build"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns: about a minute")
    turns = 7 if parser.parse_args().quick else 41
    samples = hidden_states(BUILD / "bench-states.pt")
    lines = []
    model_lines = (handover_lines(samples, turns=turns, work=BUILD), gpu_lines(samples, turns=turns, work=BUILD))
    all_lines = chain(
        codec_lines(samples, turns=turns),
        put_lines(samples, turns=turns, work=BUILD),
        *model_lines,
        extraction_lines(work=BUILD),
    )
    if (reason := why_no_gpu()) is not None:
        print(reason, flush=True)  # noqa: T201 - so that a missing line is not taken for a forgotten one
    for line in all_lines:
        mark = "met" if line.is_met else "MISSED"
        print(  # noqa: T201 - what the command is for
            f"{line.name:44} {line.durastore:10.3f} | {line.peer_name:36} {line.peer:10.3f} {line.unit:13}"
            f" ratio {line.ratio:6.3f} (goal {line.goal}) {mark}",
            flush=True,
        )
        lines.append(line.facts())
    (BUILD / "bench.json").write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
