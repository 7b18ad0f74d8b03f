"""All or nothing, no clobber, synced: how a whole new file comes to its final name.

Order: write -> check the length -> fsync -> link to the final name -> fsync the folder. A crash at any point leaves
either no final name or the complete file. The only unlink here drops the temp name that the same `TempFile` made.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable
from types import TracebackType

from durastore.errors import DiskFailed
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.sys import SYS, Buffer

__all__ = ["TEMP_PREFIX", "TempFile", "publish", "write_all"]

TEMP_PREFIX = ".tmp-"
_IOV_MAX = 512
_NO_TMPFILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


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


class TempFile:
    """A new file that has no final name yet. Close it, or use it as a context manager: without a name it is gone then.

    An unnamed inode where the file system can (a crash then leaves nothing), else a temp name in `temps`.
    """

    __slots__ = ("_temp", "_temps", "fd")

    def __init__(self, fd: int, temps: Folder, *, temp: str | None) -> None:
        self.fd = fd
        """Open for reading and writing."""
        self._temps = temps
        self._temp = temp

    @classmethod
    def open(cls, folder: Folder, *, temps: Folder | None = None, flags: int = 0) -> TempFile:
        """In `folder`; `temps` (default: the same) is where a temp name goes. `flags`: more of them for an unnamed
        file. `DiskFailed` if it cannot be made.
        """
        temps = temps or folder
        unnamed = getattr(os, "O_TMPFILE", None)
        if unnamed is not None:
            try:
                return cls(SYS.open(".", os.O_RDWR | unnamed | flags, mode=0o600, dir_fd=folder.fd), temps, temp=None)
            except OSError as exc:
                if exc.errno == errno.EPERM and flags:  # O_NOATIME, on a file system that gives new files away
                    return cls.open(folder, temps=temps)
                if exc.errno not in _NO_TMPFILE:
                    raise _uncreated(folder, exc) from exc
        return cls.named(temps)

    @classmethod
    def named(cls, temps: Folder, *, prefix: str = TEMP_PREFIX) -> TempFile:
        """With a temp name in `temps` in any case. `DiskFailed` if it cannot be made."""
        temp = prefix + secrets.token_hex(8)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            return cls(SYS.open(temp, flags, mode=0o600, dir_fd=temps.fd), temps, temp=temp)
        except OSError as exc:
            raise _uncreated(temps, exc) from exc

    @property
    def temp_name(self) -> str | None:
        """None where the file has no name, or its final one only."""
        return self._temp

    def give_name(self, folder: Folder, name: str) -> None:
        """The final name, durable once `folder` is synced. FileExistsError if it is taken; OSError passes."""
        if self._temp is None:
            SYS.link_fd(self.fd, name, target_fd=folder.fd)
            return
        try:
            SYS.link(self._temp, name, source_fd=self._temps.fd, target_fd=folder.fd)
        except OSError as exc:
            if exc.errno not in _NO_LINKS:
                raise
            SYS.rename_new(self._temp, name, source_fd=self._temps.fd, target_fd=folder.fd)
            self._temp = None  # it is the final name now

    def drop_temp(self) -> None:
        """Drop the temp name, if there is one. The data keep their final name, or never had one. Safe to repeat."""
        if self._temp is not None:
            temp, self._temp = self._temp, None
            SYS.unlink(temp, dir_fd=self._temps.fd)

    def close(self) -> None:
        """Without a final name the data go with it."""
        try:
            self.drop_temp()
        finally:
            SYS.close(self.fd)

    def __enter__(self) -> TempFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _uncreated(folder: Folder, exc: OSError) -> DiskFailed:
    return DiskFailed(f"creating a file in {folder.path}: {exc.strerror}", errno=exc.errno)


def publish(
    folder: Folder,
    name: str,
    *,
    chunks: Iterable[Buffer],
    expect_size: int | None = None,
    write: Callable[[int, Iterable[Buffer]], int] = write_all,
) -> FileIdentity:
    """Make `name` in `folder` with these bytes, durable when it returns. `write`: how they get into the empty file.

    FileExistsError if the name is taken (never overwritten); `DiskFailed` if a byte could not be written or synced, or
    if the length is not `expect_size`. After an error the final name does not exist, or was there before.
    """
    try:
        with TempFile.open(folder) as temp:
            size_bytes = write(temp.fd, chunks)
            if expect_size is not None and size_bytes != expect_size:
                raise DiskFailed(f"{folder.path / name}: {size_bytes} bytes came instead of {expect_size}")
            if os.fstat(temp.fd).st_size != size_bytes:
                raise DiskFailed(f"{folder.path / name}: the file system holds another length than was written")
            SYS.fsync(temp.fd)
            temp.give_name(folder, name)
            temp.drop_temp()
            folder.sync()
            return identify(temp.fd)
    except FileExistsError:
        raise
    except OSError as exc:
        raise DiskFailed(f"writing {folder.path / name}: {exc.strerror or exc}", errno=exc.errno) from exc
