"""A fork server for kills at system calls: each life is a fresh process under strace, the look at it a forked child.

Run as a program: `python strace_life.py BUCKET_PARENT SPOOL_PARENT`. Reads one JSON `Stop` a line, prints one JSON
line for each. Unlike the counted steps of `store_life`, these are the kernel's: also those that SQLite, the
interpreter and the upload loop make.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.crash.lives import LIVES, Place, without_torch
from tests.crash.store_life import drop_place, examine_in_child, fresh_place, import_what_a_life_needs

SYSCALLS = (
    *("write", "writev", "pwrite64", "pwritev", "fsync", "fdatasync", "ftruncate", "fallocate", "mkdir", "mkdirat"),
    *("link", "linkat", "unlink", "unlinkat", "rename", "renameat", "renameat2", "sendto", "sendmsg"),
)
_LIMIT_S = 90
_LINE = re.compile(r"^(\d+)\s+(\w+)\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The life `life`, killed where one of its threads enters the system call `syscall` for the `at`-th time; at 0 it
    is not killed, and the calls are counted.
    """

    life: str
    syscall: str = ""
    at: int = 0


def run_stop(place: Place, stop: Stop) -> dict[str, Any]:
    """The life under strace, then the examination."""
    acks, trace = place.bucket.with_name(f"{place.bucket.name}-acks"), place.bucket.with_name("trace")
    calls = ["--seccomp-bpf", f"--trace={','.join(SYSCALLS)}"]
    if stop.at:  # without the filter: with it strace injects nothing
        calls = [f"--trace={stop.syscall}", f"--inject={stop.syscall}:signal=SIGKILL:when={stop.at}"]
    life = [str(Path(__file__).with_name("life_process.py")), str(place.bucket), str(place.spool), str(acks)]
    ended = subprocess.run(
        ["strace", "-f", "-qq", "-o", str(trace), *calls, sys.executable, *life, json.dumps(LIVES[stop.life])],
        stderr=subprocess.PIPE,
        timeout=_LIMIT_S,
        check=False,
    )
    lines = acks.read_text().splitlines() if acks.exists() else []
    result = examine_in_child(place, lines, life=LIVES[stop.life])
    if ended.returncode not in (0, -signal.SIGKILL):
        result["faults"].append(f"!ended {ended.returncode} {ended.stderr[-2000:].decode(errors='replace')}")
    result["killed"] = ended.returncode == -signal.SIGKILL
    result["calls"] = count_calls(trace) if not stop.at else {}
    return {"life": stop.life, "syscall": stop.syscall, "at": stop.at} | result


def count_calls(trace: Path) -> dict[str, int]:
    """Per system call the most that one thread made: strace counts for each thread by itself."""
    matches = map(_LINE.match, trace.read_text(errors="replace").splitlines())
    found = Counter((match[1], match[2]) for match in matches if match is not None)
    most: dict[str, int] = {}
    for (_, name), number in found.items():
        most[name] = max(number, most.get(name, 0))
    return most


def main() -> None:
    parents = Path(sys.argv[1]), Path(sys.argv[2])
    without_torch()
    rehearsal = fresh_place(parents, "rehearsal")
    import_what_a_life_needs(rehearsal)
    drop_place(rehearsal)
    for number, line in zip(count(), sys.stdin, strict=False):
        place = fresh_place(parents, str(number))
        sys.stdout.write(json.dumps(run_stop(place, Stop(**json.loads(line)))) + "\n")
        sys.stdout.flush()
        drop_place(place)


if __name__ == "__main__":
    main()
