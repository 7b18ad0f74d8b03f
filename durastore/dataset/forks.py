"""Whether those who got a copy of this process's memory by a fork are gone. The kernel tells.

Duty: of one fork, know when neither the child nor a child of it can look at that memory any more. Not knowing means
that they may. Must never take a closed descriptor for a process that is gone: a daemon closes all that it has.

A small file is mapped in the moment of the fork, so the child has the mapping like all other memory: until it ends or
runs another program, and whoever it forks has it as well. The parent lets go of its own at once. The kernel refuses to
seal a file against writing while anybody has it mapped for that, so whether it can be sealed is the answer.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref

__all__ = ["Fork"]

_INHERITED: list[mmap.mmap] = []
"""What tells those from which this process was forked that it lives. Kept until it ends."""


class Fork:
    """One fork of this process. Made before it, then told on which side one is. Raises nothing."""

    def __init__(self) -> None:
        self._token: mmap.mmap | None = None
        self._fd: int | None = None
        self._was_over = False
        try:
            fd = os.memfd_create("durastore-fork", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return  # no descriptor left: it may never be said that it is over
        weakref.finalize(self, os.close, fd)
        try:
            os.pwrite(fd, b"\0", mmap.PAGESIZE - 1)
            self._token = mmap.mmap(fd, mmap.PAGESIZE)
        except OSError:
            return
        self._fd = fd

    def begin_in_parent(self) -> None:
        """The fork was made: from here on only others count."""
        if self._token is not None:
            self._token.close()

    def begin_in_child(self) -> None:
        """This is one of those others."""
        if self._token is not None:
            _INHERITED.append(self._token)

    @property
    def is_over(self) -> bool:
        """Whether nobody has the memory of that moment any more but the process that forked. To be asked there only."""
        if not self._was_over and self._fd is not None:
            try:
                fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
            except OSError:
                return False
            self._was_over = True
        return self._was_over
