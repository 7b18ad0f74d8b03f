"""How to go on: the command of the last start, where the spool is now.

Duty: the resume stage. What was typed comes back word for word; only `--local` is another where the root moved since.
Must never run anything, and never invent a word that was not typed.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from durastore.doctor.request import Examination
from durastore.doctor.stages import Status, Verdict
from durastore.extract.starts import Start

__all__ = ["look_at_resume", "resumed_command", "shell_line"]

_LOCAL = "--local"
_BY_LAUNCHER = ("RANK", "SLURM_PROCID")


def look_at_resume(seen: Examination) -> Verdict:
    """The command in `facts["command"]`, also where nothing is left to do. A note where no start is on record."""
    start = _start(seen)
    if start is None:
        note = "run your extraction again, with the same bucket and --local: it goes on with what is not done"
        return Verdict.of_faults((), (note,), summary="no start of an extraction is on record here")
    if not start.command:
        note = f"call it again with local={str(seen.request.local.absolute())!r} and bucket={start.bucket!r}"
        return Verdict.of_faults((), (note,), summary="it was started by a program, not by a command")
    root = Path(os.path.realpath(seen.request.local))
    command = resumed_command(start, root=root)
    facts: dict[str, Any] = {
        "command": list(command),
        "folder": start.folder,
        "environment": dict(start.environment),
        "line": shell_line(start, command),
    }
    notes = _notes(start, command, root=root)
    if seen.left == 0:
        return Verdict(status=Status.OK, summary="nothing is left to do", lines=tuple(notes), facts=facts)
    return Verdict.of_faults((), notes, summary="the same command goes on with what is not done", facts=facts)


def _start(seen: Examination) -> Start | None:
    """The last start of the bucket's run, of a command where there is one."""
    fitting = [start for start in seen.starts if seen.run is None or start.run == seen.run.digest.hex]
    typed = [start for start in fitting if start.command]
    return next(iter(typed or fitting), None)


def resumed_command(start: Start, *, root: Path) -> tuple[str, ...]:
    """The words that were typed. `--local` is changed, or added, only where it would lead elsewhere than `root`."""
    words = list(start.command)
    if Path(os.path.realpath(start.local_path)) == root:
        return tuple(words)
    for at, word in enumerate(words):
        if word == _LOCAL and at + 1 < len(words):
            words[at + 1] = str(root)
            return tuple(words)
        if word.startswith(f"{_LOCAL}="):
            words[at] = f"{_LOCAL}={root}"
            return tuple(words)
    return (*words, _LOCAL, str(root))


def shell_line(start: Start, command: Sequence[str]) -> str:
    """One line for a shell, with the directory in which it was typed."""
    return f"cd {shlex.quote(start.folder)} && {shlex.join(command)}"


def _notes(start: Start, command: Sequence[str], *, root: Path) -> list[str]:
    notes = []
    if tuple(command) != start.command:
        notes.append(f"the spool is at {root} now; it was at {start.local_path}")
    missing = {name: value for name, value in start.environment.items() if os.environ.get(name) != value}
    by_launcher = [name for name in _BY_LAUNCHER if name in start.environment]
    if by_launcher:
        notes.append(f"a launcher ({by_launcher[0]}) started it: start it the same way")
    elif missing:
        shown = " ".join(f"{name}={shlex.quote(value)}" for name, value in missing.items())
        notes.append(f"it was started with: {shown}")
    if not Path(start.folder).is_dir():
        notes.append(f"its working directory {start.folder} is gone")
    return notes
