"""How many of this user's processes are at the same thing on this machine: a place each, held by a kernel lock.

Duty: take a place, and count the taken ones. A place is one locked byte of an empty file in the user's runtime folder;
the kernel frees it when its holder is gone, however it went (a process id would only be text). A forked child lets go
of its copy. Nothing is ever written into the file. Must never wait for a lock, nor trust a folder that another user
could have put there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat as stat_module
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from durastore.fsio.folder import Folder
from durastore.fsio.forks import FORKING, note_holder
from durastore.fsio.lock import FLOCK
from durastore.fsio.sys import SYS

__all__ = ["Presence", "Standing", "open_runtime_folder"]

_PLACES = 4096
_SHARED_TMP = Path("/tmp")  # noqa: S108 - the folder made in it is checked; $TMPDIR often differs from job to job
_TAKEN = (errno.EAGAIN, errno.EACCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One holder among all."""

    rank: int
    """How many places before the own one are taken, from 0."""
    count: int
    """Places taken, the own one included."""


class Presence:
    """A place taken in the file `name`, until `close` or the end of the process. Not thread-safe."""

    def __init__(self, name: str) -> None:
        """Take one. OSError where that cannot be done: no private folder, no such locks, or no place left."""
        self._name = name
        self._fd = -1
        self._folder: Folder | None = None
        self._place = 0
        with FORKING:
            note_holder(self)
            self._take()

    def look(self) -> Standing:
        """The standing now. Where the file was taken away meanwhile (by whoever tidies /tmp) a place in the new one is
        taken. OSError where that cannot be told.
        """
        if self._fd < 0 or not self._is_current():
            with FORKING:
                self.close()
                self._take()
        others = _taken(self._fd)
        return Standing(rank=sum(place < self._place for place in others), count=len(others) + 1)

    def close(self) -> None:
        """Give the place back. Safe to repeat."""
        with FORKING:
            if self._fd >= 0:
                # named, not left to the close: some other way of forking may have made a copy of the descriptor
                with suppress(OSError):
                    _ofd(self._fd, fcntl.F_UNLCK, start=self._place, length=1)
            self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """In a forked child: close the copies. The parent's lock stays as it is, and ends with the parent."""
        fd, self._fd = self._fd, -1
        folder, self._folder = self._folder, None
        if fd >= 0:
            SYS.close(fd)
        if folder is not None:
            folder.close()

    def _take(self) -> None:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise OSError(errno.ENOSYS, "this system has no locks of open file descriptions")
        folder = open_runtime_folder(os.environ)
        try:
            fd = _open_own(folder, self._name)
        except BaseException:
            folder.close()
            raise
        self._fd, self._folder = fd, folder
        try:
            self._place = _lock_first_free(fd)
        except BaseException:
            self.leave_to_parent()
            raise

    def _is_current(self) -> bool:
        assert self._folder is not None
        held = os.fstat(self._fd)
        try:
            named = os.stat(self._name, dir_fd=self._folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)


def open_runtime_folder(environ: Mapping[str, str]) -> Folder:
    """This user's own folder for what lives no longer than the machine is up: `$XDG_RUNTIME_DIR/durastore`, else
    `/tmp/durastore-<uid>`. OSError where there is none that only this user can change.
    """
    base = environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isabs(base):
        try:
            return _own_child(Path(base), "durastore")
        except OSError:
            pass  # left over from another user's session (su, sudo), or gone with it
    return _own_child(_SHARED_TMP, f"durastore-{os.geteuid()}")


def _own_child(base: Path, name: str) -> Folder:
    with Folder.open(base) as parent:
        around = os.fstat(parent.fd)
        is_shared = bool(around.st_mode & 0o022)
        if around.st_uid not in (0, os.geteuid()) or (is_shared and not around.st_mode & stat_module.S_ISVTX):
            raise PermissionError(errno.EPERM, "another user could change what is in it", str(base))
        child = parent.ensure_child(name)  # refuses a link
    mine = os.fstat(child.fd)
    if mine.st_uid != os.geteuid() or mine.st_mode & 0o077:
        child.close()
        raise PermissionError(errno.EPERM, "it is not this user's alone", str(base / name))
    return child


def _open_own(folder: Folder, name: str) -> int:
    fd = SYS.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, mode=0o600, dir_fd=folder.fd)
    stat = os.fstat(fd)
    if not stat_module.S_ISREG(stat.st_mode) or stat.st_uid != os.geteuid():
        SYS.close(fd)
        raise PermissionError(errno.EPERM, "not a file of this user", str(folder.path / name))
    return fd


def _lock_first_free(fd: int) -> int:
    for place in range(_PLACES):
        try:
            _ofd(fd, fcntl.F_WRLCK, start=place, length=1)
        except OSError as exc:
            if exc.errno not in _TAKEN:
                raise
        else:
            return place
    raise OSError(errno.EUSERS, "every place is taken")


def _ofd(fd: int, kind: int, *, start: int, length: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, start, length, 0))


def _taken(fd: int) -> list[int]:
    """The places that others hold. The kernel names any one lock of a range, so what is left of it is asked for too."""
    found: list[int] = []
    ranges = [(0, _PLACES)]
    while ranges:
        start, end = ranges.pop()
        if start >= end:
            continue
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
        kind, _, at, length, _ = FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            continue
        first, last = max(at, start), end if length == 0 else min(at + length, end)
        found += range(first, last)
        ranges += [(start, first), (last, end)]
    return found
