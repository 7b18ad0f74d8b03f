"""A folder of copies with a byte limit, shared by processes, out of which copies may go (ADR 0010).

Duty: keep files within the limit at every moment, and drop one only while nobody reads it. Must never act in a folder
that does not carry the cache marker: what is dropped here is a copy of what the bucket has, so no data can be lost.

Nothing is remembered outside the kernel's locks and the files themselves. A writer reserves the space of a file before
it writes a byte, under the lock of the ledger, and holds a lock on the file until it is whole; a temp file that nobody
holds belonged to a process that is gone. The ledger never says less than is there; where it says more (a process was
killed between two steps), the next count under its lock sets it right.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from durastore.clock import Clock
from durastore.errors import NO_ROOM, ConfigError, DiskFailed, SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.publish import TEMP_PREFIX, publish, write_all
from durastore.fsio.space import disk_bytes
from durastore.fsio.sys import SYS

__all__ = ["CACHE_MARKER_NAME", "CacheFolder"]

CACHE_MARKER_NAME = "CACHEDIR.TAG"
_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"  # of the Cache Directory Tagging Specification
_LEDGER = "ledger"
_LEDGER_BYTES = 21
_OWN = frozenset({CACHE_MARKER_NAME, _LEDGER})
_NOT_KEPT = {*NO_ROOM, errno.EFBIG}
_LOOK_AGAIN_S = 60.0
_LOOK_SHARE = 100
"""A full count takes at most one part in so many of the time."""
_PATIENCE_S = 2.0
"""So long the ledger is waited for: a process that was stopped with it in hand must not stop all others of the node."""
_LONGEST_SLEEP_S = 0.02


class _LedgerHeld(OSError):
    """Another process has the ledger and does not let go. Raised before anything was done."""


class CacheFolder:
    """Whole files by name, none of which is the only copy of anything. Thread-safe; picklable; usable after fork."""

    def __init__(self, path: Path, *, limit_bytes: int, clock: Clock) -> None:
        """Open `path`, or make it a cache. `ConfigError` where it is something else, or a cache of another limit."""
        self.path = path
        self.limit_bytes = limit_bytes
        self._clock = clock
        self._count_again_s: float | None = None
        self._ask_again_s: float | None = None
        """Until then the ledger is somebody else's."""
        with self._folder(is_new=True) as folder:
            _ensure_marker(folder, limit_bytes)
            if limit_bytes > disk_bytes(folder.fd):
                raise ConfigError(f"a cache of {limit_bytes} bytes in {path}", hint="the file system is smaller")

    def has(self, name: str) -> bool:
        """Whether the file is there. The answer may be old at once."""
        return os.path.exists(self.path / name)

    def read(self, name: str, *, size_bytes: int) -> bytes | None:
        """The bytes of a file of this size; None where it is not there, not whole, or about to go."""
        try:
            with self._folder() as folder:
                fd = folder.open_read(name)
        except (OSError, SpoolUnreadable):
            return None
        try:
            if not _is_locked(fd, fcntl.LOCK_SH):
                return None  # somebody writes or drops it
            stat = os.fstat(fd)
            if stat.st_nlink == 0 or stat.st_size != size_bytes:
                return None
            with open(fd, "rb", closefd=False) as file:
                data = file.read(size_bytes)
            return data if len(data) == size_bytes else None
        except OSError:
            return None
        finally:
            _let_go(fd)

    def keep(self, name: str, data: memoryview, *, is_spare: Callable[[str], bool]) -> bool:
        """Keep a file of these bytes if there is room, after dropping the oldest files that are spare. False: not kept.

        Raises `DiskFailed` where the disk does not do what was asked; nothing is half kept then.
        """
        try:
            with self._folder() as folder:
                if folder.has(name):
                    return False
                reserved = self._reserve(folder, len(data), is_spare=is_spare)
                if reserved is None:
                    return False
                temp, fd = reserved
                is_kept = False
                try:
                    write_all(fd, [data])
                    SYS.link(temp, name, source_fd=folder.fd, target_fd=folder.fd)
                    is_kept = True
                except FileExistsError:
                    pass  # another process was faster
                finally:
                    self._settle(folder, temp, fd=fd, is_kept=is_kept)
                return is_kept
        except OSError as exc:
            if exc.errno in _NOT_KEPT:
                return False
            raise DiskFailed(f"cache {self.path}: {exc.strerror or exc}", errno=exc.errno) from exc

    def _settle(self, folder: Folder, temp: str, *, fd: int, is_kept: bool) -> None:
        taken, is_open = _allocated(os.fstat(fd)), True
        try:
            with self._ledger(folder) as ledger:
                try:
                    SYS.unlink(temp, dir_fd=folder.fd)  # our own temp name
                finally:
                    is_open = False
                    _let_go(fd)
                if not is_kept:
                    _note(ledger, _noted(ledger, self.limit_bytes) - taken)
        except _LedgerHeld:
            pass  # as after a kill: the ledger says too much, and the next count drops the temp name
        finally:
            if is_open:
                _let_go(fd)

    def forget(self, name: str) -> None:
        """Drop a file that is damaged, unless somebody reads it just now. Safe to repeat."""
        try:
            with self._folder() as folder, self._ledger(folder) as ledger:
                freed = _drop(folder, name)
                _note(ledger, _noted(ledger, self.limit_bytes) - freed)
        except OSError as exc:
            raise DiskFailed(f"cache {self.path}: {exc.strerror or exc}", errno=exc.errno) from exc

    def _folder(self, *, is_new: bool = False) -> Folder:
        return Folder.create(self.path) if is_new else Folder.open(self.path)

    @contextmanager
    def _ledger(self, folder: Folder) -> Iterator[int]:
        """The ledger, locked against all threads and processes. Unlocked by hand: a forked child may hold it too."""
        fd = SYS.open(_LEDGER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode=0o600, dir_fd=folder.fd)
        try:
            self._wait_for(fd)
            yield fd
        finally:
            _let_go(fd)

    def _wait_for(self, ledger: int) -> None:
        began, pause_s = self._clock.monotonic(), 0.0005
        is_asked = self._ask_again_s is None or began >= self._ask_again_s
        while not _is_locked(ledger, fcntl.LOCK_EX):
            now = self._clock.monotonic()
            if not is_asked or now - began > _PATIENCE_S:
                self._ask_again_s = now + _LOOK_AGAIN_S if is_asked else self._ask_again_s
                raise _LedgerHeld(errno.EBUSY, f"another process has held its ledger for over {_PATIENCE_S:g} s")
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_SLEEP_S)

    def _reserve(self, folder: Folder, size: int, *, is_spare: Callable[[str], bool]) -> tuple[str, int] | None:
        """A locked temp file that has its space already, and is in the ledger; None where there is no room."""
        block = os.fstatvfs(folder.fd).f_frsize
        need = -(-size // block) * block
        with self._ledger(folder) as ledger:
            used = _noted(ledger, self.limit_bytes + 1)
            if used + need > self.limit_bytes:
                used = self._make_room(folder, ledger, need=need, is_spare=is_spare)
            if used + need > self.limit_bytes:
                return None
            # Before there is anything: killed on the way, the ledger says too much. Two blocks more for the file's map.
            _note(ledger, used + need + 2 * block)
            temp = TEMP_PREFIX + secrets.token_hex(8)
            fd = SYS.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode=0o600, dir_fd=folder.fd)
            is_reserved = False
            try:
                SYS.flock(fd, fcntl.LOCK_EX)
                if size:
                    SYS.preallocate(fd, size)
                taken = _allocated(os.fstat(fd))
                is_reserved = used + taken <= self.limit_bytes
            finally:
                if not is_reserved:
                    SYS.unlink(temp, dir_fd=folder.fd)  # our own temp name
                    _let_go(fd)
                    _note(ledger, used)
            if not is_reserved:
                return None
            _note(ledger, used + taken)
            return temp, fd

    def _make_room(self, folder: Folder, ledger: int, *, need: int, is_spare: Callable[[str], bool]) -> int:
        """Count what is there, drop the oldest spare files that nobody reads until `need` fits; what is used then."""
        began = self._clock.monotonic()
        if self._count_again_s is not None and began < self._count_again_s:
            return _noted(ledger, self.limit_bytes + 1)
        if not os.fstat(ledger).st_blocks:
            _note(ledger, self.limit_bytes)  # a new ledger takes a block of its own, which the count has to see
        used, spare = _count(folder, is_spare=is_spare)
        for _, name in sorted(spare):
            if used + need <= self.limit_bytes:
                break
            used -= _drop(folder, name)
        _note(ledger, used)
        if used + need > self.limit_bytes:
            ended = self._clock.monotonic()
            self._count_again_s = ended + max(_LOOK_AGAIN_S, _LOOK_SHARE * (ended - began))
        return used


