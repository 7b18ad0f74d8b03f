"""Ends a process at its n-th step: SIGKILL, a write torn in the middle, or a power cut.

A step is a system call of `fsio` or an SQL statement of the journal. The power cut is modelled on the strict side: of
the pack files only what was synced survives, and only under names whose directory was synced, while the journal keeps
all that SQLite wrote, synced or not. So a journal row that was written before its bytes were durable shows at once.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from durastore.fsio.folder import Folder
from durastore.fsio.sys import SYS
from durastore.spool import journal_db

CALLS = ("open", "writev", "fsync", "fdatasync", "link", "link_fd", "unlink", "mkdir", "close")


class Ending(Enum):
    """How the process ends at the chosen step."""

    KILL = "kill"
    TORN = "torn"
    POWER = "power"


@dataclass
class _Disk:
    """What would be on the disk after a power cut now."""

    synced: dict[int, int] = field(default_factory=dict)
    """Inode → bytes of it that were synced, for files written in this process."""
    unsynced_names: dict[int, list[str]] = field(default_factory=dict)
    """Directory inode → paths of names made in it since its last sync."""


class Stopper:
    """Counts steps in this process, and ends it at the n-th."""

    def __init__(self, *, at: int, ending: Ending, notes: Path) -> None:
        self._left = at
        self._ending = ending
        self._notes = notes
        self._disk = _Disk()
        self.count = 0

    def install(self) -> None:
        for name in CALLS:
            setattr(SYS, name, self._wrapped(name, getattr(SYS, name)))
        original = journal_db.connect

        def connect(folder: Folder, name: str, *, is_read_only: bool = False) -> sqlite3.Connection:
            connection = original(folder, name, is_read_only=is_read_only)
            connection.set_trace_callback(lambda _: self._step())
            return connection

        journal_db.connect = connect

    def _wrapped(self, name: str, original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if self._left == 1 and self._ending is Ending.TORN and name == "writev":
                fd, buffers = args
                data = b"".join(bytes(part) for part in buffers)  # type: ignore[attr-defined]  # as writev takes them
                original(fd, [data[: len(data) * 2 // 3]])
            self._step()
            result = original(*args, **kwargs)
            self._note(name, args, kwargs, result)
            return result

        return call

    def _note(self, name: str, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> None:
        if name in ("fsync", "fdatasync"):
            stat = os.fstat(_fd(args[0]))
            self._disk.synced[stat.st_ino] = stat.st_size
            self._disk.unsynced_names.pop(stat.st_ino, None)
        elif name == "open" and isinstance(args[1], int) and args[1] & os.O_CREAT:
            self._made(kwargs["dir_fd"], args[0])
        elif name in ("link", "link_fd"):
            self._made(kwargs["target_fd"], args[1])
        elif name == "writev":
            self._disk.synced.setdefault(os.fstat(_fd(args[0])).st_ino, 0)
        elif name == "mkdir":
            self._made(kwargs["dir_fd"], args[0])

    def _made(self, dir_fd: object, name: object) -> None:
        fd = _fd(dir_fd)
        path = f"{os.readlink(f'/proc/self/fd/{fd}')}/{name}"
        self._disk.unsynced_names.setdefault(os.fstat(fd).st_ino, []).append(path)

    def _step(self) -> None:
        self.count += 1
        self._left -= 1
        if self._left == 0:
            names = [path for paths in self._disk.unsynced_names.values() for path in paths]
            self._notes.write_text(json.dumps({"synced": self._disk.synced, "names": names}))
            os.kill(os.getpid(), signal.SIGKILL)


def _fd(value: object) -> int:
    assert isinstance(value, int)
    return value


def cut_power(root: Path, notes: Path) -> None:
    """Bring the pack files below `root` into the state that a power cut would have left."""
    noted = json.loads(notes.read_text())
    synced = {int(inode): size for inode, size in noted["synced"].items()}
    for path in [*root.glob("w-*"), *root.glob("w-*/*"), *root.glob("w-*/packs/*")]:
        if not path.exists():
            continue
        is_pack = path.parent.name == "packs"  # SQLite's files are left as they are
        if str(path) in noted["names"] and (path.is_dir() or is_pack):
            path.rename(notes.with_name(f"{notes.name}-cut-{path.name}"))  # whatever was in it is gone with it
        elif is_pack and path.stat().st_ino in synced:
            os.truncate(path, synced[path.stat().st_ino])


def run_stopped(work: Callable[[], None], *, at: int, ending: Ending, notes: Path) -> int | None:
    """Run `work` in a forked child that ends at its `at`-th step: None, or how many steps it has if it has fewer."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            stopper = Stopper(at=at, ending=ending, notes=notes)
            stopper.install()
            work()
            os.write(write_fd, str(stopper.count).encode())
            os._exit(0)
        except BaseException as exc:  # noqa: BLE001 - the child must not come back into the test run
            os.write(write_fd, f"error {exc!r}".encode()[:4_000])
            os._exit(1)
    os.close(write_fd)
    told = os.read(read_fd, 4_096).decode()
    os.close(read_fd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGKILL:
        return None
    assert code == 0, told
    return int(told)
