"""The page cache: what was written is read back from the device, not from memory.

Duty: give and take the kernel's copy of one file, and ask whether there is one. Advice only: a kernel that does not
follow it changes no byte.
"""

from __future__ import annotations

import ctypes
import os
import platform

__all__ = ["drop_cached", "is_uncached", "read_ahead", "read_once"]

_CACHESTAT = 451 if platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64") else None
"""System call of Linux 6.5 and newer. The C library has no name for it."""
_COUNTS = 5


def drop_cached(fd: int) -> None:
    """The next read of these (synced) bytes comes from the device, where the file system has one."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def read_ahead(fd: int) -> None:
    """The whole file will be read soon: begin now, and do not wait for it."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)


def read_once(fd: int) -> None:
    """The file will be read from its beginning to its end."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def is_uncached(fd: int) -> bool:
    """True if the kernel says that no page of the file is in memory. False also where it does not tell.

    On a file system that lies on another one (overlay) it tells of the wrong pages: ask for files of disks only.
    """
    if _CACHESTAT is None:
        return False
    whole, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * _COUNTS)()
    failed = ctypes.CDLL(None).syscall(_CACHESTAT, fd, ctypes.byref(whole), ctypes.byref(found), 0)
    return not failed and found[0] == 0
