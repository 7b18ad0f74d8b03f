"""The one place where bytes become an object's state.

Duty: store what was sent, or what a rule about storing makes of it. What is said of the object stays apart from what
is really there, so that a lie can be told and the truth still be looked up.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from durastore.testing.strict_s3.answers import S3Refusal
from durastore.testing.strict_s3.checksums import checksum_of, md5_of
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.rules import Lie, Rule
from durastore.testing.strict_s3.storage import Bucket, Version

__all__ = ["ARCHIVES", "commit", "content_headers", "damaged", "etag_of", "storage_class_of"]

BLOCK_BYTES = 4096
ARCHIVES = frozenset(("GLACIER", "DEEP_ARCHIVE"))
_CLASSES = frozenset(
    [
        "STANDARD",
        "REDUCED_REDUNDANCY",
        "STANDARD_IA",
        "ONEZONE_IA",
        "INTELLIGENT_TIERING",
        "GLACIER_IR",
        "EXPRESS_ONEZONE",
        *ARCHIVES,
    ]
)
_KEPT = ("content-type", "content-encoding", "content-disposition", "content-language", "cache-control", "expires")
_OTHER = ("x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id")


def content_headers(request: Request) -> dict[str, str]:
    """The headers that are kept with an object; `MetadataTooLarge` where they are too much."""
    metadata = {name: value for name, value in request.headers.items() if name.startswith("x-amz-meta-")}
    if sum(len(name) - len("x-amz-meta-") + len(value.encode()) for name, value in metadata.items()) > 2048:
        raise S3Refusal("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size")
    if Lie.DROP_METADATA in request.told:
        metadata = {}
    kept = {name: request.headers[name] for name in (*_KEPT, *_OTHER) if name in request.headers}
    if "aws-chunked" in kept.get("content-encoding", ""):
        rest = [part for part in kept.pop("content-encoding").split(",") if part.strip() != "aws-chunked"]
        kept |= {"content-encoding": ",".join(rest)} if rest else {}
    return {"content-type": "binary/octet-stream", **kept, **metadata}


def storage_class_of(request: Request) -> str:
    if (rule := request.told.get(Lie.ARCHIVE_CLASS)) is not None:
        return rule.text or "GLACIER"
    asked = request.headers.get("x-amz-storage-class", "STANDARD")
    if asked not in _CLASSES:
        raise S3Refusal("InvalidStorageClass", "The storage class you specified is not valid")
    return asked


def etag_of(md5: bytes, *, request: Request, is_kms: bool = False, parts: int | None = None) -> str:
    """MD5, or MD5 of the parts' MD5 with their count; something opaque where S3 has it so, or a rule."""
    if is_kms or Lie.ETAG_NOT_MD5 in request.told:
        md5 = secrets.token_bytes(16)
    return f'"{md5.hex()}"' if parts is None else f'"{md5.hex()}-{parts}"'


def commit(bucket: Bucket, request: Request, *, version: Version) -> Version:
    """Make `version` the state of the key. Returns what is to be answered. Hold the lock."""
    told, key = request.told, request.key
    version.modified_s = request.now_s
    if Lie.LOSE in told:
        version.version_id = secrets.token_urlsafe(24) if bucket.versioning == "Enabled" else "null"
        return version
    previous = bucket.latest(key)
    version.body = _bent(version, told, previous=previous)
    if Lie.LOSE_AFTER_HEAD_OK in told or Lie.LOSE_PART_AFTER_HEAD in told:
        version.fate = "vanish" if Lie.LOSE_AFTER_HEAD_OK in told else "lose-part"
        version.heads_left = int((told.get(Lie.LOSE_AFTER_HEAD_OK) or told[Lie.LOSE_PART_AFTER_HEAD]).amount or 1)
    version.is_hollow = Lie.HOLLOW in told
    answered = bucket.add(key, _honest(version, told))
    if answered is not version:
        version.version_id = answered.version_id
    if Lie.DELETE_MARKER in told:
        bucket.versioning = bucket.versioning or "Enabled"
        bucket.add(key, Version(body=b"", size_bytes=0, etag="", is_marker=True, modified_s=request.now_s))
    return version


def _honest(version: Version, told: Mapping[Lie, Rule]) -> Version:
    """What is stored where size and checksums of the stored bytes are told as they are, though the answer was not."""
    if not {Lie.STORE_EMPTY, Lie.STORE_SHORT, Lie.FORGET_PART}.intersection(told):
        return version
    is_parts = Lie.FORGET_PART in told
    return Version(
        body=version.body,
        size_bytes=len(version.body),
        etag=version.etag if is_parts else f'"{md5_of(version.body).hex()}"',
        checksums={name: checksum_of(name, version.body) for name in version.checksums},
        checksum_type=version.checksum_type,
        headers=version.headers,
        storage_class=version.storage_class,
        modified_s=version.modified_s,
        part_sizes=version.part_sizes,
    )


def _bent(version: Version, told: Mapping[Lie, Rule], *, previous: Version | None) -> bytes:
    body = version.body
    if Lie.STORE_EMPTY in told:
        return b""
    if (short := told.get(Lie.STORE_SHORT)) is not None:
        return body[: len(body) // 2 if short.amount is None else int(short.amount)]
    if Lie.SPLICE in told and previous is not None and not previous.is_marker:
        middle = len(body) // 2
        old = previous.body[:middle]
        body = old + body[len(old) :]
    for lie in (Lie.ZERO_BLOCK, Lie.FLIP_BYTE):
        if (rule := told.get(lie)) is not None:
            body = damaged(body, lie, at=None if rule.amount is None else int(rule.amount))
    if (rule := told.get(Lie.FORGET_PART) or told.get(Lie.ZERO_PART)) is not None and version.part_sizes:
        start, stop = _part_span(version, int(rule.amount or len(version.part_sizes)))
        body = body[:start] + (b"" if rule.lie is Lie.FORGET_PART else bytes(stop - start)) + body[stop:]
    return body


def _part_span(version: Version, number: int) -> tuple[int, int]:
    """Where part `number` lies in the object; the last one where there are fewer."""
    number = min(number, len(version.part_sizes))
    start = sum(version.part_sizes[: number - 1])
    return start, start + version.part_sizes[number - 1]


def damaged(body: bytes, lie: Lie, *, at: int | None = None) -> bytes:
    """`body` with one 4 KiB block zeroed, or one byte changed, at `at` or in its middle; the size stays."""
    if not body:
        return body
    at = len(body) // 2 if at is None else min(at, len(body) - 1)
    if lie is Lie.FLIP_BYTE:
        return body[:at] + bytes([body[at] ^ 0x01]) + body[at + 1 :]
    start = at // BLOCK_BYTES * BLOCK_BYTES
    stop = min(start + BLOCK_BYTES, len(body))
    return body[:start] + bytes(stop - start) + body[stop:]
