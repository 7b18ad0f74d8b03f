"""The bytes of a pack file: hashing them as they are written, and checking them when they are read again.

Duty: digest and checksum of a pack, and whether a journaled sample is still what was acknowledged. Reads only. "Does
not match" is an answer; "cannot be read" is `SpoolUnreadable`, because a disk that fails now may answer tomorrow.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import xxhash

from durastore.codec.decode import scan_sample
from durastore.errors import DiskFailed, IntegrityError, SpoolUnreadable
from durastore.formats.pack import iter_pack
from durastore.fsio.identity import identify
from durastore.fsio.sys import SYS
from durastore.model import Digest, PackKind, SampleEntry
from durastore.objectstore.crc import Crc64Nvme
from durastore.spool.records import PackRecord

__all__ = [
    "PackHasher",
    "hash_file",
    "is_sealed_content",
    "is_well_framed",
    "read_exact",
    "reader_of",
    "sample_fault",
    "sync_file",
]

_BLOCK_BYTES = 8 << 20


class PackHasher:
    """Running XXH3-128 and CRC64NVME of the bytes given in order. Not thread-safe."""

    __slots__ = ("_crc", "_digest")

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()
        self._crc = Crc64Nvme()

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._digest.update(data)
        self._crc.update(data)

    @property
    def size_bytes(self) -> int:
        return self._crc.size_bytes

    def digest(self) -> Digest:
        return Digest(self._digest.hexdigest())

    def crc64nvme(self) -> str:
        return self._crc.text()


def read_exact(fd: int, *, offset: int, length: int) -> bytes:
    """Exactly these bytes; `IntegrityError` if the file ends before, `SpoolUnreadable` if the disk does not answer."""
    pieces: list[bytes] = []
    at, end = offset, offset + length
    while at < end:
        try:
            piece = os.pread(fd, min(end - at, 1 << 30), at)
        except OSError as exc:
            raise SpoolUnreadable(f"reading a pack at byte {at}: {exc.strerror}", errno=exc.errno) from exc
        if not piece:
            raise IntegrityError(f"the file ends at byte {at}, {end - at} bytes before it should")
        pieces.append(piece)
        at += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def reader_of(fd: int) -> Callable[[int, int], bytes]:
    """`read_at(offset, length)` for the tar walker."""
    return lambda offset, length: read_exact(fd, offset=offset, length=length)


def hash_file(fd: int) -> PackHasher:
    """Hash of the whole file. `SpoolUnreadable` if a byte cannot be read."""
    hasher = PackHasher()
    try:
        while block := os.pread(fd, _BLOCK_BYTES, hasher.size_bytes):
            hasher.update(block)
    except OSError as exc:
        raise SpoolUnreadable(f"reading a pack at byte {hasher.size_bytes}: {exc.strerror}", errno=exc.errno) from exc
    return hasher


def sync_file(fd: int, name: str) -> None:
    """Make what was just read and found right durable: a file that was copied here may still be in memory only."""
    try:
        SYS.fsync(fd)
    except OSError as exc:
        raise DiskFailed(f"syncing {name}: {exc.strerror}", errno=exc.errno) from exc


def is_sealed_content(fd: int, record: PackRecord) -> bool:
    """True if the file holds exactly the bytes that were sealed, and did not change while it was read."""
    before = identify(fd)
    if before.size_bytes != record.size_bytes:
        return False
    hasher = hash_file(fd)
    return (hasher.digest(), hasher.crc64nvme()) == (record.digest, record.crc64nvme) and identify(fd) == before


def sample_fault(data: bytes, entry: SampleEntry) -> str | None:
    """Why these bytes are not the acknowledged sample; None if every byte of them is."""
    try:
        header = scan_sample(data)
    except IntegrityError as exc:
        return exc.message
    if (header.digest, header.sample_id) != (entry.header_digest, entry.sample_id):
        return "the bytes are of another sample"
    return None


def is_well_framed(fd: int, record: PackRecord, *, entries: list[SampleEntry]) -> bool:
    """True if standard tools, and a rebuild without any journal, would find every sample where the rows say it is."""
    size_bytes = identify(fd).size_bytes
    if record.kind is PackKind.SAFETENSORS:
        return [(entry.offset, entry.length) for entry in entries] == [(0, size_bytes)]
    try:
        found = {(member.offset, member.length) for member in iter_pack(reader_of(fd), size_bytes)}
    except IntegrityError:
        return False
    return found.issuperset((entry.offset, entry.length) for entry in entries)
