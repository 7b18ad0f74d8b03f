"""A disk with a volatile write cache that remembers everything: what a power cut leaves can be told for any moment.

One file served through /dev/fuse, for a loop device to stand on. Each write and each flush that the file system above
sends down goes to a log, in order. After a power cut a disk holds every write that was flushed, and of the later ones
any subset at all. Run as a program: `python recording_disk.py FOLDER SIZE_BYTES` (see `DiskFolder`); needs root.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096
SECTOR = 512
_MAX_WRITE = 128 << 10
_FLUSH = (1 << 64) - 1
_FLUSH_S = 0.002  # as a real disk: most moments then lie between a write and its flush
_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
_ATTR_OUT = struct.Struct("<QIIQQQQQQIIIIIIIIII")
_WRITE_IN = struct.Struct("<QQIIQII")
_READ_IN = struct.Struct("<QQI")
_RECORD = struct.Struct("<QI")
_ENOSYS = 38


@dataclass(frozen=True, slots=True)
class DiskFolder:
    """The files of one disk, in a folder that is not on it."""

    path: Path

    @property
    def device(self) -> Path:
        """The file that a loop device stands on; a FUSE mount of its own."""
        return self.path / "device"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def start(self) -> Path:
        """The content at the beginning, as a sparse file."""
        return self.path / "start"

    @property
    def clock(self) -> Path:
        """How many bytes the log has: the moment, as the disk tells it."""
        return self.path / "clock"

    def now(self) -> int:
        return int.from_bytes(self.clock.read_bytes()[:8], "little")


class RecordingDisk:
    """Answers the kernel's requests for the one file, until it is unmounted."""

    def __init__(self, folder: DiskFolder, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._content = mmap.mmap(-1, size_bytes)
        for offset, data in nonzero_blocks(folder.start):
            self._content[offset : offset + len(data)] = data
        self._log = folder.log.open("wb", buffering=0)
        folder.clock.write_bytes(bytes(8))
        with folder.clock.open("r+b") as clock:
            self._clock = mmap.mmap(clock.fileno(), 8)
        folder.device.touch()
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fuse},rootmode=100000,user_id={os.getuid()},group_id={os.getgid()}"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"recording-disk", os.fsencode(folder.device), b"fuse", 0, options.encode()):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "mounting the recording disk")

    def serve(self) -> None:
        """Until the file is unmounted."""
        while True:
            try:
                request = os.read(self._fuse, _MAX_WRITE + BLOCK)
            except OSError as exc:
                if exc.errno == 19:  # ENODEV: unmounted
                    return
                if exc.errno in (2, 4, 11):  # a request that was taken back, or a signal
                    continue
                raise
            _, opcode, unique, *_ = _IN.unpack_from(request)
            answer = self._answer(opcode, request[_IN.size :])
            if answer is not None:
                error, data = answer
                os.write(self._fuse, _OUT.pack(_OUT.size + len(data), error, unique) + data)

    def _answer(self, opcode: int, body: bytes) -> tuple[int, bytes] | None:
        if opcode in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET
            return None
        if opcode == 26:  # INIT: no write-back cache, so that every write comes down at once
            return 0, _INIT_OUT.pack(7, 31, _MAX_WRITE, 1 << 5, 16, 12, _MAX_WRITE, 1, 0, 0, 0)
        if opcode in (3, 4):  # GETATTR, SETATTR
            blocks = self._size_bytes // SECTOR
            times = (0, 0, 0, 0, 0, 0)
            return 0, _ATTR_OUT.pack(3600, 0, 0, 1, self._size_bytes, blocks, *times, 0o100600, 1, 0, 0, 0, BLOCK, 0)
        if opcode == 14:  # OPEN
            return 0, struct.pack("<QII", 1, 0, 0)
        if opcode == 15:  # READ
            _, offset, size = _READ_IN.unpack_from(body)
            return 0, self._content[offset : offset + size]
        if opcode == 16:  # WRITE
            return 0, struct.pack("<II", self._write(body), 0)
        if opcode == 20:  # FSYNC: the loop device was told to flush
            time.sleep(_FLUSH_S)
            self._note(_FLUSH, b"")
            return 0, b""
        if opcode in (18, 25, 38):  # RELEASE, FLUSH (at close), DESTROY
            return 0, b""
        return -_ENOSYS, b""

    def _write(self, body: bytes) -> int:
        offset: int
        size: int
        _, offset, size, *_ = _WRITE_IN.unpack_from(body)
        data = body[_WRITE_IN.size : _WRITE_IN.size + size]
        self._content[offset : offset + size] = data
        self._note(offset, data)
        return size

    def _note(self, offset: int, data: bytes) -> None:
        self._log.write(_RECORD.pack(offset, len(data)) + data)
        self._clock[:8] = self._log.tell().to_bytes(8, "little")


def nonzero_blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        offset = 0
        while data := file.read(BLOCK):
            if data.count(0) != len(data):
                yield offset, data
            offset += len(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCut:
    """A cut at a moment of the disk's clock, and what of the unflushed writes happened to reach the platter."""

    moment: int
    kept_share: float
    """Of the unflushed pieces: 0 the cache was lost, 1 it was not."""
    piece_bytes: int
    seed: int


def write_image(folder: DiskFolder, cut: PowerCut, *, image: Path) -> int:
    """Make the image that the cut left; returns how many bytes written before it are not in it."""
    rng = random.Random(cut.seed)
    dropped_bytes = 0
    unflushed: list[tuple[int, bytes]] = []
    with image.open("w+b") as file:
        file.truncate(folder.start.stat().st_size)
        for offset, data in nonzero_blocks(folder.start):
            os.pwrite(file.fileno(), data, offset)
        for offset, data in _records(folder, cut.moment):
            if offset != _FLUSH:
                unflushed.append((offset, data))
                continue
            for at, flushed in unflushed:
                os.pwrite(file.fileno(), flushed, at)
            unflushed = []
        for offset, data in unflushed:
            for start in range(0, len(data), cut.piece_bytes):
                piece = data[start : start + cut.piece_bytes]
                if rng.random() < cut.kept_share:
                    os.pwrite(file.fileno(), piece, offset + start)
                else:
                    dropped_bytes += len(piece)
    return dropped_bytes


def _records(folder: DiskFolder, moment: int) -> Iterator[tuple[int, bytes]]:
    with folder.log.open("rb") as log:
        while log.tell() < moment:
            offset, size = _RECORD.unpack(log.read(_RECORD.size))
            yield offset, log.read(size)


def main() -> None:
    disk = RecordingDisk(DiskFolder(Path(sys.argv[1])), int(sys.argv[2]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    disk.serve()


if __name__ == "__main__":
    main()
