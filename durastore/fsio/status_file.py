"""A small file that says every second how things stand, and that may never stand in anybody's way.

Duty: write a record into one of two slots in turn, in place and into blocks that are there already, so that a full disk
does not matter; read both. Does not promise: anything after a power cut (no fsync), or a record for every second. Must
never raise for the disk.
"""

from __future__ import annotations

import os
import stat as stat_module

from durastore.fsio.folder import Folder

__all__ = ["StatusFile", "load_status_bytes"]

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class StatusFile:
    """One process's file. Not thread-safe. Close it."""

    def __init__(self, folder: Folder, name: str, *, slot_bytes: int) -> None:
        """Opens nothing yet. `folder` stays the caller's."""
        self._folder = folder
        self._name = name
        self._slot_bytes = slot_bytes
        self._fd = -1
        self._turn = 0

    def write(self, slot: bytes) -> bool:
        """Put it in the place of the older of the last two. False if the disk did not take it, whatever the reason.

        A reader that comes in between finds a torn slot by its digest, and the other one whole.
        """
        if len(slot) > self._slot_bytes:
            return False
        try:
            if self._fd < 0:
                self._fd = self._opened()
            taken = os.pwrite(self._fd, slot, self._turn * self._slot_bytes)
        except OSError:
            return False
        self._turn = 1 - self._turn
        return taken == len(slot)

    def _opened(self) -> int:
        """With all its blocks, so that no later write needs one (on a file system that writes in place)."""
        fd = os.open(self._name, _FLAGS, 0o600, dir_fd=self._folder.fd)
        try:
            if not stat_module.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(f"{self._name} is not a regular file")
            if os.fstat(fd).st_size < 2 * self._slot_bytes:
                os.posix_fallocate(fd, 0, 2 * self._slot_bytes)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def close(self) -> None:
        """Safe to repeat."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.close(fd)
            except OSError:
                pass  # nothing rests on it


def load_status_bytes(folder: Folder, name: str, *, slot_bytes: int) -> bytes:
    """Both slots; empty where there is no such file, or it cannot be read."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder.fd)
    except OSError:
        return b""
    try:
        return os.pread(fd, 2 * slot_bytes, 0) if stat_module.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)
