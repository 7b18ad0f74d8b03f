"""A journal beside its write-ahead log, read without SQLite: for a look where the log's index did not come along.

Duty: the bytes of a database file and of its log -> those of a database with all that was committed (SQLite's file
format, https://www.sqlite.org/walformat.html). SQLite itself would write the index, or the log into the file. No I/O.
Must never take a frame that was not committed, or that does not follow from the one before it.
"""

from __future__ import annotations

import struct

from durastore.errors import SpoolUnreadable

__all__ = ["with_log"]

_HEAD = struct.Struct(">8I")
"""Magic, version, page size, number of the checkpoint, two salts, two sums."""
_FRAME = struct.Struct(">6I")
"""Page, pages of the database after a commit (else 0), two salts, two sums."""
_MAGIC = 0x377F0682  # its last bit tells the byte order that sums are made in
_VERSION = 3_007_000
_VERSIONS_AT = slice(18, 20)
_IS_ROLLBACK = b"\x01\x01"  # so that the result is taken for a file without a log
_MASK = 0xFFFFFFFF
_PAGE_BYTES = frozenset(512 << power for power in range(8))


def with_log(main: bytes, log: bytes) -> bytes:
    """The database as of the last commit. What of a log is torn or left from before counts for nothing, as for SQLite;
    whether `main` is a database at all, SQLite finds. `SpoolUnreadable` for a log that cannot be of it.
    """
    data = bytearray(main)
    commits = _commits(log)
    if commits:
        size_bytes = commits[-1][1]
        if size_bytes > 2 * (len(main) + len(log)):  # every page is in one of them, but for a few that were never used
            raise SpoolUnreadable(f"a journal's log tells of a database of {size_bytes} bytes, and has {len(log)}")
        data[len(main) :] = bytes(max(0, size_bytes - len(main)))
        for pages, _ in commits:
            for start, page in pages.items():
                if start < size_bytes:  # else a later commit made the database shorter
                    data[start : start + len(page)] = page
        del data[size_bytes:]
    data[_VERSIONS_AT] = _IS_ROLLBACK[: len(data[_VERSIONS_AT])]
    return bytes(data)


def _commits(log: bytes) -> list[tuple[dict[int, bytes], int]]:
    """Of each commit the pages by their place, and the size of the database after it, in bytes."""
    if len(log) < _HEAD.size:
        return []
    magic, version, page_bytes, _, *salts_and_sums = _HEAD.unpack_from(log)
    order = ">" if magic & 1 else "<"
    sums = _summed(log[: _HEAD.size - 8], (0, 0), order=order)
    if (magic & ~1, version) != (_MAGIC, _VERSION) or page_bytes not in _PAGE_BYTES:
        return []
    if sums != tuple(salts_and_sums[2:]):
        return []
    found: list[tuple[dict[int, bytes], int]] = []
    pages: dict[int, bytes] = {}
    at = _HEAD.size
    while at + _FRAME.size + page_bytes <= len(log):
        number, size, *rest = _FRAME.unpack_from(log, at)
        page = log[at + _FRAME.size : at + _FRAME.size + page_bytes]
        sums = _summed(page, _summed(log[at : at + 8], sums, order=order), order=order)
        if not number or rest[:2] != salts_and_sums[:2] or sums != tuple(rest[2:]):
            break
        pages[(number - 1) * page_bytes] = page
        if size:
            found.append((pages, size * page_bytes))
            pages = {}
        at += _FRAME.size + page_bytes
    return found


def _summed(data: bytes, sums: tuple[int, int], *, order: str) -> tuple[int, int]:
    """SQLite's two running sums over pairs of 32-bit numbers."""
    first, second = sums
    numbers = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for each, other in zip(numbers, numbers, strict=True):
        first = (first + each + second) & _MASK
        second = (second + other + first) & _MASK
    return first, second
