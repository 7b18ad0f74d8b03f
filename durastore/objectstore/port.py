"""What durastore asks of an object store, split by power, and the values that cross that border.

Duty: the protocols every adapter implements and every caller names. A caller asks for the least power it needs; no
protocol has a call that takes an object away. All calls are synchronous, thread-safe and bounded by timeouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from durastore.model import ObjectKey

__all__ = [
    "WRITE_ID",
    "Body",
    "ListPage",
    "MultipartWriter",
    "ObjectLister",
    "ObjectReader",
    "ObjectStat",
    "ObjectStore",
    "ObjectWriter",
    "OpenUpload",
    "PartReply",
    "WriteReply",
]

Body = bytes | bytearray | memoryview

WRITE_ID = "durastore-write-id"
"""Metadata name that carries our write id, by which a lost answer is settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStat:
    """What a store says about one object. Not evidence of its bytes."""

    key: ObjectKey
    size_bytes: int | None
    """None where the answer carried no length: unknown, never 0."""
    etag: str
    """Opaque, exactly as sent (quotes included); empty where none was sent."""
    version_id: str | None = None
    crc64nvme: str | None = None
    """Full-object CRC64NVME as the store tells it, base64; it may merely be what a writer claimed."""
    metadata: tuple[tuple[str, str], ...] = ()
    """User metadata, names in lower case, sorted."""
    storage_class: str | None = None
    is_readable: bool = True
    """False where a GET would be refused although HEAD succeeds (archive classes)."""
    server_time_s: float | None = None
    """The server's own Date, Unix seconds."""
    last_modified_s: float | None = None


ListPage = list[ObjectStat]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReply:
    """What a store answered to a write. Never evidence."""

    etag: str
    version_id: str | None = None
    server_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReply:
    """One part a store acknowledged; `crc64nvme` is empty where nobody told it."""

    number: int
    etag: str
    size_bytes: int
    crc64nvme: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenUpload:
    """A multipart upload that was begun and neither completed nor aborted."""

    key: ObjectKey
    upload_id: str
    initiated_s: float | None
    """When it was begun, by the server's clock, Unix seconds; None where the server does not tell."""
    server_time_s: float | None
    """The server's own Date when it listed it: only by this is an age told."""


class ObjectReader(Protocol):
    """Power to look at single objects. Everything here is safe to repeat."""

    def head(self, key: ObjectKey) -> ObjectStat:
        """What the store says of `key`. `ObjectAbsent` only where it named the key as absent."""
        ...

    def fetch(
        self,
        key: ObjectKey,
        *,
        offset: int = 0,
        length: int | None = None,
        if_match: str | None = None,
        version_id: str | None = None,
    ) -> bytes:
        """Exactly the bytes asked for (`length` None: to the end), or an error; never fewer, never others' range.

        `IntegrityError` where the object is too short or the answer covers another range, `EndpointUnreachable` where
        the connection broke, `RequestRefused` where `if_match` is no longer the object's etag. With `version_id`: of
        that version, also where a newer one or a delete marker hides it; `ObjectAbsent` where there is no such version.
        """
        ...

    def fetch_chunks(
        self, key: ObjectKey, *, chunk_bytes: int = 1 << 20, version_id: str | None = None
    ) -> Iterator[bytes]:
        """The whole object in order, in pieces of about `chunk_bytes`. An error, never an early end, if bytes lack."""
        ...

    def close(self) -> None:
        """Let go of connections. Safe to repeat."""
        ...


class ObjectLister(Protocol):
    """Power to list. A listing is a pre-filter and never evidence."""

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ListPage]:
        """Pages of the objects whose key starts with `prefix`, each once, in one consistent ascending order.

        `InventoryIncomplete` on a repeated page, an order that jumps back, or an end the store did not announce.
        Metadata and checksums are not part of a listing. Safe to repeat.
        """
        ...


class ObjectWriter(Protocol):
    """Power to create single objects."""

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        """Create `key` with exactly `body`. Safe to repeat because a key carries the digest of its bytes (INV-4).

        `ObjectExists` where `if_absent` met an existing object, `AmbiguousWrite` where the answer was lost.
        """
        ...


class MultipartWriter(Protocol):
    """Power to create one object from parts."""

    def create_upload(self, key: ObjectKey, *, metadata: Mapping[str, str]) -> str:
        """Begin an upload; returns its id. Repeating begins another one."""
        ...

    def upload_part(self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str) -> PartReply:
        """Send one part; sending a number again takes the place of the earlier one. `number` is 1 to 10,000."""
        ...

    def complete_upload(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> WriteReply:
        """Join the parts into the object. `AmbiguousWrite` on any answer that is not plainly success or refusal."""
        ...

    def abort_upload(self, key: ObjectKey, upload_id: str) -> None:
        """Give an unfinished upload up. No object changes. An upload that is gone already is no error."""
        ...

    def list_parts(self, key: ObjectKey, upload_id: str) -> tuple[PartReply, ...]:
        """All parts the store holds for this upload, over all pages.

        A number can come more than once: some servers go on listing a part that was sent again. The etag tells which
        one an acknowledgement spoke of.
        """
        ...

    def list_uploads(self, prefix: str) -> tuple[OpenUpload, ...]:
        """The unfinished uploads of keys that start with `prefix`, over all pages, as far as the store tells of them.

        Some endpoints list only those of an exact key, or none: what is not here may still be there. Safe to repeat.
        """
        ...


class ObjectStore(ObjectReader, ObjectLister, ObjectWriter, MultipartWriter, Protocol):
    """One bucket with all powers; only the composition root should hold it as such."""

    @property
    def url(self) -> str:
        """The bucket as a URL, without prefix and without secrets."""
        ...

    @property
    def failure_domain(self) -> str:
        """Two places with one failure domain are lost together: `host:<endpoint>`, or as `Filesystem.domain`."""
        ...

    def fresh_reader(self) -> ObjectReader:
        """A reader that shares no connection with this store or an earlier reader. The caller closes it."""
        ...

    def check_bucket(self) -> None:
        """Return if the bucket answers; else `BucketMissing`, `CredentialsRefused`, `PermissionRefused`, ..."""
        ...
