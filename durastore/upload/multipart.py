"""Sending a large pack in parts, and going on with an upload that was interrupted.

Duty: one multipart upload from its session to the settled Complete. The whole file is read and hashed in order even
where parts are already there, so Complete is only ever asked for the sealed bytes. Must never complete what was not
proven equal to the seal, and must never end a session because of an error that may pass, or of a cancellation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from durastore.errors import (
    CredentialsRefused,
    DurastoreError,
    IntegrityError,
    PermissionRefused,
    RequestRefused,
    UnknownAnswer,
)
from durastore.formats.upload_session import MAX_PARTS, PartRecord, UploadSession
from durastore.objectstore.port import PartReply
from durastore.upload.calls import Request
from durastore.upload.complete import Complete, SessionGone, is_upload_gone
from durastore.upload.context import UploadContext
from durastore.upload.job import PartPlan, UploadJob, UploadReply, plan_parts
from durastore.upload.parts import PartSender
from durastore.upload.settle import fetch_settlement
from durastore.upload.source import PackSource

__all__ = ["send_multipart"]

_STARTS = 3  # beginnings within one job before the endpoint's forgetting counts as its answer


async def send_multipart(job: UploadJob, source: PackSource, *, context: UploadContext) -> UploadReply:
    """Goes on with `job.session` if there is one, else begins. Safe to repeat with the session as recorded.

    Raises `IntegrityError` where the file is not what was sealed (the upload is aborted, nothing completed) or where
    other bytes lie under the key. After an error that may pass, and after a cancellation, the session stays recorded.
    """
    session = job.session
    for _ in range(_STARTS):
        try:
            reply = await _Multipart(job, source, context=context).run(session)
        except SessionGone:
            session = None
        else:
            context.observer.emit("upload.sent", size_bytes=job.size_bytes)
            return reply
    raise UnknownAnswer(f"the endpoint lost {_STARTS} multipart uploads of {job.key} before they were complete")


class _Multipart:
    """One session's life."""

    def __init__(self, job: UploadJob, source: PackSource, *, context: UploadContext) -> None:
        self._job = job
        self._source = source
        self._context = context
        self._transport = context.transport

    async def run(self, recorded: UploadSession | None) -> UploadReply:
        session = await self._begin() if recorded is None else await self._resume(recorded)
        if isinstance(session, UploadReply):
            return session
        try:
            await self._context.offload.run(self._source.rewind)
            parts = await PartSender(self._job, self._source, context=self._context, session=session).run()
            await self._context.offload.run(self._source.finish)
            reply = await self._complete(session, parts)
            return replace(reply, part_bytes=session.part_bytes) if reply.settled_by == "answer" else reply
        except SessionGone:
            await self._forget()
            raise
        except RequestRefused as exc:
            await self._give_up(session)
            if recorded is None:
                raise
            raise SessionGone from exc  # a resumed upload may be refused for its past: once more from the start
        except IntegrityError:
            await self._give_up(session)
            raise

    async def _begin(self) -> UploadSession:
        job = self._job
        limits = self._context.limits
        plan = plan_parts(job.size_bytes, part_bytes=limits.part_bytes, least_part_bytes=limits.least_part_bytes)
        create = partial(self._transport.create, job.key, metadata=job.metadata())
        upload_id = await self._context.calls.run(Request(what=f"multipart upload of {job.key}", is_write=True), create)
        session = UploadSession(upload_id=upload_id, part_bytes=plan.part_bytes)
        try:
            # Recorded before the first part, so that no process leaves parts behind that nobody knows of.
            await self._context.offload.record(partial(job.on_session, session))
        except Exception:
            await self._abort(upload_id)
            raise
        return session

    async def _resume(self, recorded: UploadSession) -> UploadSession | UploadReply:
        """The session with the parts the endpoint still has, a new one, or the reply if it is complete already."""
        if -(-self._job.size_bytes // recorded.part_bytes) > MAX_PARTS:
            await self._give_up(recorded)
            return await self._begin()
        try:
            return await self._recall(recorded)
        except SessionGone:
            # A Complete whose answer was lost, perhaps by an earlier process, looks just like this.
            look = partial(fetch_settlement, self._transport, self._job)
            settled = await self._context.calls.run(Request(what=f"HEAD of {self._job.key}", is_write=False), look)
        if settled is not None:
            return settled
        await self._forget()
        return await self._begin()

    async def _recall(self, recorded: UploadSession) -> UploadSession:
        plan = PartPlan(size_bytes=self._job.size_bytes, part_bytes=recorded.part_bytes)
        usable = tuple(p for p in recorded.parts if p.number <= plan.count and p.size_bytes == plan.length(p.number))
        ask = partial(self._transport.list_parts, self._job.key, recorded.upload_id)
        try:
            listed = await self._context.calls.once(Request(what=f"parts of {self._job.key}", is_write=False), ask)
        except DurastoreError as exc:
            if is_upload_gone(exc):
                raise SessionGone from exc
            if isinstance(exc, CredentialsRefused) and not isinstance(exc, PermissionRefused):
                raise
            # Not able to list is no reason to send all again: what was recorded was acknowledged, and Complete, which
            # names every part with its etag and the whole size and checksum, has the last word.
            kept = usable
        else:
            there = {(reply.number, reply.etag, reply.size_bytes) for reply in listed}
            kept = tuple(p for p in usable if (p.number, p.etag, p.size_bytes) in there)
        self._context.observer.emit("upload.resumed", kept=len(kept), of=plan.count)
        return UploadSession(upload_id=recorded.upload_id, part_bytes=recorded.part_bytes, parts=kept)

    async def _complete(self, session: UploadSession, parts: tuple[PartRecord, ...]) -> UploadReply:
        replies = tuple(
            PartReply(number=p.number, etag=p.etag, size_bytes=p.size_bytes, crc64nvme=p.crc64nvme) for p in parts
        )
        complete = Complete(self._job, transport=self._transport, upload_id=session.upload_id, parts=replies)
        return await self._context.calls.run(Request(what=f"Complete of {self._job.key}", is_write=True), complete)

    # --- ending without an object ----------------------------------------------------------------------------------

    async def _give_up(self, session: UploadSession) -> None:
        """Aborts. Where that fails the record stays, so that a later attempt can still end the upload."""
        if await self._abort(session.upload_id):
            await self._forget()

    async def _forget(self) -> None:
        await self._context.offload.record(partial(self._job.on_session, None))

    async def _abort(self, upload_id: str) -> bool:
        abort = partial(self._transport.abort, self._job.key, upload_id)
        try:
            await self._context.calls.once(Request(what=f"abort of {self._job.key}", is_write=True), abort)
        except DurastoreError as exc:
            if not is_upload_gone(exc):
                # The error that led here is the one to raise; parts left behind cost space, never data.
                self._context.observer.emit("upload.abort-failed", error=exc.code)
                return False
        return True
