"""ATTESTED: believing a server's own checksum, where this endpoint was seen to refuse a wrong one.

Duty: one HEAD and a ranged GET for each part and chunk on a connection of their own, compared with our bytes. Must
never rest on what the uploader was told, and never on a checksum kind that the probe did not see refused on this write
path.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from itertools import pairwise

from durastore.clock import Clock
from durastore.errors import IntegrityError, NotVerified
from durastore.model import Evidence, EvidenceLevel
from durastore.objectstore.port import ObjectReader, ObjectStat
from durastore.objectstore.probe.result import ChecksumKind
from durastore.spool.records import PackRecord
from durastore.verify.policy import ProofPolicy

__all__ = ["attest", "compare_spots"]

SPOT_BYTES = 64 << 10
WHOLE_BYTES = 1 << 20  # up to here a spot costs hardly more when it is everything
CHUNK_BYTES = 4 << 20  # what servers cut an object into: Ceph 4 MiB, SeaweedFS 4 to 8
_HASH_BLOCK = 8 << 20


def attest(reader: ObjectReader, record: PackRecord, *, fd: int, policy: ProofPolicy, clock: Clock) -> Evidence:
    """Evidence of level ATTESTED for the pack whose local file is open as `fd`.

    `NotVerified` where the policy does not allow it for this pack's write path, or the answer lacks something (then
    the object is to be read back); `IntegrityError` where size, checksum or the spot differ; `ObjectAbsent` and network
    errors pass. Safe to repeat.
    """
    if record.key is None or record.size_bytes is None or record.digest is None:
        raise NotVerified(f"pack {record.name} was never sealed")
    kind = policy.checksum_for(record)
    if kind is None:
        raise NotVerified(f"pack {record.name}: no checksum of its write path was seen refused when wrong")
    stat = reader.head(record.key)
    _compare_head(record, stat)
    if kind is ChecksumKind.CRC64NVME:
        _compare_crc(record, stat)
    else:
        _compare_md5(record, stat, policy=policy, fd=fd)
    compare_spots(reader, record, fd=fd, policy=policy, if_match=stat.etag)
    return Evidence(
        level=EvidenceLevel.ATTESTED,
        key=record.key,
        size_bytes=record.size_bytes,
        digest=None,
        etag=stat.etag,
        version_id=stat.version_id,
        taken=clock.stamp().render(),
        server_time_s=stat.server_time_s,
        probe=policy.probe_id,
    )


def _compare_head(record: PackRecord, stat: ObjectStat) -> None:
    if stat.size_bytes is None or not stat.etag:
        raise NotVerified(f"pack {record.name}: HEAD tells no size or no etag")
    if stat.size_bytes != record.size_bytes:
        raise IntegrityError(f"object {record.key} has {stat.size_bytes} bytes, pack {record.name} {record.size_bytes}")
    if not stat.is_readable:
        raise NotVerified(f"pack {record.name}: storage class {stat.storage_class} cannot be read back at once")
    if (record.etag, record.version_id) != (stat.etag, stat.version_id):
        # another write of the same key came between (it may be our own retry): only its bytes can tell what it is
        raise NotVerified(f"pack {record.name}: HEAD shows another etag or version than the upload's answer")


def _compare_crc(record: PackRecord, stat: ObjectStat) -> None:
    if not stat.crc64nvme:
        raise NotVerified(f"pack {record.name}: HEAD carries no full-object CRC64NVME")
    if stat.crc64nvme != record.crc64nvme:
        raise IntegrityError(
            f"object {record.key}: the server holds CRC64NVME {stat.crc64nvme}, ours is {record.crc64nvme}"
        )


def _compare_md5(record: PackRecord, stat: ObjectStat, *, policy: ProofPolicy, fd: int) -> None:
    """The etag was shown to be the server's own MD5, or the MD5 of its parts' MD5s; compared with our bytes, now."""
    size = record.size_bytes or 0
    if not policy.is_multipart(record):
        if stat.etag.strip('"').lower() != _md5(fd, 0, length=size).hexdigest():
            raise IntegrityError(f"object {record.key}: etag {stat.etag} is not the MD5 of pack {record.name}")
        return
    step = policy.part_bytes_of(record)
    cuts = range(0, size, step)
    joined = b"".join(_md5(fd, at, length=min(step, size - at)).digest() for at in cuts)
    expected = f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(cuts)}"
    if stat.etag.strip('"').lower() != expected:
        # what was sent in these parts may be stored in others, so this alone is no damage
        raise NotVerified(f"pack {record.name}: etag {stat.etag} is not the MD5 of its parts' MD5s as we cut them")


def _md5(fd: int, offset: int, *, length: int) -> hashlib._Hash:
    hasher = hashlib.md5(usedforsecurity=False)
    end = offset + length
    while offset < end and (block := os.pread(fd, min(_HASH_BLOCK, end - offset), offset)):
        hasher.update(block)
        offset += len(block)
    return hasher


def compare_spots(
    reader: ObjectReader, record: PackRecord, *, fd: int, policy: ProofPolicy, if_match: str | None
) -> None:
    """Random blocks, read where the data lie: an index entry whose data are gone answers HEAD (case B61).

    One in each stretch that a server may keep, and lose, by itself: a part (case B47), of that what it cuts again into
    chunks, and the halves of an object that went whole. Raises as `attest`.
    """
    size = record.size_bytes or 0
    for start, room in _stretches(size, part_bytes=policy.part_bytes_of(record) if policy.is_multipart(record) else 0):
        length = room if room <= WHOLE_BYTES else SPOT_BYTES
        offset = start + random.SystemRandom().randrange(room - length + 1)
        _compare_block(reader, record, block=(offset, length), fd=fd, if_match=if_match)


def _stretches(size: int, *, part_bytes: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each; `part_bytes` 0: the object went whole."""
    step = part_bytes or max(size, 1)
    least = 1 if size > step or size <= WHOLE_BYTES else 2  # also of one that nobody knows to be whole or in parts
    for part in range(0, max(size, 1), step):
        room = min(step, size - part)
        count = max(least, -(-room // CHUNK_BYTES))
        cuts = [part + room * number // count for number in range(count + 1)]
        yield from ((begin, end - begin) for begin, end in pairwise(cuts))


def _compare_block(
    reader: ObjectReader, record: PackRecord, *, block: tuple[int, int], fd: int, if_match: str | None
) -> None:
    offset, length = block
    assert record.key is not None
    remote = reader.fetch(record.key, offset=offset, length=length, if_match=if_match)
    local = os.pread(fd, length, offset)
    if len(local) != length:
        raise NotVerified(f"pack {record.name}: the local file is shorter than recorded", is_local_damaged=True)
    if remote != local:
        raise IntegrityError(f"object {record.key} differs from pack {record.name} in the block at {offset}")
