"""The page cache: what was written is read back from the device, not from memory.

Duty: give and take the kernel's copy of one file. Advice only: a kernel that does not follow it changes no byte.
"""

from __future__ import annotations

import os

__all__ = ["drop_cached", "read_ahead", "read_once"]


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
