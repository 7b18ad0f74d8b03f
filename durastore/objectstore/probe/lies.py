"""Right checksums, and wrong ones that look right.

Duty: compute what a body's checksum is, and values of the right form that it is not. A wrong value must be well formed,
so that a server which only parses it accepts it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.probe.result import ChecksumKind

__all__ = ["LIE_COUNT", "etag_md5", "lie_about", "md5_hex", "multipart_etag_md5", "true_checksum"]

LIE_COUNT = 5
"""How many different lies `lie_about` knows."""


def true_checksum(kind: ChecksumKind, body: bytes) -> str:
    """The checksum of `body`, base64 as S3 sends it."""
    if kind is ChecksumKind.CRC64NVME:
        return crc64nvme_b64(body)
    if kind is ChecksumKind.CRC32:
        return base64.b64encode(binascii.crc32(body).to_bytes(4, "big")).decode("ascii")
    if kind is ChecksumKind.SHA256:
        return base64.b64encode(hashlib.sha256(body).digest()).decode("ascii")
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode("ascii")


def lie_about(kind: ChecksumKind, body: bytes, *, number: int) -> str:
    """A well-formed wrong checksum of a non-empty `body`; another kind of wrong for each `number`.

    0: of other bytes of the same length (damage); 1: one bit off; 2: of the body without its last byte (a short write);
    3: all zero (never computed); 4: of the body twice (a write repeated).
    """
    if number % LIE_COUNT == 0:
        return true_checksum(kind, bytes([body[0] ^ 0xFF]) + body[1:])
    if number % LIE_COUNT == 2:
        return true_checksum(kind, body[:-1])
    if number % LIE_COUNT == 4:
        return true_checksum(kind, body + body)
    raw = bytearray(base64.b64decode(true_checksum(kind, body)))
    if number % LIE_COUNT == 3:
        return base64.b64encode(bytes(len(raw))).decode("ascii")
    raw[-1] ^= 1
    return base64.b64encode(raw).decode("ascii")


def md5_hex(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def etag_md5(etag: str) -> str:
    """The etag's text as an MD5 would be written, to be compared with one; etags stay opaque everywhere else."""
    return etag.strip().removeprefix("W/").strip('"').lower()


def multipart_etag_md5(parts: Sequence[bytes]) -> str:
    """The MD5 of the parts' MD5s and their number, as S3 forms a multipart etag."""
    joined = b"".join(hashlib.md5(part, usedforsecurity=False).digest() for part in parts)
    return f"{md5_hex(joined)}-{len(parts)}"
