"""What the kernel tells of a process: whether it is there, and whether it waits for a disk.

Duty: `/proc`, read only. Not knowing is told as None: another host's or PID namespace's process cannot be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Pulse", "pulse_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """One process, a moment ago."""

    is_there: bool
    disk_wait: str | None
    """Where in the kernel a thread of it waits uninterruptibly; None if none does."""


def pulse_of(pid: int) -> Pulse:
    """Look. Says that it is not there where /proc cannot be read."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        threads = sorted(tasks.iterdir())
    except OSError:
        return Pulse(is_there=False, disk_wait=None)
    for thread in threads:
        try:
            # the name in parentheses may hold anything: the state follows the last one
            state = (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
            if state == "D":
                where = (thread / "wchan").read_text(encoding="ascii", errors="replace").strip("\0\n 0")
                return Pulse(is_there=True, disk_wait=where or "the kernel")
        except (OSError, IndexError):
            continue  # a thread that ended in this moment
    return Pulse(is_there=True, disk_wait=None)
