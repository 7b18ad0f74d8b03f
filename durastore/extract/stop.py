"""Ask the processes that work on a spool root to stop.

Duty: find them by the kernel's own record of who holds a spool's lock, signal exactly these through a pidfd, wait,
tell. Must never find a process by name, never send SIGKILL, and never signal a process that does not hold the lock at
the moment its pidfd is in hand.
"""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import ConfigError, InventoryIncomplete
from durastore.formats.spool_root import LOCK_NAME
from durastore.fsio.lock import holders
from durastore.spool.nearby import locks_in
from durastore.spool.opened import opened_root

__all__ = ["StopOutcome", "StopReport", "StoppedProcess", "stop"]

_EXIT_LOCKED = 11


class StopOutcome(Enum):
    """What became of one process."""

    STOPPED = "stopped"
    STILL_RUNNING = "still-running"
    """It got the signal and was not gone when the waiting ended. It is left alone."""
    REFUSED = "refused"
    """This user may not signal it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedProcess:
    """One holder of a spool's lock."""

    pid: int
    spools: tuple[str, ...]
    outcome: StopOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """All holders that were found. Empty: nobody was working on this root."""

    processes: tuple[StoppedProcess, ...]

    @property
    def next_step(self) -> str | None:
        """What to do about those that are still there; None where there are none."""
        outcomes = {process.outcome for process in self.processes}
        if StopOutcome.STILL_RUNNING in outcomes:
            return (
                "it was asked, and ends once its pass or upload is over: the same command again waits on, --grace N "
                "for longer; it is never killed, and what was put is safe either way"
            )
        if StopOutcome.REFUSED in outcomes:
            return "another user's process: run the command as that user, or as root"
        return None

    @property
    def exit_code(self) -> int:
        """0 if no process holds a spool of the root any more, else 11."""
        return _EXIT_LOCKED if any(p.outcome is not StopOutcome.STOPPED for p in self.processes) else 0


def stop(local_root: Path, grace_s: float = 60.0, *, clock: Clock = SYSTEM_CLOCK) -> StopReport:
    """SIGTERM to every process that holds a spool lock under the root, then wait at most `grace_s` for all of them.

    A process that outlives the grace time is reported, never killed. Raises `StoreMissing` if the root is none,
    `InventoryIncomplete` where the kernel does not tell who holds a lock. Safe to repeat.
    """
    if not hasattr(signal, "pidfd_send_signal") or not hasattr(os, "pidfd_open"):
        raise ConfigError("stopping needs pidfds (Linux 5.3 or newer)", hint="send SIGTERM to the process yourself")
    deadline = clock.monotonic() + grace_s
    found = _find_holders(local_root)
    waiting: dict[int, int] = {}
    outcomes: dict[int, StopOutcome] = {}
    try:
        for pid in sorted(found):
            fd = _signalled(pid, [local_root / name / LOCK_NAME for name in found[pid]])
            if isinstance(fd, StopOutcome):
                outcomes[pid] = fd
            else:
                waiting[pid] = fd
        for pid, fd in waiting.items():
            outcomes[pid] = _awaited(fd, timeout_s=max(0.0, deadline - clock.monotonic()))
    finally:
        for fd in waiting.values():
            os.close(fd)
    return StopReport(
        processes=tuple(StoppedProcess(pid=pid, spools=found[pid], outcome=outcomes[pid]) for pid in sorted(found))
    )


def _find_holders(local_root: Path) -> dict[int, tuple[str, ...]]:
    """Process id -> names of the spools it holds."""
    found: dict[int, tuple[str, ...]] = {}
    try:
        for lock in _locks_of(local_root):
            for pid in holders(lock):
                found[pid] = (*found.get(pid, ()), lock.parent.name)
    except OSError as exc:  # not knowing who works there is not nobody
        hint = "ask as the user that the processes run as, or as root"
        what = f"the holders of the locks in {local_root} cannot be listed: {exc.strerror or exc}"
        raise InventoryIncomplete(what, hint=hint) from exc
    if os.getpid() in found:
        raise ConfigError(f"this process itself holds a spool of {local_root}", hint="close its store instead")
    return found


def _locks_of(local_root: Path) -> list[Path]:
    """Also of a root that lost its marker: somebody may be at work there. `StoreMissing` where it is none."""
    try:
        locks = locks_in(local_root)
    except (FileNotFoundError, NotADirectoryError):
        locks = []
    if not locks:
        with opened_root(local_root):
            pass  # it says what the folder is instead
    return locks


def _signalled(pid: int, locks: list[Path]) -> int | StopOutcome:
    """The pidfd of the process after SIGTERM went to it, or why none did."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return StopOutcome.STOPPED
    # The id may have been reused since the lock was read. With the pidfd in hand it cannot be any more, so a second
    # look that still names this id names this very process.
    try:
        if not any(pid in holders(lock) for lock in locks):
            outcome: StopOutcome | None = StopOutcome.STOPPED
        else:
            outcome = _terminated(fd)
    except OSError:
        os.close(fd)
        raise
    if outcome is None:
        return fd
    os.close(fd)
    return outcome


def _terminated(fd: int) -> StopOutcome | None:
    try:
        signal.pidfd_send_signal(fd, signal.SIGTERM)
    except ProcessLookupError:
        return StopOutcome.STOPPED
    except PermissionError:
        return StopOutcome.REFUSED
    return None


def _awaited(fd: int, *, timeout_s: float) -> StopOutcome:
    """A pidfd becomes readable when its process ends."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return StopOutcome.STOPPED if poller.poll(timeout_s * 1000) else StopOutcome.STILL_RUNNING
