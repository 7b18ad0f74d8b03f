"""Looking into many files at once: hashes and signs of damage, in parallel and not faster than told.

Duty: run one small look at each file in a few threads, with a limit of bytes a second. Must never stop at a file that
cannot be read: that is an answer about this file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import xxhash

from durastore.adopt.inspect import find_fault
from durastore.adopt.sending import open_local
from durastore.clock import Clock
from durastore.errors import SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.lease import has_writer

__all__ = ["FileLook", "RateLimit", "hash_files", "look_into"]

_THREADS = 4
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


def hash_files(folder: Folder, paths: Iterable[str], *, limit: RateLimit) -> Iterator[FileLook]:
    """The digest of each file. In the order given."""
    return _in_parallel(partial(_hash, folder, limit=limit), paths)


def _in_parallel(look: partial[FileLook], paths: Iterable[str]) -> Iterator[FileLook]:
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
            return FileLook(path=path, oddity=fault.reason)
        finally:
            os.close(fd)
    except (OSError, SpoolUnreadable) as exc:
        return FileLook(path=path, unreadable=str(exc))


def _hash(folder: Folder, path: str, *, limit: RateLimit) -> FileLook:
    hasher = xxhash.xxh3_128()
    try:
        fd = open_local(folder, path)
        try:
            offset, before = 0, identify(fd)
            while block := os.pread(fd, _BLOCK_BYTES, offset):
                limit.spend(len(block))
                hasher.update(block)
                offset += len(block)
            identity = before if identify(fd) == before and offset == before.size_bytes else None
        finally:
            os.close(fd)
    except (OSError, SpoolUnreadable) as exc:
        return FileLook(path=path, unreadable=str(exc))
    return FileLook(path=path, digest=hasher.digest(), identity=identity)
