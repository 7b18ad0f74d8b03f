"""Reading one side, and knowing that it held still meanwhile.

Duty: bytes and digest of a source that is, at the end, the file it was at the beginning; bytes of a copy from its
device. Must never give a digest of a file that changed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import xxhash

from durastore.clock import SYSTEM_CLOCK
from durastore.fsio.cache import drop_cached, is_uncached
from durastore.fsio.lease import is_written
from durastore.fsio.past_cache import read_blocks
from durastore.fsio.rate import RateLimit
from durastore.migrate.record import Prior
from durastore.migrate.scan import SourceFile
from durastore.model import Digest

__all__ = [
    "BLOCK_BYTES",
    "Formats",
    "Sink",
    "SourceChanged",
    "SourceRead",
    "SourceReader",
    "read_copy",
    "read_dropped",
]

BLOCK_BYTES = 256 << 10
"""Files up to this are read at once."""
Sink = Callable[[memoryview], None]


class SourceChanged(Exception):
    """The file is another than was scanned, or changed while it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """A look into files of known formats: `migrate` knows none by itself."""

    is_known: Callable[[str], bool]
    find_damage: Callable[[int, str], tuple[bool, str | None]]
    """Open file and path -> whether the format tells a length that fits, and why the file is damaged (or None)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRead:
    """What was read, of a file that held still."""

    digest: Digest
    is_quiet: bool
    """Nobody had it open for writing, before and after, and who has written to it since can be seen by its times."""
    has_writer: bool
    """The kernel said that somebody had. (Where it does not tell, neither this nor `is_quiet`.)"""
    is_young: bool
    """It was changed so short before that the next change may leave the same times."""
    prior: Prior
    damage: str | None


class SourceReader:
    """How this run reads sources. Thread-safe."""

    def __init__(self, formats: Formats, *, rate: RateLimit, is_local: bool) -> None:
        self._formats = formats
        self._rate = rate
        self._is_local = is_local

    @property
    def is_unlimited(self) -> bool:
        return self._rate.is_unlimited

    def read(self, fd: int, file: SourceFile, *, take: Sink) -> SourceRead:
        """Read the open file from its beginning to its end, block by block into `take` (which must not keep the block).

        `SourceChanged` if it is not the file that was scanned, or changed; OSError where it cannot be read.
        """
        expect, formats = file.identity, self._formats
        if not expect.is_of(os.fstat(fd)):
            raise SourceChanged("it changed since it was looked at")
        is_young = not expect.would_show_change(SYSTEM_CLOCK.now_ns())  # by the time before the first byte
        before = is_written(fd)
        if expect.size_bytes > BLOCK_BYTES:
            digest = self._read_blocks(fd, expect.size_bytes, take=take)
        else:
            digest = self._read_at_once(fd, expect.size_bytes, take=take)
        name = file.path.rpartition("/")[2]
        fits, damage = formats.find_damage(fd, name) if formats.is_known(name) else (False, None)
        after = is_written(fd)
        if not expect.is_of(os.fstat(fd)):
            raise SourceChanged("it changed while it was read")
        return SourceRead(
            digest=digest,
            is_quiet=before is after is False and not is_young,
            has_writer=True in (before, after),
            is_young=is_young,
            prior=Prior.LENGTH if fits else Prior.NONE,
            damage=damage,
        )

    def _read_at_once(self, fd: int, size_bytes: int, *, take: Sink) -> Digest:
        self._rate.spend(size_bytes)
        data = memoryview(bytearray(size_bytes + 1))
        count = 0
        # with room for one byte more than expected: a read that ends at the size has seen the end of the file
        while more := os.preadv(fd, [data[count:]], count):
            count += more
            if count >= size_bytes:
                break
        _check_size(count, size_bytes)
        digest = Digest.of(data[:count])
        take(data[:count])
        return digest

    def _read_blocks(self, fd: int, size_bytes: int, *, take: Sink) -> Digest:
        hasher = xxhash.xxh3_128()
        count = 0
        # a page in memory may be newer than what a failing disk took of it: then, and where nobody tells, by the cache
        with closing(read_blocks(fd, is_direct=self._is_local and is_uncached(fd))) as blocks:
            for block in blocks:
                self._rate.spend(len(block))
                count += len(block)
                if count > size_bytes:
                    break
                hasher.update(block)
                take(block)
        _check_size(count, size_bytes)
        return Digest(hasher.hexdigest())


def read_copy(fd: int, size_bytes: int) -> Digest:
    """Digest of synced bytes, read from the device. OSError where they cannot be read."""
    drop_cached(fd)
    if size_bytes <= BLOCK_BYTES:
        return read_dropped(fd, size_bytes)
    hasher = xxhash.xxh3_128()
    count = 0
    with closing(read_blocks(fd)) as blocks:
        for block in blocks:
            hasher.update(block)
            count += len(block)
            if count > size_bytes:
                break
    _check_copied(count, size_bytes)
    return Digest(hasher.hexdigest())


def read_dropped(fd: int, size_bytes: int) -> Digest:
    """The same for a small file, by the cache, from which it was dropped before."""
    data = os.pread(fd, size_bytes + 1, 0)  # one byte more than expected, so that a longer file shows
    while 0 < len(data) < size_bytes and (more := os.pread(fd, size_bytes + 1 - len(data), len(data))):
        data += more
    _check_copied(len(data), size_bytes)
    return Digest.of(data)


def _check_size(count: int, size_bytes: int) -> None:
    if count != size_bytes:
        raise SourceChanged(f"{count} bytes were read of a file of {size_bytes}")  # cases B44, B124


def _check_copied(count: int, size_bytes: int) -> None:
    if count != size_bytes:
        raise OSError(errno.EIO, f"{count} bytes instead of {size_bytes} are there")
