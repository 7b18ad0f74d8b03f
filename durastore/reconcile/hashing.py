"""Looking into many files at once: hashes and signs of damage, in parallel and not faster than told.

Duty: run one small look at each file in a few threads, with a limit of bytes a second. Must never stop at a file that
cannot be read: that is an answer about this file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import xxhash

from durastore.adopt.inspect import find_fault
from durastore.clock import Clock
from durastore.errors import SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.lease import NotLeased, check_leased, has_writer, leased, writers_among
from durastore.fsio.paths import open_local, open_parent

__all__ = ["FileLook", "RateLimit", "find_written", "hash_files", "look_into"]

_THREADS = 4
_ASKING = 2
"""Threads that only ask the kernel: more of them take the interpreter's lock from each other."""
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLook:
    """What one look at one file told."""

    path: str
    digest: bytes | None = None
    """XXH3-128 of all bytes, where they were hashed."""
    identity: FileIdentity | None = None
    """Which file that was; None also where it changed meanwhile."""
    damage: str | None = None
    """It cannot be whole."""
    oddity: str | None = None
    """It is not what its suffix says, and may be whole."""
    suspicion: str | None = None
    """It ends in zeros, and nothing tells whether they are data."""
    is_busy: bool = False
    """Open for writing by somebody."""
    unreadable: str | None = None


class RateLimit:
    """Bytes a second over all threads; 0 is no limit."""

    def __init__(self, bytes_per_s: int, *, clock: Clock) -> None:
        self._rate = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock.monotonic()

    def spend(self, size_bytes: int) -> None:
        """Wait until so many bytes may be read."""
        if not self._rate:
            return
        with self._lock:
            now = self._clock.monotonic()
            wait_s = max(0.0, self._free_at - now)
            self._free_at = max(self._free_at, now) + size_bytes / self._rate
        if wait_s:
            self._clock.sleep(wait_s)


def look_into(folder: Folder, paths: Iterable[str]) -> Iterator[FileLook]:
    """For each file whether it is damaged or being written. In the order given."""
    return _in_parallel(partial(_inspect, folder), paths)


def hash_files(
    folder: Folder, paths: Iterable[str], *, limit: RateLimit, is_leased: bool = False
) -> Generator[FileLook]:
    """The digest of each file. In the order given; closed early, it hashes no more than was begun. `is_leased`: only
    under a lease, which says that nobody has the file open or mapped for writing; a page that is dirty already is
    written without a new time. Else it `is_busy`.
    """
    return _in_parallel(partial(_hash, folder, limit=limit, is_leased=is_leased), paths)


def find_written(folder: Folder, paths: Iterable[str]) -> frozenset[str]:
    """Those that somebody has open or mapped for writing now. A file that cannot be opened is not among them.

    A directory is opened once for all that lies next to each other in `paths`.
    """
    groups = [(lead, list(group)) for lead, group in groupby(paths, _lead_of)]
    with ThreadPoolExecutor(max_workers=_ASKING, thread_name_prefix="durastore-lease") as pool:
        return frozenset(path for found in pool.map(partial(_written, folder), groups) for path in found)


def _lead_of(path: str) -> str:
    return path[: path.rfind("/") + 1]


def _written(folder: Folder, group: tuple[str, list[str]]) -> list[str]:
    lead, paths = group
    try:
        parent, _ = open_parent(folder, paths[0])
    except OSError:
        return []
    with parent:
        return [lead + name for name in writers_among(parent, [path[len(lead) :] for path in paths])]


def _in_parallel(look: partial[FileLook], paths: Iterable[str]) -> Generator[FileLook]:
    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="durastore-read") as pool:
        yield from pool.map(look, paths)


def _inspect(folder: Folder, path: str) -> FileLook:
    try:
        fd = open_local(folder, path)
        try:
            if has_writer(fd):
                return FileLook(path=path, is_busy=True)
            fault = find_fault(fd, path)
            if fault is None or fault.is_damage:
                return FileLook(path=path, damage=fault.reason if fault is not None else None)
            if fault.is_suspect:
                return FileLook(path=path, suspicion=fault.reason)
            return FileLook(path=path, oddity=fault.reason)
        finally:
            os.close(fd)
    except (OSError, SpoolUnreadable) as exc:
        return FileLook(path=path, unreadable=str(exc))


def _hash(folder: Folder, path: str, *, limit: RateLimit, is_leased: bool) -> FileLook:
    try:
        fd = open_local(folder, path)
        try:
            with leased(fd) if is_leased else nullcontext():
                return _hash_open(fd, path, limit=limit, is_leased=is_leased)
        finally:
            os.close(fd)
    except NotLeased:
        return FileLook(path=path, is_busy=True)
    except (OSError, SpoolUnreadable) as exc:
        return FileLook(path=path, unreadable=str(exc))


def _hash_open(fd: int, path: str, *, limit: RateLimit, is_leased: bool) -> FileLook:
    hasher = xxhash.xxh3_128()
    offset, before = 0, identify(fd)
    while block := os.pread(fd, _BLOCK_BYTES, offset):
        limit.spend(len(block))
        hasher.update(block)
        offset += len(block)
        if is_leased:
            check_leased(fd)  # who wants to write waits for us: give way
    identity = before if identify(fd) == before and offset == before.size_bytes else None
    return FileLook(path=path, digest=hasher.digest(), identity=identity)
