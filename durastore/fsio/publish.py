"""All or nothing, no clobber, synced: how a whole new file comes to its final name.

Order: write -> check the length -> fsync -> link to the final name -> fsync the folder. A crash at any point leaves
either no final name or the complete file. The only unlink here drops the temp name that this very call made.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable

from durastore.errors import DiskFailed
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.sys import SYS, Buffer

__all__ = ["TEMP_PREFIX", "publish", "write_all"]

TEMP_PREFIX = ".tmp-"
_IOV_MAX = 512
_NO_TMPFILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}


def write_all(fd: int, chunks: Iterable[Buffer]) -> int:
    """Write every byte of `chunks`; returns how many. Short writes go on where they stopped; OSError passes through."""
    total = 0
    pending: list[memoryview] = []
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        if len(view):
            pending.append(view)
        if len(pending) == _IOV_MAX:
            total += _flush(fd, pending)
    return total + _flush(fd, pending)


def _flush(fd: int, pending: list[memoryview]) -> int:
    total = 0
    while pending:
        written = SYS.writev(fd, pending)
        if written <= 0:
            raise OSError(errno.EIO, "write made no progress")
        total += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]
    return total


def publish(folder: Folder, name: str, *, chunks: Iterable[Buffer], expect_size: int | None = None) -> FileIdentity:
    """Make `name` in `folder` with these bytes, durable when it returns.

    FileExistsError if the name is taken (never overwritten); `DiskFailed` if a byte could not be written or synced, or
    if the length is not `expect_size`. After an error the final name does not exist, or was there before.
    """
    fd, temp = _open_temp(folder)
    try:
        try:
            size_bytes = write_all(fd, chunks)
            if expect_size is not None and size_bytes != expect_size:
                raise DiskFailed(f"{folder.path / name}: {size_bytes} bytes came instead of {expect_size}")
            if os.fstat(fd).st_size != size_bytes:
                raise DiskFailed(f"{folder.path / name}: the file system holds another length than was written")
            SYS.fsync(fd)
            _link(folder, fd, temp=temp, name=name)
        finally:
            if temp is not None:
                SYS.unlink(temp, dir_fd=folder.fd)  # our own temp name; the data keeps the final name, or never had one
        folder.sync()
        identity = identify(fd)
    except FileExistsError:
        raise
    except OSError as exc:
        raise DiskFailed(f"writing {folder.path / name}: {exc.strerror or exc}", errno=exc.errno) from exc
    finally:
        SYS.close(fd)
    return identity


def _open_temp(folder: Folder) -> tuple[int, str | None]:
    """An unnamed inode where the file system can (a crash then leaves nothing), else a temp name."""
    unnamed = getattr(os, "O_TMPFILE", None)
    if unnamed is not None:
        try:
            return SYS.open(".", os.O_RDWR | unnamed, mode=0o600, dir_fd=folder.fd), None
        except OSError as exc:
            if exc.errno not in _NO_TMPFILE:
                raise DiskFailed(f"creating a file in {folder.path}: {exc.strerror}", errno=exc.errno) from exc
    temp = TEMP_PREFIX + secrets.token_hex(8)
    try:
        return SYS.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode=0o600, dir_fd=folder.fd), temp
    except OSError as exc:
        raise DiskFailed(f"creating a file in {folder.path}: {exc.strerror}", errno=exc.errno) from exc


def _link(folder: Folder, fd: int, *, temp: str | None, name: str) -> None:
    if temp is None:
        SYS.link_fd(fd, name, target_fd=folder.fd)
    else:
        SYS.link(temp, name, source_fd=folder.fd, target_fd=folder.fd)
