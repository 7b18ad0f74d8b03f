"""Publish one manifest segment and prove that the bucket holds it.

Duty: put the bytes under a key that carries their digest, then read them back on a new connection. Must never report a
segment that was not read back: rows of a pack count as manifested only on this function's return (INV-2, INV-3).
"""

from __future__ import annotations

from contextlib import closing

from durastore.errors import AmbiguousWrite, IntegrityError, NotVerified, ObjectAbsent
from durastore.formats.keys import segment_key
from durastore.model import Digest, ObjectKey, WriterId
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.port import ObjectStore

__all__ = ["publish_checked", "publish_segment"]


def publish_segment(store: ObjectStore, data: bytes, *, prefix: str, writer: WriterId, seq: int) -> ObjectKey:
    """Put `data` as segment `seq` of `writer` and return its key once every byte was read back.

    Safe to repeat, also after a lost answer: the same bytes have the same key, and a damaged earlier copy is written
    anew. Raises `NotVerified` where the endpoint does not show what it acknowledged, `IntegrityError` where it shows
    other bytes; the caller must then treat the segment as unpublished.
    """
    return publish_checked(
        store, data, key=segment_key(prefix, writer, seq=seq, digest=Digest.of(data)), what="segment"
    )


def publish_checked(store: ObjectStore, data: bytes, *, key: ObjectKey, what: str) -> ObjectKey:
    """`publish_segment` for any object whose key carries the digest of `data`. `what`: its kind, for errors."""
    digest = Digest.of(data)
    lost_answer: AmbiguousWrite | None = None
    try:
        # Not create-only: the key names the bytes (INV-4), so writing again can only heal, on any endpoint.
        store.put(key, data, crc64nvme=crc64nvme_b64(data), metadata={})
    except AmbiguousWrite as exc:
        lost_answer = exc  # settled below, by reading back
    with closing(store.fresh_reader()) as reader:
        try:
            seen = reader.fetch(key)
        except ObjectAbsent as exc:
            if lost_answer is not None:
                raise lost_answer from exc
            raise NotVerified(f"{what} {key} was acknowledged but cannot be read back", key=key.text) from exc
    if len(seen) != len(data) or Digest.of(seen) != digest:
        raise IntegrityError(f"{what} {key} reads back as other bytes than were sent", key=key.text)
    return key
