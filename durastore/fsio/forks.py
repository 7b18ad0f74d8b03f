"""A lock belongs to the process that took it: a forked child closes its copies before it does anything else.

A fork copies every descriptor, and a lock of an open file (flock, F_OFD_SETLK) lasts until its last copy is closed.
A loader's worker would keep a spool locked after the store was closed, or after its process was killed. O_CLOEXEC does
not help: a forked worker runs no other program.

Duty: know who holds a lock here, and have each of them close its copy in a child. Must never unlock there: the lock is
one for all copies, so the owner would work on without it.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import Protocol

__all__ = ["FORKING", "Holder", "note_holder"]


class Holder(Protocol):
    """Holds a lock by an open file."""

    def leave_to_parent(self) -> None:
        """In a forked child: close the copy, and hold nothing. The parent's lock stays as it is."""


FORKING = threading.RLock()
"""No fork while this is held: from opening a file until its holder is noted, and from letting go until it is closed.
The child's copy would have no holder that closes it.
"""
_HELD: weakref.WeakSet[Holder] = weakref.WeakSet()


def note_holder(holder: Holder) -> None:
    """From now on it is told of a fork, in the child. To be called with `FORKING` held. Safe to repeat."""
    _HELD.add(holder)


def _leave_all() -> None:
    for holder in list(_HELD):
        with suppress(OSError):  # closed at a disk that is gone: the other copies are to be closed all the same
            holder.leave_to_parent()
    _HELD.clear()
    with suppress(RuntimeError):  # a program that forks in C and tells Python only afterwards has not acquired it
        FORKING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=FORKING.acquire, after_in_parent=FORKING.release, after_in_child=_leave_all)
