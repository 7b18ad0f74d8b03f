"""A sealed pack as work for the uploader, with the journal as its memory.

Duty: name what is sent, and where each step of it is recorded. Must never hand over a pack without its digest.
"""

from __future__ import annotations

from durastore.errors import DiskFailed
from durastore.model import PackKind
from durastore.spool.journal import PackRecord
from durastore.spool.spool import Spool
from durastore.upload.job import UploadJob

__all__ = ["upload_job"]


def upload_job(spool: Spool, record: PackRecord, *, is_overwriting: bool) -> UploadJob:
    """The upload of this pack; its write id is on record when it returns. `DiskFailed` if it was never sealed."""
    if record.key is None or record.digest is None or record.size_bytes is None or record.crc64nvme is None:
        raise DiskFailed(f"journal: sealed pack {record.name} has no digest")
    journal, pack_id = spool.journal, record.pack_id
    return UploadJob(
        open_source=lambda: spool.packs_folder.open_read(record.name),
        key=record.key,
        size_bytes=record.size_bytes,
        digest=record.digest,
        crc64nvme=record.crc64nvme,
        write_id=journal.write_id(pack_id),
        session=journal.session(pack_id),
        on_session=lambda session: journal.record_session(pack_id, session),
        on_part=lambda part: journal.record_part(pack_id, part),
        is_overwriting=is_overwriting,
        is_past_cache=record.kind is PackKind.SAFETENSORS,  # as its writer wrote it
    )
