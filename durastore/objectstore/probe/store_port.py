"""The probe's port over an `ObjectStore`, for stores that are no S3 endpoint (a directory, memory).

Duty: translate requests and refusals one to one; what the store's port cannot express is answered as not implemented,
so nothing is concluded from it. Must never answer for the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from durastore.errors import DurastoreError
from durastore.model import ObjectKey
from durastore.objectstore.port import ObjectStat, ObjectStore, PartReply, WriteReply
from durastore.objectstore.probe.port import (
    NO_CLAIMS,
    NO_CONDITION,
    Answer,
    Claims,
    Condition,
    ListedPage,
    ListQuery,
    PartClaim,
    WholeClaim,
)
from durastore.objectstore.probe.result import ChecksumKind

__all__ = ["StorePort"]

_CRC = ChecksumKind.CRC64NVME
_NOT_OFFERED = Answer(status=501, code="NotImplemented")


class StorePort:
    """`ProbePort` over `store`, which stays the caller's to close."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._sizes: dict[str, dict[int, int]] = {}
        self.endpoint = store.failure_domain
        self.bucket = store.url
        self.account = hashlib.sha256(store.url.encode()).hexdigest()[:32]

    def close(self) -> None:
        """Nothing of its own to let go of."""

    def put(self, key: str, body: bytes, *, claims: Claims = NO_CLAIMS, condition: Condition = NO_CONDITION) -> Answer:
        if condition.if_match is not None or not set(claims) <= {_CRC}:
            return _NOT_OFFERED
        return _answered(
            lambda: _written(
                self._store.put(
                    ObjectKey(key),
                    body,
                    crc64nvme=claims.get(_CRC),
                    metadata={},
                    if_absent=condition.is_create_only,
                )
            )
        )

    def put_truncated(self, key: str, body: bytes, *, sent_bytes: int) -> Answer:
        del key, body, sent_bytes
        return _NOT_OFFERED

    def head(self, key: str) -> Answer:
        def ask() -> Answer:
            reader = self._store.fresh_reader()
            try:
                return _looked(reader.head(ObjectKey(key)))
            finally:
                if reader is not self._store:
                    reader.close()

        return _answered(ask)

    def get(self, key: str, *, span: tuple[int, int] | None = None, condition: Condition = NO_CONDITION) -> Answer:
        start, stop = span if span is not None else (0, None)

        def ask() -> Answer:
            length = None if stop is None else stop - start
            data = self._store.fetch(ObjectKey(key), offset=start, length=length, if_match=condition.if_match)
            if stop is None:
                return Answer(status=200, body=data)
            size_bytes = self._store.head(ObjectKey(key)).size_bytes
            return Answer(status=206, body=data, content_range=f"bytes {start}-{stop - 1}/{size_bytes}")

        return _answered(ask)

    def create_upload(self, key: str, *, kind: ChecksumKind | None) -> Answer:
        if kind not in (None, _CRC):
            return _NOT_OFFERED

        def ask() -> Answer:
            upload_id = self._store.create_upload(ObjectKey(key), metadata={})
            self._sizes[upload_id] = {}
            return Answer(status=200, upload_id=upload_id)

        return _answered(ask)

    def upload_part(self, key: str, upload_id: str, *, number: int, body: bytes, claims: Claims) -> Answer:
        if not set(claims) <= {_CRC}:
            return _NOT_OFFERED

        def ask() -> Answer:
            claimed = claims.get(_CRC, "")
            reply = self._store.upload_part(ObjectKey(key), upload_id, number=number, body=body, crc64nvme=claimed)
            self._sizes[upload_id][number] = reply.size_bytes
            return Answer(status=200, etag=reply.etag)

        return _answered(ask)

    def complete_upload(self, key: str, upload_id: str, *, parts: Sequence[PartClaim], whole: WholeClaim) -> Answer:
        sizes = self._sizes.get(upload_id, {})
        replies = [
            PartReply(
                number=part.number,
                etag=part.etag,
                size_bytes=sizes.get(part.number, 0),
                crc64nvme=part.claims.get(_CRC, ""),
            )
            for part in parts
        ]
        size_bytes = sum(sizes.values()) if whole.size_bytes is None else whole.size_bytes
        return _answered(
            lambda: _written(
                self._store.complete_upload(
                    ObjectKey(key), upload_id, parts=replies, size_bytes=size_bytes, crc64nvme=whole.crc64nvme or ""
                )
            )
        )

    def abort_upload(self, key: str, upload_id: str) -> Answer:
        def ask() -> Answer:
            self._store.abort_upload(ObjectKey(key), upload_id)
            return Answer(status=204)

        return _answered(ask)

    def list_page(self, query: ListQuery) -> Answer:
        """The store pages by itself, so everything comes as one page; its order is passed on unchanged."""

        def ask() -> Answer:
            pages = self._store.list(query.prefix, start_after=query.start_after)
            keys = tuple(stat.key.text for page in pages for stat in page)
            return Answer(status=200, page=ListedPage(keys=keys, is_truncated=False, next_token=None))

        return _answered(ask)

    def fetch_versioning(self) -> Answer:
        return _NOT_OFFERED

    def fetch_lifecycle(self) -> Answer:
        """Neither a directory nor memory has rules that take files away."""
        return Answer(status=200, rules=())


def _answered(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except DurastoreError as exc:
        status = exc.facts.get("status")
        code = str(exc.facts.get("server_code") or exc.code)
        return Answer(status=status if isinstance(status, int) else None, code=code)


def _written(reply: WriteReply) -> Answer:
    return Answer(status=200, etag=reply.etag, version_id=reply.version_id, server_time_s=reply.server_time_s)


def _looked(stat: ObjectStat) -> Answer:
    return Answer(
        status=200,
        etag=stat.etag,
        size_bytes=stat.size_bytes,
        checksums={} if stat.crc64nvme is None else {_CRC: stat.crc64nvme},
        version_id=stat.version_id,
        server_time_s=stat.server_time_s,
    )