def _ensure_marker(folder: Folder, limit_bytes: int) -> None:
    """The folder is a cache of this limit afterwards. One that holds anything else is refused before it is touched."""
    text = f"{_SIGNATURE}\n# Copies of samples that a bucket holds, kept by durastore. Limit: {limit_bytes} bytes.\n"
    if not folder.has(CACHE_MARKER_NAME):
        strangers = [name for name in folder.names() if not name.startswith(TEMP_PREFIX)]
        if strangers and not folder.has(CACHE_MARKER_NAME):
            raise ConfigError(f"{folder.path} is no cache: it holds {strangers[0]!r}", hint="name an empty folder")
        try:
            publish(folder, CACHE_MARKER_NAME, chunks=[text.encode()])
        except FileExistsError:
            pass  # another process made it a cache
    found = folder.read_bytes(CACHE_MARKER_NAME, limit_bytes=4096)
    if found != text.encode():
        raise ConfigError(
            f"{folder.path} is another program's cache, or has another limit than {limit_bytes} bytes",
            hint=f"see {CACHE_MARKER_NAME} in it; give that limit, or an empty folder",
        )


def _count(folder: Folder, *, is_spare: Callable[[str], bool]) -> tuple[int, list[tuple[int, str]]]:
    """Bytes allocated, those of the folder itself included, and the spare files with their times. Drops temp names of
    processes that are gone. Called with the ledger locked: no reservation can begin meanwhile.
    """
    used, seen = _allocated(os.fstat(folder.fd)), set[int]()
    spare: list[tuple[int, str]] = []
    for name in folder.names():
        if name.startswith(TEMP_PREFIX):
            _drop(folder, name)
        try:
            stat = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.st_ino not in seen:
            seen.add(stat.st_ino)
            used += _allocated(stat)
        if name not in _OWN and not name.startswith(TEMP_PREFIX) and is_spare(name):
            spare.append((stat.st_mtime_ns, name))
    return used, spare


