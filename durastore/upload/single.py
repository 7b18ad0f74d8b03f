"""Sending a small pack in one PUT.

Duty: read, check against the seal, send, and settle doubtful answers. Must never send bytes that are not the sealed
ones, and must never take 412 for success without having looked.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from durastore.errors import (
    CredentialsRefused,
    ObjectExists,
    OverloadedEndpoint,
    PermissionRefused,
    RequestRefused,
    UnknownAnswer,
)
from durastore.objectstore.port import Body
from durastore.upload.calls import Request
from durastore.upload.context import UploadContext
from durastore.upload.job import UploadJob, UploadReply
from durastore.upload.settle import conflict, fetch_settlement
from durastore.upload.source import PackSource, check_body

__all__ = ["send_single"]


async def send_single(job: UploadJob, source: PackSource | None, *, context: UploadContext) -> UploadReply:
    """The endpoint's answer to one whole PUT, of the job's own bytes where there is no `source`. Safe to repeat: same
    bytes, same key, same write id.

    Every retry sends the complete body from memory. Raises `IntegrityError` before anything is sent if the file is not
    what was sealed, and after a refused create-only PUT if other bytes lie under the key.
    """

    def load(source: PackSource) -> memoryview:
        source.rewind()
        body = source.read_next(job.size_bytes).body
        source.finish()
        return body

    await context.budget.acquire(job.size_bytes)
    try:
        # hashing a body takes a fraction of the way to another thread and back
        body = check_body(job) if source is None else await context.offload.run(partial(load, source))
        put = _Put(job, body, context=context)
        request = Request(what=f"PUT of {job.key}", is_write=True, body_bytes=job.size_bytes)
        reply = await context.calls.run(request, put)
    finally:
        context.budget.release(job.size_bytes)
    context.observer.emit("upload.sent", size_bytes=job.size_bytes)
    return replace(reply, part_bytes=0 if reply.settled_by == "answer" else None)


class _Put:
    """One attempt a call; remembers whether an earlier attempt may have been carried out."""

    def __init__(self, job: UploadJob, body: Body, *, context: UploadContext) -> None:
        self._job = job
        self._body = body
        self._transport = context.transport
        self._create_only = context.create_only
        self._is_in_doubt = False

    async def __call__(self) -> UploadReply:
        job = self._job
        if self._is_in_doubt:
            try:
                settled = await fetch_settlement(self._transport, job)
            except PermissionRefused:
                settled = None  # without list permission an absent key answers 403: sending again settles it too
            if settled is not None:
                return settled
        self._is_in_doubt = True
        is_create_only = self._create_only.is_wanted and not job.is_overwriting
        try:
            answer = await self._transport.put(
                job.key, self._body, crc64nvme=job.crc64nvme, metadata=job.metadata(), if_absent=is_create_only
            )
        except ObjectExists:
            if job.is_overwriting:
                raise conflict(job, "holds a wrong object that this store does not replace") from None
            settled = await fetch_settlement(self._transport, job)
            if settled is None:
                raise UnknownAnswer(f"{job.key} exists by one answer and is absent by the next") from None
            return settled
        except (OverloadedEndpoint, RequestRefused, CredentialsRefused) as exc:
            self._is_in_doubt = False  # told, not guessed: nothing was stored
            if is_create_only and exc.facts.get("server_code") == "NotImplemented":
                self._create_only.is_wanted = False
                return await self()
            raise
        return UploadReply(
            etag=answer.etag,
            version_id=answer.version_id,
            server_time_s=answer.server_time_s,
            write_id=job.write_id,
            settled_by="answer",
        )
