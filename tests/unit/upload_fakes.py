"""What the upload tests share: jobs over real files that remember what was recorded, and a transport in memory."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from durastore.errors import ObjectAbsent, ObjectExists, RequestRefused
from durastore.formats.upload_session import PartRecord, UploadSession
from durastore.model import Digest, ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.port import Body, ObjectStat, PartReply, WriteReply
from durastore.upload.job import UploadJob

__all__ = ["FakeTransport", "Pack"]


@dataclass(kw_only=True)
class Pack:
    """A sealed file and what the engine had recorded of its upload, as the journal would keep it."""

    path: Path
    data: bytes
    key: ObjectKey
    session: UploadSession | None = None
    sessions: list[UploadSession | None] = field(default_factory=list)
    opened: int = 0
    write_id: str = "write-1"

    @classmethod
    def make(cls, folder: Path, name: str, data: bytes) -> Pack:
        path = folder / name
        path.write_bytes(data)
        return cls(path=path, data=data, key=ObjectKey(f"p/packs/{name}"), write_id=f"write-{name}")

    def open_source(self) -> int:
        self.opened += 1
        return os.open(self.path, os.O_RDONLY)

    def on_session(self, session: UploadSession | None) -> None:
        self.session = session
        self.sessions.append(session)

    def on_part(self, part: PartRecord) -> None:
        assert self.session is not None, "a part was told of before its session was recorded"
        others = [
            known for known in self.session.parts if known.number != part.number
        ]  # sent again, it takes its place
        self.session = replace(self.session, parts=tuple(sorted([*others, part], key=lambda known: known.number)))

    def job(self, *, is_overwriting: bool = False) -> UploadJob:
        return UploadJob(
            open_source=self.open_source,
            key=self.key,
            size_bytes=len(self.data),
            digest=Digest.of(self.data),
            crc64nvme=crc64nvme_b64(self.data),
            write_id=self.write_id,
            session=self.session,
            on_session=self.on_session,
            on_part=self.on_part,
            is_overwriting=is_overwriting,
        )


Hook = Callable[[str, int], Awaitable[None]]


class FakeTransport:
    """A bucket in memory. `before(op, nth)` runs before each request and `after` behind it: what they raise is the
    answer, so an error from `after` is a lost answer."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.uploads: dict[str, tuple[dict[str, str], dict[int, bytes]]] = {}
        self.calls: Counter[str] = Counter()
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.bytes_now = 0
        self.bytes_peak = 0
        self.is_open = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[FakeTransport]:
        self.is_open = True
        try:
            yield self
        finally:
            self.is_open = False

    async def _turn(self, op: str) -> int:
        assert self.is_open
        self.calls[op] += 1
        nth = self.calls[op]
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(op, nth)
        return nth

    async def _told(self, op: str, nth: int) -> None:
        if self.after is not None:
            await self.after(op, nth)

    async def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str, metadata: Mapping[str, str], if_absent: bool
    ) -> WriteReply:
        nth = await self._turn("put")
        if if_absent and key.text in self.objects:
            raise ObjectExists("scripted: exists", server_code="PreconditionFailed")
        assert crc64nvme == crc64nvme_b64(body)
        self.objects[key.text] = (bytes(body), dict(metadata))
        await self._told("put", nth)
        return WriteReply(etag=f'"{nth}"')

    async def create(self, key: ObjectKey, *, metadata: Mapping[str, str]) -> str:
        nth = await self._turn("create")
        self.uploads[f"u{nth}"] = (dict(metadata), {})
        await self._told("create", nth)
        return f"u{nth}"

    def _upload(self, upload_id: str) -> tuple[dict[str, str], dict[int, bytes]]:
        if upload_id not in self.uploads:
            raise RequestRefused("scripted: no such upload", status=404, server_code="NoSuchUpload")
        return self.uploads[upload_id]

    async def upload_part(
        self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str
    ) -> PartReply:
        self.bytes_now += len(body)
        self.bytes_peak = max(self.bytes_peak, self.bytes_now)
        try:
            nth = await self._turn("part")
            assert crc64nvme == crc64nvme_b64(body)
            self._upload(upload_id)[1][number] = bytes(body)
            await self._told("part", nth)
        finally:
            self.bytes_now -= len(body)
        return PartReply(number=number, etag=f'"{crc64nvme}"', size_bytes=len(body), crc64nvme=crc64nvme)

    async def complete(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> WriteReply:
        nth = await self._turn("complete")
        metadata, held = self._upload(upload_id)
        body = b"".join(held[part.number] for part in parts)
        assert len(body) == size_bytes
        self.objects[key.text] = (body, metadata)
        self.uploads.pop(upload_id)
        await self._told("complete", nth)
        return WriteReply(etag=f'"{nth}-{len(parts)}"')

    async def abort(self, key: ObjectKey, upload_id: str) -> None:
        await self._turn("abort")
        self.uploads.pop(upload_id, None)

    async def head(self, key: ObjectKey) -> ObjectStat:
        await self._turn("head")
        if key.text not in self.objects:
            raise ObjectAbsent("scripted: absent")
        body, metadata = self.objects[key.text]
        return ObjectStat(
            key=key,
            size_bytes=len(body),
            etag='"head"',
            crc64nvme=crc64nvme_b64(body),
            metadata=tuple(sorted(metadata.items())),
        )

    async def list_parts(self, key: ObjectKey, upload_id: str) -> list[PartReply]:
        await self._turn("parts")
        held = self._upload(upload_id)[1]
        return [
            PartReply(number=n, etag=f'"{crc64nvme_b64(body)}"', size_bytes=len(body), crc64nvme="")
            for n, body in sorted(held.items())
        ]
