"""A read lease: the kernel's word that nobody has a file open for writing, for as long as it is held.

Duty: take and check the lease of one open file (Linux). Must never take an answer that is missing for a yes: where
leases do not exist, `NotLeased` is raised and the file stays.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from durastore.fsio.folder import Folder
from durastore.fsio.forks import FORKING

__all__ = ["NotLeased", "check_leased", "has_writer", "is_written", "leased", "writers_among"]

_SETLEASE = getattr(fcntl, "F_SETLEASE", None)
_GETLEASE = getattr(fcntl, "F_GETLEASE", None)
_SETSIG = 10  # F_SETSIG; the module fcntl does not name it
_WRITER_ERRNO = 11  # EAGAIN
_AT_ONCE = 32
"""Files that are asked about without a fork in between: some 150 us."""
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class NotLeased(Exception):
    """No lease: a writer has the file open, the file system knows no leases, or it is another user's file."""

    def __init__(self, reason: str, *, is_writer: bool = False) -> None:
        super().__init__(reason)
        self.is_writer = is_writer


@contextmanager
def leased(fd: int) -> Iterator[None]:
    """Hold a read lease on `fd` (opened for reading only). An open for writing waits, for the kernel's break time.

    `NotLeased` where it cannot be had. Look with `check_leased` before what rests on it.
    """
    if _SETLEASE is None or _GETLEASE is None:
        raise NotLeased("this system has no leases")
    try:
        # the kernel tells of a breaker by a signal; SIGIO, which it would send, ends a process that does not handle it
        fcntl.fcntl(fd, _SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, _SETLEASE, fcntl.F_RDLCK)
    except OSError as exc:
        if exc.errno == _WRITER_ERRNO:
            raise NotLeased("it is open for writing", is_writer=True) from exc
        raise NotLeased(f"no lease: {exc.strerror}") from exc
    try:
        yield
    finally:
        with suppress(OSError):  # broken by the kernel meanwhile
            fcntl.fcntl(fd, _SETLEASE, fcntl.F_UNLCK)


def check_leased(fd: int) -> None:
    """`NotLeased` unless the lease still stands: somebody may be waiting to write by now."""
    if _GETLEASE is None or fcntl.fcntl(fd, _GETLEASE) != fcntl.F_RDLCK:
        raise NotLeased("somebody wants to write to it", is_writer=True)


def has_writer(fd: int) -> bool:
    """True if the kernel says that somebody has the file open for writing; False also where it does not tell."""
    return is_written(fd) is True


def is_written(fd: int) -> bool | None:
    """Whether somebody has the file open or mapped for writing; None where the kernel does not tell."""
    if _SETLEASE is None:
        return None
    try:  # as `leased`, without what a context costs: this is asked of every file of a folder
        fcntl.fcntl(fd, _SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, _SETLEASE, fcntl.F_RDLCK)
    except OSError as exc:
        return True if exc.errno == _WRITER_ERRNO else None
    try:
        fcntl.fcntl(fd, _SETLEASE, fcntl.F_UNLCK)
    except OSError:
        pass  # broken by the kernel meanwhile
    return False


def writers_among(folder: Folder, names: Sequence[str]) -> list[str]:
    """Those files right in a held folder that somebody has open or mapped for writing. One that cannot be opened, or
    is a link by now, is not among them.

    Four calls a file, and hardly anything beside them: of a look at a large folder this is the dearest part. Each
    lease ends with the descriptor that it is on, which nobody else has: a child that is forked in between would keep
    it, and whoever writes to the file next would wait for the kernel to break it. A fork waits for a few files.
    """
    if _SETLEASE is None:
        return []
    found: list[str] = []
    for start in range(0, len(names), _AT_ONCE):
        with FORKING:
            _ask_for_writers(folder.fd, names[start : start + _AT_ONCE], found=found)
    return found


def _ask_for_writers(folder_fd: int, names: Sequence[str], *, found: list[str]) -> None:
    assert _SETLEASE is not None
    opened, asked, closed, flags = os.open, fcntl.fcntl, os.close, _READ_FLAGS
    set_lease, urgent, read = _SETLEASE, int(signal.SIGURG), fcntl.F_RDLCK
    for name in names:
        try:
            fd = opened(name, flags, dir_fd=folder_fd)
        except OSError:
            continue
        try:
            asked(fd, _SETSIG, urgent)
            asked(fd, set_lease, read)
        except OSError as exc:
            if exc.errno == _WRITER_ERRNO:
                found.append(name)
        finally:
            closed(fd)
