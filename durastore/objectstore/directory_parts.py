"""Multipart uploads of a directory bucket: parts wait in an unnamed file until they are joined.

Duty: hold parts so that a crash, an abort and a close all leave nothing behind. An upload lives as long as the store
that began it; a later process is told that it is gone. Must never give a part a name.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from durastore.errors import AmbiguousWrite, IntegrityError, RequestRefused
from durastore.model import ObjectKey
from durastore.objectstore.crc import Crc64Nvme, combine, crc64nvme_b64
from durastore.objectstore.multipart import check_parts
from durastore.objectstore.port import Body, OpenUpload, PartReply

__all__ = ["PartBench"]

_STEP_BYTES = 8 << 20


@dataclass(slots=True, kw_only=True)
class _Upload:
    key: ObjectKey
    metadata: dict[str, str]
    begun_s: float
    file: IO[bytes]
    end: int = 0
    parts: dict[int, tuple[PartReply, int]] = field(default_factory=dict)
    """Per number what was acknowledged, and the offset of its bytes."""


class PartBench:
    """The uploads under way in one bucket folder. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._uploads: dict[str, _Upload] = {}

    def begin(self, key: ObjectKey, metadata: Mapping[str, str], *, now_s: float) -> str:
        """A new upload's id. OSError where its file cannot be made."""
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  # lives until the upload ends
        upload_id = secrets.token_hex(16)
        with self._lock:
            self._uploads[upload_id] = _Upload(key=key, metadata=dict(metadata), begun_s=now_s, file=file)
        return upload_id

    def keep(self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str) -> PartReply:
        view = memoryview(body).cast("B")
        real = crc64nvme_b64(view)
        if crc64nvme and crc64nvme != real:
            raise RequestRefused(
                f"upload part {number} of {key}: another CRC64NVME", status=400, server_code="BadDigest"
            )
        reply = PartReply(number=number, etag=f'"{real}-{len(view)}"', size_bytes=len(view), crc64nvme=real)
        upload = self._upload(key, upload_id)
        with self._lock:
            start, upload.end = upload.end, upload.end + len(view)
        try:
            done = 0
            while done < len(view):
                done += os.pwrite(upload.file.fileno(), view[done:], start + done)
        except (OSError, ValueError) as exc:
            raise AmbiguousWrite(f"upload part {number} of {key}: the part could not be written ({exc})") from exc
        with self._lock:
            upload.parts[number] = (reply, start)
        return reply

    def parts(self, key: ObjectKey, upload_id: str) -> tuple[PartReply, ...]:
        upload = self._upload(key, upload_id)
        with self._lock:
            return tuple(upload.parts[number][0] for number in sorted(upload.parts))

    def uploads(self, prefix: str, *, now_s: float) -> tuple[OpenUpload, ...]:
        """Those under way here; what another process has begun has no name and is not seen."""
        with self._lock:
            return tuple(
                OpenUpload(key=upload.key, upload_id=upload_id, initiated_s=upload.begun_s, server_time_s=now_s)
                for upload_id, upload in self._uploads.items()
                if upload.key.text.startswith(prefix)
            )

    def metadata(self, key: ObjectKey, upload_id: str) -> dict[str, str]:
        return self._upload(key, upload_id).metadata

    def check(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> None:
        """`RequestRefused` unless the parts are held as listed and make up this size and checksum."""
        check_parts(key, parts, held={part.number: part for part in self.parts(key, upload_id)}, size_bytes=size_bytes)
        whole = crc64nvme_b64(b"")
        for part in parts:
            whole = combine(whole, part.crc64nvme, second_size_bytes=part.size_bytes)
        if whole != crc64nvme:
            raise RequestRefused(
                f"complete {key}: the parts have another CRC64NVME", status=400, server_code="BadDigest"
            )

    def read(self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply]) -> Iterator[bytes]:
        """The joined bytes; `IntegrityError` before the end if the file gave back other bytes than it took."""
        upload = self._upload(key, upload_id)
        for part in parts:
            running = Crc64Nvme()
            with self._lock:
                start = upload.parts[part.number][1]
            for offset in range(0, part.size_bytes, _STEP_BYTES):
                piece = os.pread(upload.file.fileno(), min(_STEP_BYTES, part.size_bytes - offset), start + offset)
                running.update(piece)
                yield piece
            if running.size_bytes != part.size_bytes or running.text() != upload.parts[part.number][0].crc64nvme:
                raise IntegrityError(f"complete {key}: part {part.number} reads back as other bytes")

    def end(self, key: ObjectKey, upload_id: str) -> None:
        """Let an upload go, with its bytes. Safe to repeat."""
        with self._lock:
            upload = self._uploads.get(upload_id)
            if upload is not None and upload.key == key:
                self._uploads.pop(upload_id).file.close()

    def close(self) -> None:
        with self._lock:
            for upload in self._uploads.values():
                upload.file.close()
            self._uploads.clear()

    def _upload(self, key: ObjectKey, upload_id: str) -> _Upload:
        with self._lock:
            upload = self._uploads.get(upload_id)
        if upload is None or upload.key != key:
            raise RequestRefused(f"upload of {key}: no such upload", status=404, server_code="NoSuchUpload")
        return upload
