"""Zeros from a page's edge to the end of a file: pages that a crash lost, or numbers that are zero.

Duty: tell what the file system and the rows of the numbers say about it. Where they say nothing it is neither, and must
never be called damage: padded batches end in zeros every day, and all files of a run have one and the same edge.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NumberBlock", "ZeroTail", "find_zero_tail", "is_end_unwritten"]

_PAGE_BYTES = 4096
_NEAR_PAGE_BYTES = 64
_CHUNK_BYTES = 1 << 20
_TORN_BYTES = 256
_MAX_ROW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberBlock:
    """Where an array of floats lies in a file, and how long one row of its last dimension is. Bytes."""

    start: int
    stop: int
    row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroTail:
    """All bytes from `start` on are zeros, and `edge`, a page's, is less than 64 bytes behind `start`."""

    start: int
    edge: int
    size_bytes: int

    def is_torn(self, fd: int, blocks: Sequence[NumberBlock]) -> bool:
        """Whether it begins inside a row that the row before fills with other numbers, and takes all rows behind it
        along: no padding looks like this. Reads one row at most; OSError passes.
        """
        for block in blocks:
            if block.start < self.start <= block.stop and 0 < block.row_bytes <= _MAX_ROW_BYTES:
                return self._is_torn_in(block, fd)
        return False

    def _is_torn_in(self, block: NumberBlock, fd: int) -> bool:
        rows = -((block.start - self.start) // block.row_bytes)  # up to and with the one that it begins in
        row_end = block.start + rows * block.row_bytes
        zeros = row_end - self.edge
        if rows < 2 or zeros < _TORN_BYTES or row_end >= self.size_bytes:
            return False
        return any(os.pread(fd, zeros, self.edge - block.row_bytes))


def find_zero_tail(fd: int, size_bytes: int) -> ZeroTail | None:
    """The zeros at the end of an open file, where there is a page of them from near a page's edge on, or where there is
    nothing else (then `start` is 0). Zeros that begin anywhere else are data: arrays do end in zeros.

    OSError where it cannot be read.
    """
    start = _last_data(fd, size_bytes)
    to_edge = -start % _PAGE_BYTES
    edge = start + to_edge
    if start and (size_bytes - edge < _PAGE_BYTES or to_edge >= _NEAR_PAGE_BYTES):
        return None
    return ZeroTail(start=start, edge=edge, size_bytes=size_bytes)


def is_end_unwritten(fd: int, size_bytes: int) -> bool:
    """Whether the file system holds no data for the last page: nobody ever wrote it. (A copy of such a file may hold it
    as zeros; a copy made with holes on purpose lacks zeros that were written.) A file system that cannot tell says no.

    To be asked before anything is read: ext4 and XFS take a page that was read for data, and reading one reads ahead.
    Moves the descriptor's position.
    """
    try:
        os.lseek(fd, max(0, size_bytes - _PAGE_BYTES), os.SEEK_DATA)
    except OSError as exc:
        return exc.errno == errno.ENXIO
    return False


def _last_data(fd: int, size_bytes: int) -> int:
    """The end of the last byte that is not zero."""
    end = size_bytes
    length = _PAGE_BYTES  # nearly always enough
    while end:
        begin = max(0, end - length)
        block = os.pread(fd, end - begin, begin).rstrip(b"\0")
        if block:
            return begin + len(block)
        end, length = begin, _CHUNK_BYTES
    return 0
