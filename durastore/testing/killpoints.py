"""Stop a process at its n-th step that touches a disk, for crash tests in forked children.

Duty: count every mutating system call of `fsio`, both sides of every journal commit and both sides of every request
that writes to an object store, and end the process with SIGKILL at a chosen one: before it, or in the middle of a
write. Must never be installed in one that is to live on.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from durastore.fsio.sys import SYS, Buffer
from durastore.spool.journal_db import JournalDatabase

__all__ = ["KillPoints"]

_COUNTED = (
    "open",
    "fsync",
    "fdatasync",
    "syncfs",
    "link",
    "link_fd",
    "symlink",
    "rename_new",
    "unlink",
    "rmdir",
    "mkdir",
    "preallocate",
)
_SENDING = ("put", "create_upload", "upload_part", "complete_upload")


class KillPoints:
    """Counts steps from `install` on; kills this process at step `at` (1 for the first), or never with `at=0`."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._lock = threading.Lock()
        self.count = 0
        self.trace: list[str] = []

    def install(self, *, objects: type | None = None) -> None:
        """Replace the system calls, the journal's transaction and the writing requests of the store class `objects` in
        this process, for good.
        """
        for name in _COUNTED:
            setattr(SYS, name, self._before(name, getattr(SYS, name)))
        vars(SYS)["writev"] = self._torn_writev(SYS.writev)
        plain = JournalDatabase.writing

        @contextmanager
        def writing(database: JournalDatabase) -> Iterator[Any]:
            with plain(database) as connection:
                yield connection
                self.step("commit")
            self.step("committed")

        setattr(JournalDatabase, "writing", writing)  # noqa: B010 - mypy refuses a plain assignment to a method
        for name in _SENDING if objects is not None else ():
            setattr(objects, name, self._around(getattr(objects, name)))

    def step(self, name: str) -> bool:
        """Note one step; ends the process if it is the chosen one and no write is to be torn."""
        if self._is_chosen(name):
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    def _is_chosen(self, name: str) -> bool:
        with self._lock:
            self.count += 1
            self.trace.append(name)
            return self.count == self._at

    def _before(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.step(name)
            return call(*args, **kwargs)

        return counted

    def _around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A request: killed before it leaves, or after it was carried out and before its answer is heard."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.step("send")
            answer = call(*args, **kwargs)
            self.step("answer")
            return answer

        return counted

    def _torn_writev(self, call: Callable[[int, Sequence[Buffer]], int]) -> Callable[[int, Sequence[Buffer]], int]:
        def torn(fd: int, buffers: Sequence[Buffer]) -> int:
            if self._is_chosen("writev"):
                first = memoryview(buffers[0]).cast("B")
                call(fd, [first[: len(first) // 2]])  # half of the first buffer reaches the file, then nothing more
                os.kill(os.getpid(), signal.SIGKILL)
            return call(fd, buffers)

        return torn
