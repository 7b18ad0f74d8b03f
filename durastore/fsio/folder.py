"""A directory held open: names inside it are resolved by the kernel from that directory, never from a path again.

Duty: close the gap between looking at a path and acting on it (a mount, a symlink or a renamed parent in between).
Must never follow a symbolic link below the folder it was opened on.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from pathlib import Path
from types import TracebackType

from durastore.errors import SpoolUnreadable
from durastore.fsio.identity import FileIdentity, identity_of
from durastore.fsio.sys import SYS

__all__ = ["Folder"]

_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def _single(name: str) -> str:
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"not a single path segment: {name!r}")
    return name


class Folder:
    """A held directory file descriptor. All names are single segments. Close it, or use it as a context manager."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path
        """Where it was found; for messages only, never used to open anything."""

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Open an existing directory. FileNotFoundError or NotADirectoryError if it is none."""
        return cls(os.open(path, _DIR_FLAGS), path)

    @classmethod
    def create(cls, path: Path) -> Folder:
        """Open `path`, making it (and missing parents) first; each new directory is synced in its parent."""
        missing = []
        probe = path
        while not probe.is_dir():
            missing.append(probe.name)
            if probe.parent == probe:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            probe = probe.parent
        folder = cls.open(probe)
        for name in reversed(missing):
            with folder as parent:
                folder = parent.ensure_child(name)
        folder.path = path
        return folder

    @property
    def fd(self) -> int:
        if self._fd < 0:
            raise ValueError(f"folder {self.path} is closed")
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def again(self) -> Folder:
        """The same directory, held once more; to be closed by itself. What reads names from it needs one of its own:
        the place in a directory belongs to the open file, and of two readers of one each gets a part of the names.
        """
        return Folder(os.open(".", _DIR_FLAGS, dir_fd=self.fd), self.path)

    def child(self, name: str) -> Folder:
        """An existing subdirectory; a symbolic link there is refused (OSError ELOOP/ENOTDIR)."""
        fd = os.open(_single(name), _DIR_FLAGS | os.O_NOFOLLOW, dir_fd=self.fd)
        return Folder(fd, self.path / name)

    def ensure_child(self, name: str) -> Folder:
        """The subdirectory, made and synced into this folder if it is new. Safe to repeat."""
        try:
            SYS.mkdir(_single(name), 0o700, dir_fd=self.fd)
        except FileExistsError:
            pass
        else:
            self.sync()  # else a power cut takes the directory and every acknowledged file in it
        return self.child(name)

    def names(self) -> list[str]:
        """All names in it, sorted. OSError if it cannot be read: never a partial list."""
        with self.again() as own:
            return sorted(os.listdir(own.fd))

    def identity(self, name: str) -> FileIdentity:
        """Identity of the regular file `name`. FileNotFoundError if absent, `SpoolUnreadable` if not a regular file."""
        stat = os.stat(_single(name), dir_fd=self.fd, follow_symlinks=False)
        if not stat_module.S_ISREG(stat.st_mode):
            raise SpoolUnreadable(f"{self.path / name} is not a regular file")
        return identity_of(stat)

    def has(self, name: str) -> bool:
        """True if any directory entry of that name exists. OSError if that cannot be told."""
        try:
            os.stat(_single(name), dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open_read(self, name: str) -> int:
        """A new read-only file descriptor of a regular file; links are refused. The caller closes it."""
        fd = os.open(_single(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self.fd)
        if not stat_module.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise SpoolUnreadable(f"{self.path / name} is not a regular file")
        return fd

    def read_bytes(self, name: str, *, limit_bytes: int) -> bytes:
        """The whole small file; `SpoolUnreadable` if it is larger than `limit_bytes`."""
        fd = self.open_read(name)
        try:
            with open(fd, "rb", closefd=False) as file:
                data = file.read(limit_bytes + 1)
        finally:
            os.close(fd)
        if len(data) > limit_bytes:
            raise SpoolUnreadable(f"{self.path / name} is larger than {limit_bytes} bytes")
        return data

    def sync(self) -> None:
        """fsync of the directory: names made or dropped in it are durable afterwards."""
        SYS.fsync(self.fd)
