"""A fork server for crash tests: the imports are paid once, every life and every look at its remains is a child.

Run as a program: `python store_life.py BUCKET_PARENT SPOOL_PARENT`. Reads one JSON `Trial` a line, prints one JSON
line for each. What a trial left on disk is dropped before the next one.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import durastore
from durastore.objectstore.directory import DirectoryStore
from durastore.testing.killpoints import KillPoints
from tests.crash.lives import LIVES, TWO_PROCESSES, Living, Place, Tell, Told, examine, without_torch
from tests.crash.unlink_oracle import UnlinkOracle

CHILD_LIMIT_S = 90
RECOVERING = ("put y/1#1", "put big/y#1", "flush", "put y/2#1", "drain", "put y/3#1")
EARLIER = {"siblings": TWO_PROCESSES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One life, killed at step `at` (0: never). With `first_at` an earlier process lived `life`, was killed there, and
    the life that is killed at `at` is the one that recovers.
    """

    life: str
    at: int
    first_at: int = 0

    @property
    def acts(self) -> list[tuple[tuple[str, ...], int]]:
        """Each process: what it does, and the step at which it is killed."""
        if self.first_at:
            return [(LIVES[self.life], self.first_at), (RECOVERING, self.at)]
        before = [(EARLIER[self.life], 0)] if self.life in EARLIER else []
        return [*before, (LIVES[self.life], self.at)]


def in_child(action: Callable[[Tell], None]) -> tuple[list[str], int]:
    """Run `action` in a forked child; the lines it told before it ended, and its wait status. One that does not come to
    its end is ended by SIGALRM.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.alarm(CHILD_LIMIT_S)
        code = 0
        try:
            action(lambda line: (os.write(writer, line.encode() + b"\n"), None)[1])
        except BaseException:  # noqa: BLE001 - told to the parent, which fails the test
            os.write(writer, ("!error " + traceback.format_exc().replace("\n", " | ")).encode() + b"\n")
            code = 9
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        lines = pipe.read().splitlines()
    return lines, os.waitpid(pid, 0)[1]


def watch_unlinks(place: Place, tell: Tell) -> None:
    UnlinkOracle(place.bucket, report=lambda text: tell(f"!unlink {text}")).install()


def live_in_child(place: Place, life: Sequence[str], *, at: int) -> tuple[list[str], int]:
    """One process that lives `life` and is killed at step `at`; what it told, and its wait status."""

    def action(tell: Tell) -> None:
        points = KillPoints(at)
        watch_unlinks(place, tell)
        points.install(objects=DirectoryStore)
        Living(place, tell).live(life)
        tell(f"!steps {points.count}")

    return in_child(action)


def examine_in_child(
    place: Place, lines: Sequence[str], *, life: Sequence[str], is_rebooted: bool = False
) -> dict[str, Any]:
    """The look at what is left, by a process of its own; its findings as `examine` gives them."""

    def action(tell: Tell) -> None:
        watch_unlinks(place, tell)
        tell("!result " + json.dumps(examine(place, Told(tuple(lines)), life, is_rebooted=is_rebooted)))

    looks, status = in_child(action)
    result: dict[str, Any] = {"look_status": status, "lost": {}, "local_bytes": -1}
    result["faults"] = [line for line in (*lines, *looks) if line.startswith(("!unlink", "!error"))]
    result["acknowledged"] = len(Told(tuple(lines)).acknowledged)
    for line in looks:
        if line.startswith("!result "):
            result |= json.loads(line.removeprefix("!result "))
    return result


def run_trial(place: Place, trial: Trial) -> dict[str, Any]:
    """Every process of the trial, then the examination."""
    lines: list[str] = []
    ends: list[int] = []
    for life, at in trial.acts:
        told, status = live_in_child(place, life, at=at)
        lines += told
        ends.append(status)
    whole = [words for life, _ in trial.acts for words in life]
    result = examine_in_child(place, lines, life=whole)
    result["killed"] = os.WIFSIGNALED(ends[-1]) and os.WTERMSIG(ends[-1]) == signal.SIGKILL
    result["faults"] += [f"!ended {status}" for status in ends if status not in (0, signal.SIGKILL)]
    steps = [int(line.split()[1]) for line in lines if line.startswith("!steps")]
    result["steps"] = steps[-1] if steps and not result["killed"] else None
    return {"life": trial.life, "at": trial.at, "first_at": trial.first_at} | result


def import_what_a_life_needs(place: Place) -> None:
    """Live once in a child and import here what it came to import there: no other child pays for it again."""

    def action(tell: Tell) -> None:
        Living(place, lambda _: None).live(LIVES["parts"])
        examine(place, Told(()), ())
        tell(" ".join(sys.modules))

    (names, *errors), status = in_child(action)
    if status:
        raise RuntimeError(f"the rehearsal ended with {status}: {names} {errors}")
    for name in names.split():
        if name not in sys.modules and not name.startswith("_"):
            importlib.import_module(name)


def fresh_place(parents: tuple[Path, Path], name: str) -> Place:
    place = Place(bucket=parents[0] / f"bucket-{name}", spool=parents[1] / f"spool-{name}")
    place.bucket.mkdir()
    return place


def drop_place(place: Place) -> None:
    """A spool has a ballast of 32 MiB: some thousand of them would fill a disk."""
    shutil.rmtree(place.bucket)
    shutil.rmtree(place.spool, ignore_errors=True)


def main() -> None:
    parents = Path(sys.argv[1]), Path(sys.argv[2])
    assert durastore.open is not None  # the lazy names are imported before the first fork
    without_torch()
    rehearsal = fresh_place(parents, "rehearsal")
    import_what_a_life_needs(rehearsal)
    drop_place(rehearsal)
    for number, line in zip(count(), sys.stdin, strict=False):
        place = fresh_place(parents, str(number))
        result = run_trial(place, Trial(**json.loads(line)))
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        drop_place(place)


if __name__ == "__main__":
    main()
