"""The system calls that change a file, one method each, so that a test can count, fail or kill at any of them.

Duty: be the only place in `fsio` (and for the callers above it) where a mutating syscall is made. Adds no policy.
Must never catch, retry or translate an error.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Sequence

__all__ = ["SYS", "SystemCalls"]

Buffer = bytes | bytearray | memoryview
_RENAME_NOREPLACE = 1


class SystemCalls:
    """Thin, replaceable methods over `os`; every method is one system call."""

    def open(self, name: str, flags: int, *, mode: int, dir_fd: int) -> int:
        return os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=dir_fd)

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        return os.writev(fd, buffers)

    def fsync(self, fd: int) -> None:
        full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: plain fsync does not reach the platter
        if full is None:
            os.fsync(fd)
        else:
            fcntl.fcntl(fd, full)

    def fdatasync(self, fd: int) -> None:
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            self.fsync(fd)

    def syncfs(self, fd: int) -> None:
        """Everything on the file system of `fd`, of whoever, is durable. ENOSYS where the C library has none."""
        call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if call(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def link(self, source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        os.link(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)

    def link_fd(self, fd: int, target: str, *, target_fd: int) -> None:
        """Give an unnamed (O_TMPFILE) inode its first name; fails if the name exists."""
        os.link(f"/proc/self/fd/{fd}", target, dst_dir_fd=target_fd, follow_symlinks=True)

    def unlink(self, name: str, *, dir_fd: int) -> None:
        os.unlink(name, dir_fd=dir_fd)

    def rmdir(self, name: str, *, dir_fd: int) -> None:
        """Fails if the folder holds anything."""
        os.rmdir(name, dir_fd=dir_fd)

    def rename_new(self, source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        """renameat2 with RENAME_NOREPLACE: one step, and nothing is overwritten. ENOSYS where the C library has none,
        EINVAL where the file system cannot.
        """
        call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if call(source_fd, os.fsencode(source), target_fd, os.fsencode(target), _RENAME_NOREPLACE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), source)

    def symlink(self, target: str, name: str, *, dir_fd: int) -> None:
        """Fails if the name exists."""
        os.symlink(target, name, dir_fd=dir_fd)

    def chmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def chown(self, fd: int, *, uid: int, gid: int) -> None:
        os.fchown(fd, uid, gid)

    def set_times(self, fd: int, *, atime_ns: int, mtime_ns: int) -> None:
        os.utime(fd, ns=(atime_ns, mtime_ns))

    def mkdir(self, name: str, mode: int, *, dir_fd: int) -> None:
        os.mkdir(name, mode, dir_fd=dir_fd)

    def preallocate(self, fd: int, size_bytes: int) -> None:
        os.posix_fallocate(fd, 0, size_bytes)

    def flock(self, fd: int, operation: int) -> None:
        fcntl.flock(fd, operation)

    def close(self, fd: int) -> None:
        os.close(fd)


SYS = SystemCalls()
