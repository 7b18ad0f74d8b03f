"""What is really stored: buckets, versions of objects, uploads in progress.

Duty: hold it in memory, under one lock, in key order, with the past states that a stale or lagging answer needs.
"""

from __future__ import annotations

import secrets
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge

from durastore.clock import SYSTEM_CLOCK
from durastore.testing.strict_s3.answers import S3Refusal
from durastore.testing.strict_s3.populated import PopulatedRange

__all__ = ["ACCOUNT", "REGION", "Bucket", "Part", "Storage", "Upload", "Version"]

REGION = "us-east-1"
ACCOUNT = "111122223333"
"""The account of the server's credentials, and the owner of its buckets."""
_PAST_LIMIT = 4  # past states kept of a key in a bucket without versions


@dataclass(slots=True, kw_only=True)
class Version:
    """One state of a key: the bytes that are really there, and all that is said of them."""

    body: bytes
    size_bytes: int
    etag: str
    checksums: Mapping[str, str] = field(default_factory=dict)
    checksum_type: str = "FULL_OBJECT"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Metadata and content headers, as a GET gives them back."""
    storage_class: str = "STANDARD"
    modified_s: float = 0.0
    stored_at: float = 0.0
    """Monotonic: for restarts and replicas."""
    version_id: str = "null"
    is_marker: bool = False
    is_hollow: bool = False
    """The index has it, the data are gone: HEAD and LIST answer, GET finds nothing."""
    heads_left: int | None = None
    """So many more HEADs find it; then `fate` is done to it."""
    fate: str = ""
    part_sizes: tuple[int, ...] = ()
    lost_span: tuple[int, int] | None = None
    """Bytes that cannot be read any more."""

    def remains(self) -> bytes:
        """The bytes that can still be read."""
        if self.is_hollow:
            return b""
        if self.lost_span is None:
            return self.body
        return self.body[: self.lost_span[0]] + self.body[self.lost_span[1] :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    number: int
    body: bytes
    etag: str
    md5: bytes
    checksums: Mapping[str, str]
    modified_s: float


@dataclass(slots=True, kw_only=True)
class Upload:
    upload_id: str
    key: str
    headers: Mapping[str, str]
    storage_class: str
    algorithm: str
    checksum_type: str
    is_explicit: bool
    """The client named the algorithm itself."""
    is_kms: bool
    initiated_s: float
    parts: dict[int, Part] = field(default_factory=dict)
    leaked: list[Part] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Bucket:
    name: str
    created_s: float
    owner: str = ACCOUNT
    versioning: str = ""
    """Empty, Enabled or Suspended."""
    lifecycle: bytes | None = None
    histories: dict[str, list[Version]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    populated: list[PopulatedRange] = field(default_factory=list)
    uploads: dict[str, Upload] = field(default_factory=dict)

    def history(self, key: str) -> list[Version]:
        """All states of `key`, oldest first; the caller must not change the list."""
        found = self.histories.get(key)
        if found is not None:
            return found
        for group in self.populated:
            version = group.find(key)
            if version is not None:
                return [_populated_version(version, self.created_s)]
        return []

    def latest(self, key: str) -> Version | None:
        """The state that is to be seen now, marker or not."""
        history = self.history(key)
        return history[-1] if history else None

    def is_there(self, key: str) -> bool:
        version = self.latest(key)
        return version is not None and not version.is_marker

    def add(self, key: str, version: Version) -> Version:
        """Make `version` the state of `key`; gives it its version id and time of storing."""
        version.stored_at = SYSTEM_CLOCK.monotonic()
        version.version_id = secrets.token_urlsafe(24) if self.versioning == "Enabled" else "null"
        history = self.histories.get(key)
        if history is None:
            history = self.histories[key] = self.history(key).copy()
            insort(self.keys, key)
        history.append(version)
        if not self.versioning and len(history) > _PAST_LIMIT:
            del history[0]
        return version

    def forget(self, key: str) -> None:
        """As if `key` had never been."""
        if self.histories.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def vanish(self, key: str) -> None:
        """The key's present state is gone, and no trace of it, nor of an earlier one, is left to be seen."""
        if self.versioning:
            self.forget(key)
            return
        self.add(key, Version(body=b"", size_bytes=0, etag="", is_marker=True))

    def lose_since(self, moment: float) -> None:
        """Undo every state stored at `moment` (monotonic) or later, as a crash does to what was never made durable."""
        for key, history in list(self.histories.items()):
            kept = [version for version in history if version.stored_at < moment]
            if kept:
                self.histories[key] = kept
            else:
                self.forget(key)

    def keys_from(self, lower: str) -> Iterator[str]:
        """Keys from `lower` on in byte order; some may have no visible state. Valid while nothing changes."""
        groups = [group.keys_from(lower) for group in self.populated]
        last = None
        for key in merge(self._own_keys_from(lower), *groups):
            if key != last:
                yield key
            last = key

    def _own_keys_from(self, lower: str) -> Iterator[str]:
        # Code point order is the byte order of UTF-8.
        for index in range(bisect_left(self.keys, lower), len(self.keys)):
            yield self.keys[index]


def _populated_version(made: tuple[bytes, str], modified_s: float) -> Version:
    body, etag = made
    return Version(body=body, size_bytes=len(body), etag=etag, modified_s=modified_s)


class Storage:
    """All buckets. Hold `lock` around every look and every change that belong together."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.buckets: dict[str, Bucket] = {}

    def bucket(self, name: str) -> Bucket:
        """`NoSuchBucket` where there is none."""
        found = self.buckets.get(name)
        if found is None:
            raise S3Refusal("NoSuchBucket", "The specified bucket does not exist", status=404)
        return found

    def make_bucket(self, name: str, *, owner: str = ACCOUNT, versioning: str = "") -> Bucket:
        """A fresh bucket, in the place of any of that name."""
        with self.lock:
            made = Bucket(name=name, created_s=SYSTEM_CLOCK.now_ns() / 1e9, owner=owner, versioning=versioning)
            self.buckets[name] = made
            return made

    def lose_since(self, moment: float) -> None:
        with self.lock:
            for bucket in self.buckets.values():
                bucket.lose_since(moment)
