"""Every checksum S3 knows, computed and compared.

Duty: refuse a body that does not agree with any checksum sent with it. Must never echo a value it did not compute,
unless a rule says to.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import xxhash

from durastore.objectstore.crc import crc64nvme_b64
from durastore.testing.strict_s3.answers import S3Refusal
from durastore.testing.strict_s3.request import Request
from durastore.testing.strict_s3.rules import Lie

__all__ = [
    "ALGORITHMS",
    "PREFIX",
    "Claims",
    "checksum_headers",
    "checksum_of",
    "md5_of",
    "named_checksums",
    "tested_claims",
]

PREFIX = "x-amz-checksum-"
Bytes = bytes | memoryview


def _crc32c(data: Bytes) -> bytes:
    from awscrt.checksums import crc32c

    return int(crc32c(data)).to_bytes(4, "big")


def _md5(data: Bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


ALGORITHMS: Mapping[str, Callable[[Bytes], bytes]] = {
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "crc32c": _crc32c,
    "crc64nvme": lambda data: base64.b64decode(crc64nvme_b64(data)),
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "sha512": lambda data: hashlib.sha512(data).digest(),
    "md5": _md5,
    "xxhash64": xxhash.xxh64_digest,
    "xxhash3": xxhash.xxh3_64_digest,
    "xxhash128": xxhash.xxh3_128_digest,
}
_TITLES = {"crc32": "CRC32", "crc32c": "CRC32C", "crc64nvme": "CRC64NVME", "sha1": "SHA1", "sha256": "SHA256"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What the server will say of a body: its MD5 and its checksums by algorithm."""

    md5: bytes
    checksums: Mapping[str, str] = field(default_factory=dict)


def checksum_of(algorithm: str, data: Bytes) -> str:
    """Base64, as S3 writes it."""
    return base64.b64encode(ALGORITHMS[algorithm](data)).decode("ascii")


def md5_of(data: Bytes) -> bytes:
    return _md5(data)


def named_checksums(headers: Mapping[str, str]) -> dict[str, str]:
    """The checksum values among headers or trailers, by algorithm; `InvalidRequest` on a malformed one."""
    found = {}
    for name, value in headers.items():
        algorithm = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and algorithm in ALGORITHMS:
            if not _is_digest(algorithm, value):
                raise S3Refusal("InvalidRequest", f"Value for {name} header is invalid.")
            found[algorithm] = value
    if len(found) > 1:
        raise S3Refusal("InvalidRequest", "Expecting a single x-amz-checksum- header. Multiple are not allowed.")
    return found


def _is_digest(algorithm: str, text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == len(ALGORITHMS[algorithm](b""))
    except (binascii.Error, ValueError):
        return False


def checksum_headers(checksums: Mapping[str, str], kind: str) -> dict[str, str]:
    headers = {PREFIX + algorithm: value for algorithm, value in checksums.items()}
    return {**headers, "x-amz-checksum-type": kind} if headers else {}


def tested_claims(request: Request, *, default: str | None = "crc64nvme") -> Claims:
    """Check the body against every checksum that came with it; what to say of it.

    Without any, `default` is computed, as S3 has done since 2024. Raises `S3Refusal`.
    """
    named = {**named_checksums(request.headers), **named_checksums(request.trailers)}
    _check_sdk_algorithm(request, named)
    md5 = _md5(request.body)
    _check_content_md5(request, md5)
    if Lie.ECHO_CHECKSUM in request.told:
        return Claims(md5=md5, checksums=named)
    if Lie.IGNORE_CHECKSUM in request.told:
        return Claims(md5=md5)
    computed = {algorithm: checksum_of(algorithm, request.body) for algorithm in named or _as_list(default)}
    for algorithm, value in named.items():
        if computed[algorithm] != value:
            title = _TITLES.get(algorithm, algorithm.upper())
            raise S3Refusal("BadDigest", f"The {title} you specified did not match the calculated checksum.")
    return Claims(md5=md5, checksums=computed)


def _as_list(algorithm: str | None) -> list[str]:
    return [algorithm] if algorithm is not None else []


def _check_content_md5(request: Request, md5: bytes) -> None:
    text = request.headers.get("content-md5")
    if text is None:
        return
    if not _is_digest("md5", text):
        raise S3Refusal("InvalidDigest", "The Content-MD5 you specified was invalid.")
    if base64.b64decode(text) != md5 and Lie.IGNORE_MD5 not in request.told:
        raise S3Refusal("BadDigest", "The Content-MD5 you specified did not match what we received.")


def _check_sdk_algorithm(request: Request, named: Mapping[str, str]) -> None:
    announced = request.headers.get("x-amz-sdk-checksum-algorithm")
    if announced is None:
        return
    if announced.lower() not in ALGORITHMS:
        raise S3Refusal("InvalidRequest", "Checksum algorithm provided is unsupported.")
    if announced.lower() not in named and request.op in ("put", "upload_part"):
        message = "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* header was found."
        raise S3Refusal("InvalidRequest", message)