def _drop(folder: Folder, name: str) -> int:
    """Take the name away unless somebody reads or writes the file; the bytes that this frees."""
    if name in _OWN or not folder.has(CACHE_MARKER_NAME):
        return 0
    try:
        fd = folder.open_read(name)
    except (FileNotFoundError, SpoolUnreadable):
        return 0  # a folder of this name is no copy
    except OSError as exc:
        if exc.errno != errno.ELOOP:
            raise
        return 0  # nor is a link
    try:
        if not _is_locked(fd, fcntl.LOCK_EX):
            return 0
        stat = os.fstat(fd)
        SYS.unlink(name, dir_fd=folder.fd)
        return _allocated(stat) if stat.st_nlink == 1 else 0
    finally:
        _let_go(fd)


def _is_locked(fd: int, kind: int) -> bool:
    try:
        SYS.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go(fd: int) -> None:
    """Unlock and close: a child forked meanwhile has the descriptor too, and would keep the lock after our close."""
    try:
        SYS.flock(fd, fcntl.LOCK_UN)
    finally:
        SYS.close(fd)


def _allocated(stat: os.stat_result) -> int:
    return stat.st_blocks * 512


def _noted(ledger: int, unknown: int) -> int:
    """What the ledger says is used; `unknown` where it says nothing (new, or torn by a power cut)."""
    text = os.pread(ledger, _LEDGER_BYTES + 1, 0)
    return int(text) if len(text) == _LEDGER_BYTES and text[:-1].isdigit() else unknown


def _note(ledger: int, used: int) -> None:
    os.lseek(ledger, 0, os.SEEK_SET)
    write_all(ledger, [b"%020d\n" % max(0, used)])
