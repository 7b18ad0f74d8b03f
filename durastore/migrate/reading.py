"""Reading one side, and knowing that it held still meanwhile.

Duty: bytes and digest of a source that is, at the end, the file it was at the beginning; bytes of a copy from its
device. Must never give a digest of a file that changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from durastore.clock import SYSTEM_CLOCK
from durastore.fsio.cache import drop_cached, read_once
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.lease import NotLeased, leased
from durastore.fsio.rate import RateLimit
from durastore.migrate.record import Prior
from durastore.model import Digest

__all__ = ["BLOCK_BYTES", "Formats", "SourceChanged", "SourceRead", "read_copy", "read_source"]

BLOCK_BYTES = 256 << 10  # what is hashed and written next is still in the core's cache
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


def read_source(
    folder: Folder, name: str, *, expect: FileIdentity, formats: Formats, sink: tuple[Sink, RateLimit]
) -> SourceRead:
    """Read the file from its beginning to its end, block by block into the sink (which must not keep the block).

    `SourceChanged` if it is not the file that is expected, or changed; OSError or `SpoolUnreadable` where it cannot be
    read.
    """
    take, rate = sink
    fd = folder.open_read(name)
    try:
        if identify(fd) != expect:
            raise SourceChanged("it changed since it was looked at")
        is_young = not expect.would_show_change(SYSTEM_CLOCK.now_ns())  # by the time before the first byte
        before = _is_written(fd)
        digest = _read_all(fd, expect.size_bytes, take=take, rate=rate)
        fits, damage = formats.find_damage(fd, name) if formats.is_known(name) else (False, None)
        after = _is_written(fd)
        if identify(fd) != expect:
            raise SourceChanged("it changed while it was read")
    finally:
        os.close(fd)
    return SourceRead(
        digest=digest,
        is_quiet=before is after is False and not is_young,
        has_writer=True in (before, after),
        is_young=is_young,
        prior=Prior.LENGTH if fits else Prior.NONE,
        damage=damage,
    )


def read_copy(fd: int, size_bytes: int) -> Digest:
    """Digest of synced bytes, read from the device. OSError where they cannot be read."""
    drop_cached(fd)
    if size_bytes > BLOCK_BYTES:
        read_once(fd)
    hasher = xxhash.xxh3_128()
    offset = 0
    # one byte more than expected, so that a longer file shows
    while block := os.pread(fd, min(BLOCK_BYTES, size_bytes + 1), offset):
        hasher.update(block)
        offset += len(block)
    if offset != size_bytes:
        raise OSError(5, f"{offset} bytes instead of {size_bytes} are there")
    return Digest(hasher.hexdigest())


def _read_all(fd: int, size_bytes: int, *, take: Sink, rate: RateLimit) -> Digest:
    if size_bytes > BLOCK_BYTES:
        read_once(fd)
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(BLOCK_BYTES, size_bytes + 1)))
    offset = 0
    while offset <= size_bytes:
        rate.spend(min(len(buffer), size_bytes - offset))
        count = os.preadv(fd, [buffer], offset)
        if count == 0:
            break
        hasher.update(buffer[:count])
        take(buffer[:count])
        offset += count
    if offset != size_bytes:
        raise SourceChanged(f"{offset} bytes were read of a file of {size_bytes}")  # cases B44, B124
    return Digest(hasher.hexdigest())


def _is_written(fd: int) -> bool | None:
    """Whether somebody has it open or mapped for writing; None where the kernel does not tell."""
    try:
        with leased(fd):
            return False
    except NotLeased as exc:
        return True if exc.is_writer else None
