"""A bucket in this process's memory, as strict as a good endpoint.

Duty: the reference behaviour of the port, for tests and dry trials. Checks checksums, sizes and conditions; keeps
nothing beyond the process.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import ObjectAbsent, ObjectExists, RequestRefused
from durastore.model import ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.listing import Listing, pages_of
from durastore.objectstore.multipart import check_parts
from durastore.objectstore.port import Body, ListPage, ObjectReader, ObjectStat, OpenUpload, PartReply, WriteReply
from durastore.objectstore.span import checked_span

__all__ = ["MemoryStore"]

_PAGE_KEYS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    data: bytes
    metadata: tuple[tuple[str, str], ...]
    crc64nvme: str
    etag: str
    modified_s: float


@dataclass(slots=True, kw_only=True)
class _Upload:
    key: ObjectKey
    metadata: Mapping[str, str]
    begun_s: float
    parts: dict[int, tuple[PartReply, bytes]] = field(default_factory=dict)


class MemoryStore:
    """`ObjectStore` over a dictionary. Thread-safe. Writing a key again replaces the object, as S3 does."""

    _by_name: dict[str, MemoryStore] = {}  # noqa: RUF012  # one registry a process is what `named` promises
    _registry_lock = threading.Lock()

    def __init__(self, name: str = "", *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._name = name or secrets.token_hex(8)
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[ObjectKey, _Object] = {}
        self._uploads: dict[str, _Upload] = {}

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The one store of this name in this process."""
        with cls._registry_lock:
            return cls._by_name.setdefault(name, cls(name))

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r})"

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    @property
    def failure_domain(self) -> str:
        return f"memory:{self._name}"

    def fresh_reader(self) -> ObjectReader:
        return self

    def close(self) -> None:
        """Nothing to let go of: a memory store lives as long as its process."""

    def check_bucket(self) -> None:
        """Always there."""

    def head(self, key: ObjectKey) -> ObjectStat:
        return self._stat(key, self._object(key))

    def fetch(
        self,
        key: ObjectKey,
        *,
        offset: int = 0,
        length: int | None = None,
        if_match: str | None = None,
        version_id: str | None = None,
    ) -> bytes:
        if version_id is not None:
            raise ObjectAbsent(f"get {key}: no such version", status=404, server_code="NoSuchVersion")
        found = self._object(key)
        if if_match is not None and if_match != found.etag:
            raise RequestRefused(
                f"get {key}: the object has another etag", status=412, server_code="PreconditionFailed"
            )
        start, stop = checked_span(key, len(found.data), offset=offset, length=length)
        return found.data[start:stop]

    def fetch_chunks(
        self, key: ObjectKey, *, chunk_bytes: int = 1 << 20, version_id: str | None = None
    ) -> Iterator[bytes]:
        if version_id is not None:
            raise ObjectAbsent(f"get {key}: no such version", status=404, server_code="NoSuchVersion")
        data = self._object(key).data
        for start in range(0, len(data), chunk_bytes):
            yield data[start : start + chunk_bytes]

    def list(self, prefix: str, *, start_after: str | None = None) -> Listing:
        return pages_of(self._pages(prefix, start_after), prefix=prefix, start_after=start_after)

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        data = bytes(body)
        with self._lock:
            if if_absent and key in self._objects:
                raise ObjectExists(f"put {key}: an object is there", status=412, server_code="PreconditionFailed")
            return self._keep(key, data, crc64nvme=crc64nvme, metadata=metadata)

    def create_upload(self, key: ObjectKey, *, metadata: Mapping[str, str]) -> str:
        upload_id = secrets.token_hex(16)
        with self._lock:
            self._uploads[upload_id] = _Upload(key=key, metadata=dict(metadata), begun_s=self._now_s())
        return upload_id

    def upload_part(self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str) -> PartReply:
        data = bytes(body)
        real = _checked_crc(data, crc64nvme, title=f"upload part {number} of {key}")
        reply = PartReply(number=number, etag=f'"{real}-{len(data)}"', size_bytes=len(data), crc64nvme=real)
        with self._lock:
            self._upload(key, upload_id).parts[number] = (reply, data)
        return reply

    def complete_upload(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> WriteReply:
        with self._lock:
            upload = self._upload(key, upload_id)
            check_parts(
                key, parts, held={number: reply for number, (reply, _) in upload.parts.items()}, size_bytes=size_bytes
            )
            data = b"".join(upload.parts[part.number][1] for part in parts)
            reply = self._keep(key, data, crc64nvme=crc64nvme, metadata=upload.metadata)
            self._uploads.pop(upload_id)
            return reply

    def abort_upload(self, key: ObjectKey, upload_id: str) -> None:
        with self._lock:
            self._uploads.pop(upload_id, None)

    def list_parts(self, key: ObjectKey, upload_id: str) -> tuple[PartReply, ...]:
        with self._lock:
            held = self._upload(key, upload_id).parts
            return tuple(held[number][0] for number in sorted(held))

    def list_uploads(self, prefix: str) -> tuple[OpenUpload, ...]:
        now_s = self._now_s()
        with self._lock:
            return tuple(
                OpenUpload(key=upload.key, upload_id=upload_id, initiated_s=upload.begun_s, server_time_s=now_s)
                for upload_id, upload in self._uploads.items()
                if upload.key.text.startswith(prefix)
            )

    def _object(self, key: ObjectKey) -> _Object:
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise ObjectAbsent(f"{key}: no such object", status=404, server_code="NoSuchKey")
        return found

    def _upload(self, key: ObjectKey, upload_id: str) -> _Upload:
        upload = self._uploads.get(upload_id)
        if upload is None or upload.key != key:
            raise RequestRefused(f"upload of {key}: no such upload", status=404, server_code="NoSuchUpload")
        return upload

    def _keep(self, key: ObjectKey, data: bytes, *, crc64nvme: str | None, metadata: Mapping[str, str]) -> WriteReply:
        real = _checked_crc(data, crc64nvme, title=f"put {key}")
        self._objects[key] = _Object(
            data=data,
            metadata=tuple(sorted((name.lower(), value) for name, value in metadata.items())),
            crc64nvme=real,
            etag=f'"{real}-{len(data)}"',
            modified_s=self._now_s(),
        )
        return WriteReply(etag=self._objects[key].etag, server_time_s=self._now_s())

    def _stat(self, key: ObjectKey, found: _Object) -> ObjectStat:
        return ObjectStat(
            key=key,
            size_bytes=len(found.data),
            etag=found.etag,
            crc64nvme=found.crc64nvme,
            metadata=found.metadata,
            server_time_s=self._now_s(),
            last_modified_s=found.modified_s,
        )

    def _pages(self, prefix: str, start_after: str | None) -> Iterator[ListPage]:
        with self._lock:
            objects = sorted(self._objects.items(), key=lambda item: item[0].text.encode())
        rows = [
            ObjectStat(key=key, size_bytes=len(found.data), etag=found.etag, last_modified_s=found.modified_s)
            for key, found in objects
            if key.text.startswith(prefix) and (start_after is None or key.text.encode() > start_after.encode())
        ]
        for start in range(0, len(rows), _PAGE_KEYS):
            yield rows[start : start + _PAGE_KEYS]

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9


def _checked_crc(data: bytes, claimed: str | None, *, title: str) -> str:
    real = crc64nvme_b64(data)
    if claimed and claimed != real:
        raise RequestRefused(f"{title}: the bytes have another CRC64NVME", status=400, server_code="BadDigest")
    return real
