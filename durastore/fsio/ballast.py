"""A file of zeros that keeps space until a full disk needs it: given back, and later made again.

Duty: hold `size_bytes` of a file system for the records that free it (DESIGN 5). The one unlink here drops only a
regular file of nothing but zeros under the name that this module made (ADR 0006). Must never drop anything else.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
import threading
from contextlib import suppress

from durastore.errors import NO_ROOM, DiskFailed
from durastore.fsio.folder import Folder
from durastore.fsio.space import free_bytes
from durastore.fsio.sys import SYS

__all__ = ["Ballast"]

_BLOCK_BYTES = 1 << 20
_ZEROS = bytes(_BLOCK_BYTES)
_SCARCE_SHARE = 4


class Ballast:
    """Thread-safe. The folder belongs to the caller and has to stay open."""

    def __init__(self, folder: Folder, name: str, *, size_bytes: int) -> None:
        """Nothing is made or dropped yet."""
        self._folder = folder
        self._name = name
        self._lock = threading.Lock()
        self.size_bytes = size_bytes
        self.is_wanted = False
        """True from a release, or from an attempt that found too little space, until it is held again."""

    @property
    def missing_bytes(self) -> int:
        """What has to be free, beyond what is wanted for data, before it can be held again; 0 while it is held."""
        return self.size_bytes + self._scarce_bytes if self.is_wanted else 0

    @property
    def _scarce_bytes(self) -> int:
        return self.size_bytes // _SCARCE_SHARE

    def ensure(self) -> bool:
        """Hold the space, durably. False if the disk has too little; True also where it cannot be held for another
        reason, which then is nothing to wait for. Safe to repeat.
        """
        with self._lock:
            if not self.is_wanted and self._is_whole():
                return True
            try:
                self.is_wanted = free_bytes(self._folder.fd) < self.size_bytes + self._scarce_bytes
                if not self.is_wanted:
                    self._allocate()
            except OSError as exc:
                self.is_wanted = exc.errno in NO_ROOM
                if self.is_wanted:
                    with suppress(OSError):
                        self._drop()  # half of it would hold space and serve nobody
            return not self.is_wanted

    def release(self) -> bool:
        """Give the space back, and want it again; True if something was given back. Safe to repeat.

        `DiskFailed` if the kernel says no, unless for want of room: then what was given back shows a little later.
        """
        with self._lock:
            self.is_wanted = True
            try:
                return self._drop()
            except OSError as exc:
                if exc.errno in NO_ROOM:
                    return False
                raise DiskFailed(
                    f"releasing {self._folder.path / self._name}: {exc.strerror}", errno=exc.errno
                ) from exc

    def release_if_scarce(self) -> bool:
        """Before a record that has to get through: `release` if the disk has hardly anything left."""
        return free_bytes(self._folder.fd) < self._scarce_bytes and self.release()

    def _is_whole(self) -> bool:
        try:
            stat = os.stat(self._name, dir_fd=self._folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return stat.st_size >= self.size_bytes and stat.st_blocks * 512 >= self.size_bytes

    def _allocate(self) -> None:
        """Also what an attempt that was cut short left: allocating twice changes no byte."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        fd = SYS.open(self._name, flags, mode=0o600, dir_fd=self._folder.fd)
        try:
            SYS.preallocate(fd, self.size_bytes)
            SYS.fsync(fd)
            self._folder.sync()
        finally:
            SYS.close(fd)

    def _drop(self) -> bool:
        try:
            fd = os.open(self._name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._folder.fd)
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ELOOP):
                return False
            raise
        try:
            if not _is_all_zeros(fd):
                return False  # somebody put data under this name
            SYS.unlink(self._name, dir_fd=self._folder.fd)
            self._folder.sync()  # only a committed unlink makes the blocks free for others on a journaling file system
        finally:
            os.close(fd)
        return True


def _is_all_zeros(fd: int) -> bool:
    if not stat_module.S_ISREG(os.fstat(fd).st_mode):
        return False
    while block := os.read(fd, _BLOCK_BYTES):
        if block != _ZEROS[: len(block)]:
            return False
    return True
