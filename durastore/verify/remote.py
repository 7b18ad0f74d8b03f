"""Looking at the bucket's copy of a pack: whole, on a connection of its own.

Duty: turn bytes seen into `Evidence`, or say what is wrong. What the server claims is never taken for what it holds.
"""

from __future__ import annotations

import xxhash

from durastore.clock import Clock
from durastore.errors import IntegrityError, NotVerified, ObjectAbsent, RequestRefused
from durastore.model import Digest, Evidence, EvidenceLevel, ObjectKey
from durastore.objectstore.port import ObjectReader
from durastore.objectstore.whole import fetch_whole
from durastore.spool.journal import PackRecord

__all__ = ["check_segment", "read_back"]

_LIST_AGAIN = "its packs are listed again by themselves; for what is reclaimed run `durastore manifest rebuild`"


def read_back(reader: ObjectReader, record: PackRecord, *, clock: Clock, is_for_reclaim: bool = True) -> Evidence:
    """Fetch every byte of the pack's object and hash it: the strongest evidence there is.

    Not `is_for_reclaim`: nothing will be freed for this evidence, and it tells no time of the server's, by which a
    reclaim sees later that clocks drifted. A small object then takes one request instead of three.

    `IntegrityError` if length or digest differ, `ObjectAbsent` if it is gone; network errors pass. Safe to repeat.
    """
    if record.key is None or record.digest is None or record.size_bytes is None:
        raise NotVerified(f"pack {record.name} was never sealed")
    if not is_for_reclaim:
        evidence = _read_whole(reader, record, clock=clock)
        if evidence is not None:
            return evidence
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
        raise _mismatch(record, size_bytes=size_bytes, digest=digest)
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


def _mismatch(record: PackRecord, *, size_bytes: int, digest: Digest) -> IntegrityError:
    return IntegrityError(
        f"object {record.key} holds {size_bytes} bytes with digest {digest}, pack {record.name} has "
        f"{record.size_bytes} with {record.digest}",
        key=str(record.key),
    )


def _read_whole(reader: ObjectReader, record: PackRecord, *, clock: Clock) -> Evidence | None:
    """By one answer, which names etag and version of the very bytes it carries: nothing can take the object's place in
    between. None where that way is not open, or where the answer is that there is nothing.
    """
    assert record.key is not None
    assert record.digest is not None
    assert record.size_bytes is not None
    try:
        whole = fetch_whole(reader, record.key, size_bytes=record.size_bytes)
    except (ObjectAbsent, RequestRefused):
        return None  # a HEAD and a GET have to agree on that
    if whole is None:
        return None
    digest = Digest.of(whole.data)
    if digest != record.digest:
        raise _mismatch(record, size_bytes=len(whole.data), digest=digest)
    return Evidence(
        level=EvidenceLevel.READ_BACK,
        key=record.key,
        size_bytes=record.size_bytes,
        digest=record.digest,
        etag=whole.etag,
        version_id=whole.version_id,
        taken=clock.stamp().render(),
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
