"""A disk that is full at the n-th step of a process, and a moment later no more.

Counts every system call of `fsio` that can answer ENOSPC and every journal commit, and refuses a chosen stretch of
them: a write after half of it, a commit as SQLite does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat as stat_module
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from durastore.fsio.sys import SYS
from durastore.spool.journal_db import JournalDatabase

__all__ = ["FullPoints", "refuse_to_set_aside", "refuse_to_write"]

_CALLS = ("open", "fsync", "fdatasync", "link", "link_fd", "preallocate")


class FullPoints:
    """Refuses the steps `at` to `at + width - 1` (1 for the first one); none with `at=0`."""

    def __init__(self, at: int = 0, *, width: int = 1, code: int = errno.ENOSPC) -> None:
        self._refused = range(at, at + width) if at else range(0)
        self._code = code
        self._lock = threading.Lock()
        self._doubtful: set[int] = set()
        self.count = 0
        self.refused: list[str] = []
        self.synced_again: list[int] = []
        """Inodes of files that were written or synced once more after a write or sync of them had failed."""

    @contextmanager
    def installed(self) -> Iterator[FullPoints]:
        with pytest.MonkeyPatch.context() as patch:
            for name in _CALLS:
                patch.setattr(SYS, name, self._call(name, getattr(SYS, name)))
            patch.setattr(SYS, "writev", self._writev(SYS.writev))
            patch.setattr(JournalDatabase, "writing", self._writing(JournalDatabase.writing))
            yield self

    def _is_refused(self, name: str) -> bool:
        with self._lock:
            self.count += 1
            is_refused = self.count in self._refused
            if is_refused:
                self.refused.append(name)
            return is_refused

    def _refuse(self) -> OSError:
        return OSError(self._code, os.strerror(self._code))

    def _look_at(self, fd: int, *, is_refused: bool) -> None:
        stat = os.fstat(fd)
        if stat_module.S_ISDIR(stat.st_mode) or not stat.st_nlink:
            return  # each name made in a folder is a change of its own; a file without a name is gone with its number
        if stat.st_ino in self._doubtful:
            self.synced_again.append(stat.st_ino)
        if is_refused:
            self._doubtful.add(stat.st_ino)

    def _call(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            is_refused = self._is_refused(name)
            if name in ("fsync", "fdatasync"):
                self._look_at(args[0], is_refused=is_refused)
            if is_refused:
                raise self._refuse()
            return plain(*args, **kwargs)

        return call

    def _writev(self, plain: Callable[[int, Sequence[Any]], int]) -> Callable[[int, Sequence[Any]], int]:
        def writev(fd: int, buffers: Sequence[Any]) -> int:
            is_refused = self._is_refused("writev")
            self._look_at(fd, is_refused=is_refused)
            if is_refused:
                data = b"".join(bytes(buffer) for buffer in buffers)
                flags = fcntl.fcntl(fd, fcntl.F_GETFL)
                fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)  # half of it is no whole number of blocks
                plain(fd, [data[: len(data) // 2]])
                fcntl.fcntl(fd, fcntl.F_SETFL, flags)
                raise self._refuse()
            return plain(fd, buffers)

        return writev

    def _writing(self, plain: Callable[[JournalDatabase], Any]) -> Callable[[JournalDatabase], Any]:
        @contextmanager
        def writing(database: JournalDatabase) -> Iterator[Any]:
            with plain(database) as connection:
                yield connection
                if self._is_refused("commit"):
                    error = sqlite3.OperationalError("database or disk is full")
                    error.sqlite_errorcode = sqlite3.SQLITE_FULL
                    raise error

        return writing


def refuse_to_set_aside(monkeypatch: pytest.MonkeyPatch, *, times: int, code: int = errno.ENOSPC) -> list[int]:
    """The next links into a quarantine folder fail; returns a list whose one number says how many more will."""
    plain = SYS.link
    left = [times]

    def link(name: str, new_name: str, *, source_fd: int, target_fd: int) -> None:
        if left[0] and os.readlink(f"/proc/self/fd/{target_fd}").endswith("quarantine"):
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        plain(name, new_name, source_fd=source_fd, target_fd=target_fd)

    monkeypatch.setattr(SYS, "link", link)
    return left


def refuse_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next write into a file finds no room; the one after that does."""
    plain = SYS.writev
    is_due = [True]

    def writev(fd: int, buffers: Sequence[Any]) -> int:
        if is_due[0]:
            is_due[0] = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(fd, buffers)

    monkeypatch.setattr(SYS, "writev", writev)
