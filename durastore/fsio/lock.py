"""Who owns a spool: only the kernel's flock says so, until the owner lets go of it or is gone.

A child that the owner forks has no part in it, and cannot take it away: see `forks`.

A process id in a file is text for people. Must never break or steal a lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

from durastore.errors import DiskFailed
from durastore.fsio.folder import Folder
from durastore.fsio.forks import FORKING, note_holder
from durastore.fsio.publish import write_all
from durastore.fsio.sys import SYS

__all__ = ["FLOCK", "FlockedFile", "holders"]

FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, and a process id that is 0 for locks of open files."""


class FlockedFile:
    """An exclusive flock on a file that stays where it is for ever (removing a lock file would fork the lock)."""

    __slots__ = ("__weakref__", "_fd", "_pid", "path")

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._pid = os.getpid()
        self.path = path
        note_holder(self)

    @classmethod
    def try_lock(cls, folder: Folder, name: str) -> FlockedFile | None:
        """The lock, or None if another open file description holds it. `DiskFailed` where flock does not work."""
        path = folder.path / name
        with FORKING:
            try:
                fd = SYS.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode=0o600, dir_fd=folder.fd)
            except OSError as exc:
                raise DiskFailed(f"opening lock {path}: {exc.strerror}", errno=exc.errno) from exc
            return cls._locked(fd, path, kind=fcntl.LOCK_EX)

    @classmethod
    def try_lock_folder(cls, folder: Folder) -> FlockedFile | None:
        """The lock of the folder itself, for which nothing is written in it; None and `DiskFailed` as `try_lock`."""
        with FORKING, folder.again() as own:
            # the duplicate keeps the lock when `own` is closed: it belongs to the open file
            return cls._locked(os.dup(own.fd), folder.path, kind=fcntl.LOCK_EX)

    @classmethod
    def try_lock_existing(cls, folder: Folder, name: str, *, is_shared: bool = False) -> FlockedFile | None:
        """The lock of a file that is there, opened for reading only. FileNotFoundError; else as `try_lock`."""
        with FORKING:
            fd = folder.open_read(name)
            return cls._locked(fd, folder.path / name, kind=fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)

    @classmethod
    def _locked(cls, fd: int, path: Path, *, kind: int) -> FlockedFile | None:
        """`fd` belongs to the lock, or is closed."""
        is_ours = False
        try:
            is_ours = _flocked(fd, kind, path=path)
        finally:
            if not is_ours:
                SYS.close(fd)
        return cls(fd, path) if is_ours else None

    @property
    def fd(self) -> int:
        """The locked file, open; it belongs to the lock."""
        return self._fd

    @property
    def is_held(self) -> bool:
        """True in the process that took it, until `close`; never in a child forked from it."""
        return self._fd >= 0 and os.getpid() == self._pid

    def note(self, text: str) -> None:
        """Append a line for people (who took the lock, when). Never read back by durastore."""
        os.lseek(self._fd, 0, os.SEEK_END)
        write_all(self._fd, [text.encode()])

    def close(self) -> None:
        """Release. In a forked child only its copy is closed, so the parent keeps its lock. Safe to repeat."""
        with FORKING:
            if self.is_held:
                # Named, not left to the close: a copy that no hook saw (a child on its way to another program, a fork
                # made in C) would keep the lock for as long as it is open. And by its owner alone: it is one for all.
                with suppress(OSError):
                    SYS.flock(self._fd, fcntl.LOCK_UN)
            self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """See `Holder`."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            SYS.close(fd)


def _flocked(fd: int, kind: int, *, path: Path) -> bool:
    try:
        SYS.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as exc:
        if exc.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise DiskFailed(f"locking {path}: {exc.strerror}", errno=exc.errno) from exc
    return True


def holders(path: Path) -> list[int]:
    """Process ids that the kernel names as holders of a flock on `path` (Linux: /proc/locks), sorted.

    Empty if nobody holds it or the file is absent. OSError where the kernel does not tell (not Linux).
    """
    try:
        stat = path.stat()
    except FileNotFoundError:
        return []
    want = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    pids = set()
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == want:
            pids.add(int(fields[4]))
    return sorted(pid for pid in pids if pid > 0)
