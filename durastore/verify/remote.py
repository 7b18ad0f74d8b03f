"""Looking at the bucket's copy of a pack: whole, on a connection of its own.

Duty: turn bytes seen into `Evidence`, or say what is wrong. What the server claims is never taken for what it holds.
"""

from __future__ import annotations

import xxhash

from durastore.clock import Clock
from durastore.errors import IntegrityError, NotVerified, ObjectAbsent
from durastore.model import Digest, Evidence, EvidenceLevel, ObjectKey
from durastore.objectstore.port import ObjectReader
from durastore.spool.journal import PackRecord

__all__ = ["check_segment", "read_back"]

_LIST_AGAIN = "its packs are listed again by themselves; for what is reclaimed run `durastore manifest rebuild`"


def read_back(reader: ObjectReader, record: PackRecord, *, clock: Clock) -> Evidence:
    """Fetch every byte of the pack's object and hash it: the strongest evidence there is.

    `IntegrityError` if length or digest differ, `ObjectAbsent` if it is gone; network errors pass. Safe to repeat.
    """
    if record.key is None or record.digest is None or record.size_bytes is None:
        raise NotVerified(f"pack {record.name} was never sealed")
    before = reader.head(record.key)
    hasher = xxhash.xxh3_128()
    size_bytes = 0
    for chunk in reader.fetch_chunks(record.key, version_id=before.version_id):
        hasher.update(chunk)
        size_bytes += len(chunk)
        if size_bytes > record.size_bytes:
            break  # an endless body must not keep us here
    digest = Digest(hasher.hexdigest())
    if size_bytes != record.size_bytes or digest != record.digest:
        raise IntegrityError(
            f"object {record.key} holds {size_bytes} bytes with digest {digest}, pack {record.name} has "
            f"{record.size_bytes} with {record.digest}",
            key=record.key.text,
        )
    after = reader.head(record.key)
    if (after.etag, after.version_id) != (before.etag, before.version_id):
        raise NotVerified(f"object {record.key} was replaced while it was read back")
    return Evidence(
        level=EvidenceLevel.READ_BACK,
        key=record.key,
        size_bytes=size_bytes,
        digest=digest,
        etag=after.etag,
        version_id=after.version_id,
        taken=clock.stamp().render(),
        server_time_s=after.server_time_s,
    )


def check_segment(reader: ObjectReader, key: ObjectKey) -> None:
    """The manifest segment is there and its bytes match the digest in its key (INV-7). `NotVerified` if not."""
    try:
        data = reader.fetch(key)
    except ObjectAbsent as exc:
        raise NotVerified(f"manifest segment {key} is gone", hint=_LIST_AGAIN, segment=key.text) from exc
    if not key.text.endswith(f"-{Digest.of(data).short}.parquet"):
        raise NotVerified(
            f"manifest segment {key} holds other bytes than were written", hint=_LIST_AGAIN, segment=key.text
        )
