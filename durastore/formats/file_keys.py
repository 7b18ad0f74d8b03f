"""Object keys of files that are kept as they were: made, read back into digest and path, and recognised.

Duty: the part about files of `docs/format/keys.md` as code. Two layouts exist, and both are read for ever (ADR 0012);
one path and digest have one key that is written. Must never accept a key that no version of durastore would have made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from durastore.errors import InvalidSampleId
from durastore.formats.keys import file_listing_prefix
from durastore.model import Digest, ObjectKey, SampleId

__all__ = ["FileKeyParts", "carries_file", "file_key", "file_key_pattern", "first_file_key", "parse_file_key"]

MAX_BESIDE_BYTES = 200
"""Of a name that gets the digest before it. The key's last segment is then 217 bytes at most: servers that keep objects
as files allow 255, and some add a suffix of their own while they write."""

_FIRST = re.compile(r"([0-9a-f]{16})/(.+)", re.DOTALL)
_BESIDE = re.compile(r"((?:.+/)?)([0-9a-f]{16})-([^/]+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class FileKeyParts:
    """What the key of a file that is kept as it was says."""

    short_digest: str
    """First 16 hex digits of the XXH3-128 of the object's bytes."""
    path: SampleId
    """Relative path of the file, which is also the id of its row."""


def file_key(prefix: str, path: SampleId, *, digest: Digest) -> ObjectKey:
    """Where a file is sent: `<prefix>/files/<folder>/<16 hex>-<name>`, or `first_file_key` where the name is too long
    for that, or the key would read as one of the other layout. `InvalidInput` where it is longer than a key may be.
    """
    if not _is_beside(path.text):
        return first_file_key(prefix, path, digest=digest)
    above, slash, name = path.text.rpartition("/")
    return ObjectKey(f"{file_listing_prefix(prefix)}{above}{slash}{digest.short}-{name}")


def first_file_key(prefix: str, path: SampleId, *, digest: Digest) -> ObjectKey:
    """`<prefix>/files/<16 hex>/<relative path>`: the only layout at first. Every path has one, always read."""
    return ObjectKey(f"{file_listing_prefix(prefix)}{digest.short}/{path.text}")


def parse_file_key(prefix: str, key: ObjectKey) -> FileKeyParts | None:
    """Exact inverse of `file_key` and of `first_file_key` below `prefix`; None for every other key."""
    lead = file_listing_prefix(prefix)
    below = key.text[len(lead) :] if key.text.startswith(lead) else ""
    first, beside = _FIRST.fullmatch(below), _BESIDE.fullmatch(below)
    if first:
        short, path = first[1], first[2]
    elif beside and _is_beside(beside[1] + beside[3]):
        short, path = beside[2], beside[1] + beside[3]
    else:
        return None
    try:
        return FileKeyParts(short_digest=short, path=SampleId(path))
    except InvalidSampleId:
        return None


def carries_file(key: ObjectKey, *, name: str, digest: Digest) -> bool:
    """Whether the key, below whatever prefix, is that of the file `name` with these bytes, in either layout."""
    tails = [f"/files/{digest.short}/{name}"]
    if _is_beside(name):
        above, slash, last = name.rpartition("/")
        tails.append(f"/files/{above}{slash}{digest.short}-{last}")
    return f"/{key}".endswith(tuple(tails))


def file_key_pattern(prefix: str) -> str:
    """A regular expression (RE2) for all that may be a file's key. Wider than `parse_file_key`, which decides."""
    lead = re.escape(file_listing_prefix(prefix))
    return rf"(?s)\A{lead}(?:[0-9a-f]{{16}}/.+|(?:.+/)?[0-9a-f]{{16}}-[^/]+)\z"


def _is_beside(path: str) -> bool:
    """Whether the digest stands beside the name. A first folder of 16 hex digits would be read as the digest."""
    return _FIRST.fullmatch(path) is None and len(path.rpartition("/")[2].encode()) <= MAX_BESIDE_BYTES
