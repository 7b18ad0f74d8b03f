"""The `threads` transport: the synchronous object store behind the asynchronous port.

Duty: run each call of an `ObjectStore` (boto3, directory, memory) on a bounded pool. Must never keep the loop waiting,
and never abort a multipart upload while one of its parts is still being sent by a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from durastore.model import ObjectKey
from durastore.objectstore.port import Body, ObjectStat, ObjectStore, PartReply, WriteReply
from durastore.upload.port import Transport, TransportFactory

__all__ = ["ThreadTransport", "threads_transport"]

T = TypeVar("T")
_LEAVE_S = 5.0  # what requests that nobody waits for any more get before their threads are left to themselves


class ThreadTransport:
    """`Transport` over a sync store. A cancelled call leaves its thread running until the store's timeouts end it."""

    def __init__(self, store: ObjectStore, *, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._pool = pool
        self._lock = threading.Lock()
        self._running: dict[Future[Any], str | None] = {}

    async def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str, metadata: Mapping[str, str], if_absent: bool
    ) -> WriteReply:
        put = partial(self._store.put, key, body, crc64nvme=crc64nvme, metadata=metadata, if_absent=if_absent)
        return await self._call(put)

    async def create(self, key: ObjectKey, *, metadata: Mapping[str, str]) -> str:
        return await self._call(partial(self._store.create_upload, key, metadata=metadata))

    async def upload_part(
        self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str
    ) -> PartReply:
        send = partial(self._store.upload_part, key, upload_id, number=number, body=body, crc64nvme=crc64nvme)
        return await self._call(send, upload_id=upload_id)

    async def complete(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> WriteReply:
        complete = partial(
            self._store.complete_upload, key, upload_id, parts=parts, size_bytes=size_bytes, crc64nvme=crc64nvme
        )
        return await self._call(complete)

    async def abort(self, key: ObjectKey, upload_id: str) -> None:
        await self._ended(lambda of: of == upload_id, timeout_s=None)
        await self._call(partial(self._store.abort_upload, key, upload_id))

    async def head(self, key: ObjectKey) -> ObjectStat:
        return await self._call(partial(self._store.head, key))

    async def list_parts(self, key: ObjectKey, upload_id: str) -> list[PartReply]:
        return await self._call(lambda: list(self._store.list_parts(key, upload_id)))

    async def leave(self) -> None:
        """Gives requests that are still under way a moment to end."""
        await self._ended(lambda of: True, timeout_s=_LEAVE_S)

    async def _call(self, work: Callable[[], T], *, upload_id: str | None = None) -> T:
        running = self._pool.submit(work)
        with self._lock:
            self._running[running] = upload_id
        running.add_done_callback(self._drop)
        return await asyncio.wrap_future(running)

    def _drop(self, ended: Future[Any]) -> None:
        with self._lock:
            self._running.pop(ended, None)

    async def _ended(self, is_meant: Callable[[str | None], bool], *, timeout_s: float | None) -> None:
        with self._lock:
            meant = [running for running, of in self._running.items() if is_meant(of)]
        if not meant:
            return
        loop = asyncio.get_running_loop()
        all_ended = asyncio.Event()
        left = len(meant)

        def count() -> None:
            nonlocal left
            left -= 1
            if not left:
                all_ended.set()

        def tell(_: Future[Any]) -> None:
            try:
                loop.call_soon_threadsafe(count)
            except RuntimeError:
                return  # the loop was closed meanwhile: nobody waits any more

        for running in meant:
            running.add_done_callback(tell)
        try:
            async with asyncio.timeout(timeout_s):
                await all_ended.wait()
        except TimeoutError:
            return


def threads_transport(store: ObjectStore, *, max_requests: int) -> TransportFactory:
    """A factory of transports over `store`, with `max_requests` threads. The store stays the caller's to close."""

    @asynccontextmanager
    async def open_transport() -> AsyncIterator[Transport]:
        pool = ThreadPoolExecutor(max_requests, thread_name_prefix="durastore-upload")
        transport = ThreadTransport(store, pool=pool)
        try:
            yield transport
        finally:
            await transport.leave()
            # Not waited for: a request that hangs must not hold up `close`; its outcome is settled at the next attempt.
            pool.shutdown(wait=False, cancel_futures=True)

    return open_transport
