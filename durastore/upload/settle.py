"""Settling a write whose answer was lost or refused, by looking at what is under the key.

Duty: judge a HEAD against the job (`judge`, pure) and make the reply or the conflict of it. Must never count as
evidence: "ours" ends the doubt about our request, and says nothing about the bytes the endpoint holds.
"""

from __future__ import annotations

from enum import Enum

from durastore.errors import IntegrityError, ObjectAbsent
from durastore.objectstore.port import WRITE_ID, ObjectStat
from durastore.upload.job import DIGEST_METADATA, UploadJob, UploadReply
from durastore.upload.port import Transport

__all__ = ["Holding", "conflict", "damaged", "fetch_settlement", "judge"]


class Holding(Enum):
    """What an object under our key is to us."""

    OURS = "ours"
    SAME_CONTENT = "same content"
    DAMAGED = "ours, but not what was sent"
    FOREIGN = "foreign"


def judge(stat: ObjectStat, job: UploadJob) -> Holding:
    """Ours by write id; else the same content unless size, checksum or recorded digest speak against it.

    The key carries our content's digest, so an object of our size that tells nothing else is taken for the same content
    by another writing; whether it is will be read back. A wrong size is never settled, whatever it says of itself.
    """
    said = {name.lower(): value for name, value in stat.metadata}
    is_ours = said.get(WRITE_ID) == job.write_id
    if stat.size_bytes is not None and stat.size_bytes != job.size_bytes:
        # an earlier writing had another write id, but named the same digest
        is_meant = is_ours or said.get(DIGEST_METADATA) == job.digest.hex
        return Holding.DAMAGED if is_meant else Holding.FOREIGN
    if is_ours:
        return Holding.OURS
    if stat.crc64nvme and stat.crc64nvme != job.crc64nvme:
        return Holding.FOREIGN
    if said.get(DIGEST_METADATA, job.digest.hex) != job.digest.hex:
        return Holding.FOREIGN
    return Holding.SAME_CONTENT


async def fetch_settlement(transport: Transport, job: UploadJob) -> UploadReply | None:
    """One HEAD: the reply where the object is there, None where there is none (or where it is there to be replaced).

    Raises `IntegrityError` where other bytes lie under our key (a conflict, or our own write gone wrong), and the
    endpoint's errors where it does not tell.
    """
    if job.is_overwriting:
        return None  # what lies there may bear our write id and still be the wrong object that is to be replaced
    try:
        stat = await transport.head(job.key)
    except ObjectAbsent:
        return None
    holding = judge(stat, job)
    if holding is Holding.FOREIGN:
        raise conflict(job, f"holds another object, of {stat.size_bytes} bytes; ours has {job.size_bytes}")
    if holding is Holding.DAMAGED:
        raise damaged(job, f"was written by us, and holds {stat.size_bytes} bytes instead of {job.size_bytes}")
    return UploadReply(
        etag=stat.etag,
        version_id=stat.version_id,
        server_time_s=stat.server_time_s,
        write_id=job.write_id,
        settled_by="head",
    )


def damaged(job: UploadJob, how: str) -> IntegrityError:
    """The error of an object that our own write made and the endpoint stored wrong (case B75): to be written again."""
    return IntegrityError(
        f"{job.key} {how}",
        hint="the local pack is kept and sent again; look at the endpoint",
        key=job.key.text,
        is_own_damaged=True,
    )


def conflict(job: UploadJob, how: str) -> IntegrityError:
    """The error of a key that does not hold, or does not take, the job's bytes."""
    return IntegrityError(
        f"conflict: {job.key} {how}",
        hint="the local pack is kept; find out who writes to this prefix",
        key=job.key.text,
        is_conflict=True,
    )
