"""Asking for the object once all its parts are there, and finding out what a doubtful answer meant.

Duty: one Complete attempt a call, settled by a look at the object. Must never take a 200 for success without a look:
an endpoint that forgot a part may answer it.
"""

from __future__ import annotations

from durastore.errors import (
    CredentialsRefused,
    DurastoreError,
    ObjectAbsent,
    ObjectExists,
    OverloadedEndpoint,
    PermissionRefused,
    RequestRefused,
    UnknownAnswer,
)
from durastore.objectstore.port import PartReply
from durastore.upload.job import UploadJob, UploadReply
from durastore.upload.port import Transport
from durastore.upload.settle import conflict, damaged, fetch_settlement

__all__ = ["Complete", "SessionGone", "is_upload_gone"]


class SessionGone(Exception):
    """The endpoint does not know the multipart upload, and there is no object either. Never leaves this package."""


def is_upload_gone(error: DurastoreError) -> bool:
    """True for NoSuchUpload and for a 404 that can only mean it."""
    return isinstance(error, ObjectAbsent) or error.facts.get("server_code") == "NoSuchUpload"


class Complete:
    """One attempt a call; remembers whether an earlier attempt may have been carried out."""

    def __init__(self, job: UploadJob, *, transport: Transport, upload_id: str, parts: tuple[PartReply, ...]) -> None:
        self._job = job
        self._transport = transport
        self._upload_id = upload_id
        self._parts = parts
        self._is_in_doubt = False

    async def __call__(self) -> UploadReply:
        """Raises `SessionGone` where neither upload nor object is there, `IntegrityError` where the object that came
        of it has another size (or other bytes lie there)."""
        if self._is_in_doubt:
            settled = await self._look_if_allowed()
            if settled is not None:
                return settled
        self._is_in_doubt = True
        job = self._job
        try:
            answer = await self._transport.complete(
                job.key, self._upload_id, parts=self._parts, size_bytes=job.size_bytes, crc64nvme=job.crc64nvme
            )
        except (OverloadedEndpoint, RequestRefused, CredentialsRefused, ObjectAbsent, ObjectExists) as exc:
            if not is_upload_gone(exc) and not isinstance(exc, ObjectExists):
                self._is_in_doubt = False  # told, not guessed: nothing was made
                raise
            if isinstance(exc, ObjectExists) and job.is_overwriting:
                raise conflict(job, "holds a wrong object that this store does not replace") from None
            settled = await fetch_settlement(self._transport, job)
            if settled is None:
                raise SessionGone from exc
            return settled
        await self._look_at_result()
        return UploadReply(
            etag=answer.etag,
            version_id=answer.version_id,
            server_time_s=answer.server_time_s,
            write_id=job.write_id,
            settled_by="answer",
        )

    async def _look_at_result(self) -> None:
        """The parts were made into an object of the right size: an endpoint that lost one may have said 200 (B47)."""
        job = self._job
        try:
            stat = await self._transport.head(job.key)
        except ObjectAbsent:
            raise UnknownAnswer(f"{job.key} was completed by one answer and is absent by the next") from None
        if stat.size_bytes is not None and stat.size_bytes != job.size_bytes:
            raise damaged(job, f"was completed with {stat.size_bytes} bytes instead of {job.size_bytes}")

    async def _look_if_allowed(self) -> UploadReply | None:
        try:
            return await fetch_settlement(self._transport, self._job)
        except PermissionRefused:
            return None  # without list permission an absent key answers 403: asking again settles it too
