"""The narrow port through which the upload engine talks to a bucket.

Duty: the asynchronous `Transport` and what its adapters promise. Must never retry (the engine decides that), never
hash, and never offer a way to remove an object: `abort` ends an unfinished upload of our own and touches no object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from durastore.model import ObjectKey
from durastore.objectstore.port import Body, ObjectStat, PartReply, WriteReply

__all__ = ["Transport", "TransportFactory"]


class Transport(Protocol):
    """One connection pool to one bucket, bound to the event loop it was opened on.

    Every call makes one request (`list_parts`: one a page), ends within the adapter's timeouts, and raises only
    classes of `durastore.errors`: those that `durastore.objectstore` gives for the same answer. A cancelled call
    leaves open whether the endpoint acted on it.
    """

    async def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str, metadata: Mapping[str, str], if_absent: bool
    ) -> WriteReply:
        """Writes one object in one request. `AmbiguousWrite` where the answer was lost, `ObjectExists` on 412."""
        ...

    async def create(self, key: ObjectKey, *, metadata: Mapping[str, str]) -> str:
        """Begins a multipart upload and returns its id. Each call begins another one."""
        ...

    async def upload_part(
        self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str
    ) -> PartReply:
        """Sends one part. Safe to repeat: the later one takes the place of the earlier."""
        ...

    async def complete(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> WriteReply:
        """Makes the object out of its parts. `AmbiguousWrite` for a lost answer and for a 200 that is none."""
        ...

    async def abort(self, key: ObjectKey, upload_id: str) -> None:
        """Ends an unfinished upload. Safe to repeat. Adapters first let their own requests of this upload end, since a
        part that arrives after the abort would stay and be paid for."""
        ...

    async def head(self, key: ObjectKey) -> ObjectStat:
        """What the endpoint says of the object. `ObjectAbsent` only where it says that there is none."""
        ...

    async def list_parts(self, key: ObjectKey, upload_id: str) -> list[PartReply]:
        """All parts the endpoint holds of this upload, every page of them."""
        ...


TransportFactory = Callable[[], AbstractAsyncContextManager[Transport]]
"""Called on the engine's loop, once. Leaving the context closes the transport's connections."""
