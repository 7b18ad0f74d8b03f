"""Reading a sealed pack once, in order, while hashing what is handed out.

Duty: `PackSource`: bytes for the wire, and the proof that those bytes are the sealed ones. All methods block and run on
the engine's worker threads. Must never write, and never let a short or changed file pass for the whole one.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import xxhash

from durastore.codec.blocks import BLOCKS
from durastore.errors import DurastoreError, IntegrityError, SpoolUnreadable
from durastore.fsio.past_cache import read_past_cache
from durastore.model import Digest
from durastore.objectstore.crc import combine, crc64nvme_b64
from durastore.upload.job import UploadJob

__all__ = ["PackSource", "SourceChunk", "check_body"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChunk:
    """Consecutive bytes of the file and the CRC64NVME (base64) of exactly these bytes."""

    body: memoryview
    """Read-only. Its memory is used again when no view of it is left: whoever may send it later holds one."""
    crc64nvme: str


class PackSource:
    """One reading of one job's file. The descriptor is opened at the first read and held, so a file that is unlinked
    meanwhile is still read whole; one that is cut or changed is refused by `finish` or by the short read.

    The lock keeps `close` from giving the descriptor's number away while a cancelled job's read still uses it.
    """

    def __init__(self, job: UploadJob) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._is_closed = False
        self._restart()

    def _restart(self) -> None:
        self._offset = 0
        self._digest = xxhash.xxh3_128()
        self._crc = crc64nvme_b64(b"")

    def rewind(self) -> None:
        """The next read starts at the front again, with fresh hashes."""
        with self._lock:
            self._restart()

    def read_next(self, size_bytes: int) -> SourceChunk:
        """The next `size_bytes` of the file; `IntegrityError` where it ends early, `SpoolUnreadable` on disk errors."""
        with self._lock:
            try:
                body = self._read(self._descriptor(), size_bytes)
            except OSError as exc:
                raise SpoolUnreadable(f"the file of {self._job.key} cannot be read: {exc.strerror}") from exc
            self._offset += size_bytes
            self._digest.update(body)
            chunk = SourceChunk(body=body, crc64nvme=crc64nvme_b64(body))
            self._crc = combine(self._crc, chunk.crc64nvme, second_size_bytes=size_bytes)
            return chunk

    def finish(self) -> None:
        """Raises `IntegrityError` unless all that was handed out is the sealed pack, byte for byte."""
        with self._lock:
            try:
                size_now = os.fstat(self._descriptor()).st_size
            except OSError as exc:
                raise SpoolUnreadable(f"the file of {self._job.key} cannot be examined: {exc.strerror}") from exc
            job, digest = self._job, self._digest.hexdigest()
            if (self._offset, size_now, digest) != (job.size_bytes, job.size_bytes, job.digest.hex):
                raise self._changed(f"{self._offset} of now {size_now} bytes were read, with digest {digest}")
            if self._crc != job.crc64nvme:
                raise self._changed(f"its CRC64NVME is {self._crc}, not {job.crc64nvme}")

    def close(self) -> None:
        """Closes the descriptor. Safe to repeat; later reads are refused."""
        with self._lock:
            self._is_closed = True
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)

    def _descriptor(self) -> int:
        if self._is_closed:
            raise DurastoreError(f"the source of {self._job.key} was read after its job had ended")
        if self._fd is None:
            self._fd = self._job.open_source()
            size_now = os.fstat(self._fd).st_size
            if size_now != self._job.size_bytes:
                raise self._changed(f"it has {size_now} bytes")
        return self._fd

    def _read(self, fd: int, size_bytes: int) -> memoryview:
        body = BLOCKS.take(size_bytes).data
        done = read_past_cache(fd, body, offset=self._offset) if self._job.is_past_cache else 0
        while done < size_bytes:
            count = os.preadv(fd, [body[done:]], self._offset + done)
            if not count:
                raise self._changed(f"it ends at byte {self._offset + done}")
            done += count
        return body.toreadonly()

    def _changed(self, how: str) -> IntegrityError:
        return _source_changed(self._job, how)


def check_body(job: UploadJob) -> memoryview:
    """The job's own bytes; `IntegrityError` unless they are the sealed pack, byte for byte."""
    assert job.body is not None
    size_bytes, digest, crc64nvme = len(job.body), Digest.of(job.body), crc64nvme_b64(job.body)
    if (size_bytes, digest, crc64nvme) != (job.size_bytes, job.digest, job.crc64nvme):
        raise _source_changed(job, f"its body has {size_bytes}, digest {digest} and CRC64NVME {crc64nvme}")
    return memoryview(job.body)


def _source_changed(job: UploadJob, how: str) -> IntegrityError:
    return IntegrityError(
        f"source changed: the file of {job.key} was sealed with {job.size_bytes} bytes, and {how}",
        hint="nothing was completed in the bucket; look at the pack in the spool",
        key=job.key.text,
        is_source_changed=True,
    )
