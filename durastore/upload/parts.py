"""The parts of one multipart upload: read in order, sent side by side, recorded as they are acknowledged.

Duty: `PartSender`. Memory is bounded by the engine's byte budget, which a part holds from before it is read until its
request has ended. Must never skip a part whose bytes differ from what was sent before.
"""

from __future__ import annotations

import asyncio
from functools import partial

from durastore.errors import DurastoreError, IntegrityError
from durastore.formats.upload_session import PartRecord, UploadSession
from durastore.upload.calls import Request
from durastore.upload.complete import SessionGone, is_upload_gone
from durastore.upload.context import UploadContext
from durastore.upload.job import PartPlan, UploadJob
from durastore.upload.source import PackSource, SourceChunk

__all__ = ["PartSender"]


class PartSender:
    """Sends what a session still lacks."""

    def __init__(self, job: UploadJob, source: PackSource, *, context: UploadContext, session: UploadSession) -> None:
        self._job = job
        self._source = source
        self._context = context
        self._session = session
        self._parts = {part.number: part for part in session.parts}
        self._plan = PartPlan(size_bytes=job.size_bytes, part_bytes=session.part_bytes)

    async def run(self) -> tuple[PartRecord, ...]:
        """All parts in order, none missing. On the first failure the other requests of this upload are cancelled and
        the gravest error comes out.
        """
        numbers = range(1, self._plan.count + 1)
        try:
            async with asyncio.TaskGroup() as group:
                for number in numbers:
                    await self._feed(group, number)
        except BaseExceptionGroup as failures:
            raise _gravest(failures) from None
        return tuple(self._parts[number] for number in numbers)

    async def _feed(self, group: asyncio.TaskGroup, number: int) -> None:
        """Reads one part (all are read, so that the digest covers the file) and starts its request if it needs one."""
        budget, size_bytes = self._context.budget, self._plan.length(number)
        await budget.acquire(size_bytes)
        task: asyncio.Task[None] | None = None
        try:
            chunk = await self._context.offload.run(partial(self._source.read_next, size_bytes))
            known = self._parts.get(number)
            if known is None or known.crc64nvme != chunk.crc64nvme:
                task = group.create_task(self._send(number, chunk))
                # Not in the task itself: one that is cancelled before its first step runs none of its code.
                task.add_done_callback(lambda _: budget.release(size_bytes))
        finally:
            if task is None:
                budget.release(size_bytes)

    async def _send(self, number: int, chunk: SourceChunk) -> None:
        job, context = self._job, self._context
        send = partial(
            context.transport.upload_part,
            job.key,
            self._session.upload_id,
            number=number,
            body=chunk.body,
            crc64nvme=chunk.crc64nvme,
        )
        request = Request(what=f"part {number} of {job.key}", is_write=True, body_bytes=len(chunk.body))
        try:
            reply = await context.calls.run(request, send)
        except DurastoreError as exc:
            if is_upload_gone(exc):
                raise SessionGone from exc
            raise
        part = PartRecord(number=number, etag=reply.etag, size_bytes=len(chunk.body), crc64nvme=chunk.crc64nvme)
        self._parts[number] = part
        await context.offload.record(partial(job.on_part, part))
        context.observer.emit("upload.part", number=number, size_bytes=part.size_bytes)


def _gravest(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure to tell of: damage before anything else, then what was raised first."""
    leaves = [_gravest(each) if isinstance(each, BaseExceptionGroup) else each for each in failures.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, IntegrityError)), leaves[0])
