"""Who is still there, told by the kernel: one locked byte of a shared file for each process.

Duty: hold byte N of a file locked for as long as this process lives, and ask whether somebody holds another byte. No
file is made per process, so nothing is left behind. A process id would be text: it is reused, and looks dead from
another namespace. Must never take or break another's byte.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from durastore.errors import ConfigError, DiskFailed
from durastore.fsio.forks import FORKING, note_holder
from durastore.fsio.lock import FLOCK

__all__ = ["PresenceFile"]


class PresenceFile:
    """An open file whose bytes stand for processes. A forked child has none of them, and opens its own."""

    def __init__(self, path: Path) -> None:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise ConfigError("several workers need Linux's open-file-description locks", hint="run without --workers")
        self.path = path
        self._pid = os.getpid()
        self._fd = -1
        with FORKING:
            try:
                self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as exc:
                raise DiskFailed(f"opening {path}: {exc.strerror}", errno=exc.errno) from exc
            note_holder(self)

    def hold(self, number: int) -> None:
        """Lock byte `number` until `close` or the end of the process. `ConfigError` if another holds it."""
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))
        except OSError as exc:
            if exc.errno in (errno.EAGAIN, errno.EACCES):
                raise ConfigError(f"byte {number} of {self.path} is held by another process") from exc
            raise DiskFailed(f"locking {self.path}: {exc.strerror}", errno=exc.errno) from exc

    def is_held(self, number: int) -> bool:
        """True if a living process other than this file's holder has the byte locked."""
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        try:
            answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked)
        except OSError as exc:
            raise DiskFailed(f"looking at the locks of {self.path}: {exc.strerror}", errno=exc.errno) from exc
        return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Let go of the bytes. In a forked child only its copy is closed. Safe to repeat."""
        with FORKING:
            if self._fd >= 0 and os.getpid() == self._pid:
                with suppress(OSError):  # named, not left to the close, as in `FlockedFile.close`; 0: to the end
                    fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """See `Holder`."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
