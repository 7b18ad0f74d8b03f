"""A directory as a bucket: each object is one file at the path its key spells.

Duty: the port's promises on a file system: whole objects only, synced, never overwritten with other bytes, and no key
outside the directory. Must never follow a link, make the bucket directory itself, or drop a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import (
    AmbiguousWrite,
    BucketMissing,
    DiskFailed,
    ObjectAbsent,
    ObjectExists,
    RequestRefused,
    UnknownAnswer,
)
from durastore.fsio.folder import Folder
from durastore.fsio.publish import publish
from durastore.fsio.space import filesystem_of
from durastore.model import ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.directory_notes import Note, NoteBook
from durastore.objectstore.directory_object import HIDDEN, OpenObject, enter, segments_of
from durastore.objectstore.directory_parts import PartBench
from durastore.objectstore.directory_walk import walk_pages
from durastore.objectstore.listing import Listing, pages_of
from durastore.objectstore.port import Body, ObjectReader, ObjectStat, OpenUpload, PartReply, WriteReply
from durastore.objectstore.span import checked_span

__all__ = ["DirectoryStore"]


class DirectoryStore:
    """`ObjectStore` over an existing directory, which is held open. Thread-safe.

    Etags are opaque and follow from the content. What S3 keeps beside an object (metadata, checksum) lies in a hidden
    folder and is believed only while the file is still the one it was written for.
    """

    def __init__(self, root: Path, *, clock: Clock = SYSTEM_CLOCK, is_cache_bypassed: bool = False) -> None:
        try:
            self._root = Folder.open(root)
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise BucketMissing(
                f"{root} is not a directory", hint="make it first: durastore never creates a bucket"
            ) from exc
        self._path = root
        self._clock = clock
        self._is_cache_bypassed = is_cache_bypassed
        self._notes = NoteBook(self._root)
        self._bench = PartBench(root / HIDDEN)

    def __repr__(self) -> str:
        return f"DirectoryStore({self.url!r})"

    @property
    def url(self) -> str:
        return self._path.absolute().as_uri()

    @property
    def failure_domain(self) -> str:
        return replace(filesystem_of(self._path), st_dev=os.fstat(self._root.fd).st_dev).domain

    def fresh_reader(self) -> ObjectReader:
        """Opens the directory anew, and asks the kernel to drop a file's cached pages before it reads them."""
        return DirectoryStore(self._path, clock=self._clock, is_cache_bypassed=True)

    def close(self) -> None:
        self._bench.close()
        self._root.close()

    def check_bucket(self) -> None:
        # The path may since lead elsewhere (unmounted, replaced): writing there would put data on the wrong disk.
        held = os.fstat(self._root.fd)
        try:
            present = os.stat(self._path)
        except OSError as exc:
            raise BucketMissing(f"{self._path}: {exc.strerror}") from exc
        if (held.st_dev, held.st_ino) != (present.st_dev, present.st_ino):
            raise BucketMissing(f"{self._path} is no longer the directory that was opened", hint="is its disk mounted?")

    def head(self, key: ObjectKey) -> ObjectStat:
        with self._opened(key) as found:
            note = self._notes.current(key, found)
        return ObjectStat(
            key=key,
            size_bytes=found.identity.size_bytes,
            etag=note.etag,
            crc64nvme=note.crc64nvme,
            metadata=note.metadata,
            server_time_s=self._now_s(),
            last_modified_s=found.identity.mtime_ns / 1e9,
        )

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
        with self._opened(key) as found:
            if if_match is not None and self._notes.current(key, found).etag != if_match:
                raise RequestRefused(
                    f"get {key}: the object has another etag", status=412, server_code="PreconditionFailed"
                )
            start, stop = checked_span(key, found.identity.size_bytes, offset=offset, length=length)
            return found.read(start, stop)

    def fetch_chunks(
        self, key: ObjectKey, *, chunk_bytes: int = 1 << 20, version_id: str | None = None
    ) -> Iterator[bytes]:
        if version_id is not None:
            raise ObjectAbsent(f"get {key}: no such version", status=404, server_code="NoSuchVersion")
        with self._opened(key) as found:
            for start in range(0, found.identity.size_bytes, chunk_bytes):
                yield found.read(start, min(start + chunk_bytes, found.identity.size_bytes))

    def list(self, prefix: str, *, start_after: str | None = None) -> Listing:
        self.check_bucket()
        pages = walk_pages(self._root, prefix=prefix, start_after=start_after, etag_of=self._notes.noted_etag)
        return pages_of(pages, prefix=prefix, start_after=start_after)

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        """As the port says; and where the key holds other bytes, `ObjectExists` with or without `if_absent`."""
        real = crc64nvme_b64(body)
        if crc64nvme and crc64nvme != real:
            raise RequestRefused(f"put {key}: the bytes have another CRC64NVME", status=400, server_code="BadDigest")
        note = Note.of(real, memoryview(body).nbytes, metadata=metadata)
        return self._create(key, lambda: iter([body]), note=note, is_exclusive=if_absent)

    def create_upload(self, key: ObjectKey, *, metadata: Mapping[str, str]) -> str:
        segments_of(key)
        self.check_bucket()
        try:
            self._root.ensure_child(HIDDEN).close()
            return self._bench.begin(key, metadata, now_s=self._now_s())
        except OSError as exc:
            raise UnknownAnswer(f"create upload of {key}: {exc.strerror}") from exc

    def upload_part(self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str) -> PartReply:
        return self._bench.keep(key, upload_id, number=number, body=body, crc64nvme=crc64nvme)

    def complete_upload(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> WriteReply:
        self._bench.check(key, upload_id, parts=parts, size_bytes=size_bytes, crc64nvme=crc64nvme)
        note = Note.of(crc64nvme, size_bytes, metadata=self._bench.metadata(key, upload_id))
        reply = self._create(key, lambda: self._bench.read(key, upload_id, parts=parts), note=note, is_exclusive=False)
        self._bench.end(key, upload_id)
        return reply

    def abort_upload(self, key: ObjectKey, upload_id: str) -> None:
        self._bench.end(key, upload_id)

    def list_parts(self, key: ObjectKey, upload_id: str) -> tuple[PartReply, ...]:
        return self._bench.parts(key, upload_id)

    def list_uploads(self, prefix: str) -> tuple[OpenUpload, ...]:
        return self._bench.uploads(prefix, now_s=self._now_s())

    def _create(
        self, key: ObjectKey, chunks: Callable[[], Iterator[Body]], *, note: Note, is_exclusive: bool
    ) -> WriteReply:
        self.check_bucket()
        with self._parent(key, is_made=True) as (folder, name):
            try:
                publish(folder, name, chunks=chunks(), expect_size=note.size_bytes)
            except FileExistsError as exc:
                if is_exclusive or not self._holds(key, chunks()):
                    raise ObjectExists(f"put {key}: the directory holds it already", status=412) from exc
            except DiskFailed as exc:
                # The bucket's disk, not the spool's: for the caller a write that did not surely happen.
                raise AmbiguousWrite(f"put {key}: {exc.message}") from exc
        self._note(key, note)
        return WriteReply(etag=note.etag, server_time_s=self._now_s())

    def _note(self, key: ObjectKey, note: Note) -> None:
        with self._opened(key) as found:
            try:
                self._notes.ensure(key, note, identity=found.identity)
            except (DiskFailed, OSError) as exc:
                raise AmbiguousWrite(f"put {key}: the bytes are there, their metadata is not: {exc}") from exc

    def _holds(self, key: ObjectKey, chunks: Iterator[Body]) -> bool:
        """True if the object is there with these bytes: an earlier try whose answer was lost, or an equal put."""
        try:
            with self._opened(key) as found:
                return found.has_bytes(chunks)
        except ObjectAbsent as exc:
            raise RequestRefused(f"put {key}: a folder stands where the key needs a file", status=409) from exc

    @contextmanager
    def _opened(self, key: ObjectKey) -> Iterator[OpenObject]:
        with self._parent(key, is_made=False) as (folder, name), OpenObject.open(folder, name, key=key) as found:
            if self._is_cache_bypassed:
                found.forget_cached()
            yield found

    @contextmanager
    def _parent(self, key: ObjectKey, *, is_made: bool) -> Iterator[tuple[Folder, str]]:
        """The folder that holds the key's last segment, walked from the held root without following a link."""
        *outer, name = segments_of(key)
        folder = self._root
        try:
            for segment in outer:
                inner = enter(folder, segment, key=key, is_made=is_made)
                if folder is not self._root:
                    folder.close()
                folder = inner
            yield folder, name
        finally:
            if folder is not self._root:
                folder.close()

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9
