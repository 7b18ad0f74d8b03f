"""The growing pack: an append-only file whose acknowledged bytes are on disk.

Promises: `create` makes the name durable before the first byte; after `sync` returned, everything appended is durable.
Does not promise: that a crash leaves no torn tail after the last `sync`. After one failed write or sync the file is
poisoned: page cache and disk may disagree from then on, and a later fsync that succeeds would prove nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from durastore.errors import DiskFailed
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.publish import write_all
from durastore.fsio.sys import SYS, Buffer

__all__ = ["DurableFile"]


class DurableFile:
    """An append-only file of the spool. Not thread-safe: the pack writer's lock covers it."""

    __slots__ = ("_fd", "_folder_path", "_poison", "name", "size")

    def __init__(self, fd: int, folder: Folder, *, name: str) -> None:
        self._fd = fd
        self._folder_path = folder.path
        self._poison: OSError | None = None
        self.name = name
        self.size = 0
        """Bytes appended so far; durable up to the last successful `sync`."""

    @classmethod
    def create(cls, folder: Folder, name: str) -> DurableFile:
        """Create an empty file under its lasting name; file and name are durable when it returns.

        FileExistsError if the name is taken; `DiskFailed` otherwise.
        """
        try:
            fd = SYS.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode=0o600, dir_fd=folder.fd)
        except FileExistsError:
            raise
        except OSError as exc:
            raise DiskFailed(f"creating {folder.path / name}: {exc.strerror}", errno=exc.errno) from exc
        file = cls(fd, folder, name=name)
        try:
            SYS.fsync(fd)
            folder.sync()
        except OSError as exc:
            SYS.close(fd)
            raise DiskFailed(f"syncing {folder.path / name}: {exc.strerror}", errno=exc.errno) from exc
        return file

    def append(self, chunks: Iterable[Buffer]) -> int:
        """Append; returns the offset at which these bytes begin. Durable only after `sync`. `DiskFailed` poisons."""
        self._refuse_poisoned()
        start = self.size
        try:
            self.size += write_all(self._fd, chunks)
        except OSError as exc:
            raise self._fail("appending to", exc) from exc
        return start

    def sync(self) -> None:
        """Make everything appended durable. Never called a second time after it failed once: `DiskFailed` poisons."""
        self._refuse_poisoned()
        try:
            SYS.fdatasync(self._fd)  # carries the new length too: POSIX wants all metadata needed to read the data back
            if os.fstat(self._fd).st_size != self.size:
                raise OSError(5, "the file has another length than was written")
        except OSError as exc:
            raise self._fail("syncing", exc) from exc

    def identity(self) -> FileIdentity:
        return identify(self._fd)

    def close(self) -> None:
        """Close the descriptor; EDQUOT or EIO at close surfaces as `DiskFailed`. Safe to repeat."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            SYS.close(fd)
        except OSError as exc:
            raise self._fail("closing", exc) from exc

    def _refuse_poisoned(self) -> None:
        if self._poison is not None:
            raise DiskFailed(
                f"{self._folder_path / self.name} was abandoned after: {self._poison}", errno=self._poison.errno
            ) from self._poison

    def _fail(self, doing: str, exc: OSError) -> DiskFailed:
        self._poison = exc
        return DiskFailed(f"{doing} {self._folder_path / self.name}: {exc.strerror or exc}", errno=exc.errno)
