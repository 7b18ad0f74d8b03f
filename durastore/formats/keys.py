"""Object keys: where packs, manifest segments and the marker lie in the bucket.

Duty: `docs/format/keys.md` as code; files that are kept as they were have `file_keys`. A key carries 16 hex digits of
the digest of its bytes (INV-4) and never a sample id. Must never accept a key it would not itself have made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from durastore.errors import InvalidInput
from durastore.model import Digest, ObjectKey, PackKind, WriterId

__all__ = [
    "MAX_SEQ",
    "PackKeyParts",
    "SegmentKeyParts",
    "carries_pack",
    "failures_key",
    "failures_listing_prefix",
    "file_listing_prefix",
    "held_listing_prefixes",
    "marker_key",
    "pack_key",
    "pack_listing_prefix",
    "parse_failures_key",
    "parse_pack_key",
    "parse_segment_key",
    "segment_key",
    "segment_listing_prefix",
]

MAX_SEQ = 10**12 - 1

_PACK = re.compile(r"packs/([0-9a-f]{16})/([0-9]{12})-([0-9a-f]{16})\.(tar|safetensors)")
_PACK_ANYWHERE = re.compile(rf"(?:.+/)?{_PACK.pattern}", re.DOTALL)
_SEGMENT = re.compile(r"manifest/([0-9a-f]{16})/([0-9]{12})-([0-9a-f]{16})\.parquet")
_FAILURES = re.compile(r"failures/([0-9a-f]{16})/([0-9]{12})-([0-9a-f]{16})\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PackKeyParts:
    """What a pack's key says."""

    writer: WriterId
    seq: int
    short_digest: str
    """First 16 hex digits of the XXH3-128 of the object's bytes."""
    kind: PackKind


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SegmentKeyParts:
    """What the key of a manifest segment, or of a failure list, says."""

    writer: WriterId
    seq: int
    short_digest: str
    """First 16 hex digits of the XXH3-128 of the object's bytes."""


def pack_key(prefix: str, writer: WriterId, *, seq: int, digest: Digest, kind: PackKind) -> ObjectKey:
    """`<prefix>/packs/<writer>/<12-digit seq>-<16 hex>.(tar|safetensors)`; no leading slash where prefix is empty."""
    return ObjectKey(f"{pack_listing_prefix(prefix, writer)}{_seq(seq)}-{digest.short}.{kind.value}")


def parse_pack_key(prefix: str, key: ObjectKey) -> PackKeyParts | None:
    """Exact inverse of `pack_key` below `prefix`; None for every other key."""
    found = _PACK.fullmatch(_below(prefix, key))
    if not found:
        return None
    writer, seq, digest, kind = found.groups()
    return PackKeyParts(writer=WriterId(writer), seq=int(seq), short_digest=digest, kind=PackKind(kind))


def carries_pack(key: ObjectKey, *, digest: Digest) -> bool:
    """Whether the key, below whatever prefix, is that of a pack with these bytes."""
    found = _PACK_ANYWHERE.fullmatch(key.text)
    return found is not None and found[3] == digest.short


def segment_key(prefix: str, writer: WriterId, *, seq: int, digest: Digest) -> ObjectKey:
    """`<prefix>/manifest/<writer>/<12-digit seq>-<16 hex>.parquet`."""
    return ObjectKey(f"{segment_listing_prefix(prefix, writer)}{_seq(seq)}-{digest.short}.parquet")


def parse_segment_key(prefix: str, key: ObjectKey) -> SegmentKeyParts | None:
    """Exact inverse of `segment_key` below `prefix`; None for every other key."""
    return _numbered_parts(_SEGMENT.fullmatch(_below(prefix, key)))


def failures_key(prefix: str, writer: WriterId, *, seq: int, digest: Digest) -> ObjectKey:
    """`<prefix>/failures/<writer>/<12-digit seq>-<16 hex>.parquet`."""
    return ObjectKey(f"{failures_listing_prefix(prefix)}{writer.hex}/{_seq(seq)}-{digest.short}.parquet")


def parse_failures_key(prefix: str, key: ObjectKey) -> SegmentKeyParts | None:
    """Exact inverse of `failures_key` below `prefix`; None for every other key."""
    return _numbered_parts(_FAILURES.fullmatch(_below(prefix, key)))


def _numbered_parts(found: re.Match[str] | None) -> SegmentKeyParts | None:
    if found is None:
        return None
    writer, seq, digest = found.groups()
    return SegmentKeyParts(writer=WriterId(writer), seq=int(seq), short_digest=digest)


def failures_listing_prefix(prefix: str) -> str:
    """What to LIST for the failure lists of all writers."""
    return f"{_lead(prefix)}failures/"


def file_listing_prefix(prefix: str) -> str:
    """What to LIST for all files that are kept as they were."""
    return f"{_lead(prefix)}files/"


def marker_key(prefix: str) -> ObjectKey:
    """`<prefix>/durastore.json`."""
    return ObjectKey(f"{_lead(prefix)}durastore.json")


def pack_listing_prefix(prefix: str, writer: WriterId | None = None) -> str:
    """What to LIST for all packs, or for those of one writer (in order of their seq)."""
    return f"{_lead(prefix)}packs/" + (f"{writer.hex}/" if writer else "")


def held_listing_prefixes(prefix: str) -> tuple[str, ...]:
    """What to LIST for all objects that manifest rows may name: packs, files, artifacts."""
    lead = _lead(prefix)
    return f"{lead}packs/", f"{lead}files/", f"{lead}artifacts/"


def segment_listing_prefix(prefix: str, writer: WriterId | None = None) -> str:
    """What to LIST for all manifest segments, or for those of one writer (in order of their seq)."""
    return f"{_lead(prefix)}manifest/" + (f"{writer.hex}/" if writer else "")


def _lead(prefix: str) -> str:
    if not prefix:
        return ""
    ObjectKey(prefix)  # refuses what no key could begin with: a leading, trailing or doubled slash, dot segments
    return f"{prefix}/"


def _below(prefix: str, key: ObjectKey) -> str:
    lead = _lead(prefix)
    return key.text[len(lead) :] if key.text.startswith(lead) else ""


def _seq(seq: int) -> str:
    if not 0 <= seq <= MAX_SEQ:
        raise InvalidInput(f"sequence number {seq} does not fit 12 digits")
    return f"{seq:012d}"
