"""From a copy on another device to the right to drop its source: the one issuer of `CopyReceipt`.

Duty: look at two open files and say whether one proves the other. Must never count a copy on the same device, one that
nobody read back, or one whose name leads elsewhere by now.
"""

from __future__ import annotations

from dataclasses import dataclass

from durastore.clock import Clock
from durastore.errors import NotVerified
from durastore.fsio.cache import drop_cached
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.space import are_apart
from durastore.model import Digest
from durastore.verify.local import digest_of
from durastore.verify.receipt import CopyReceipt, mint_copy

__all__ = ["RECEIPT_TTL_S", "CopiedFile", "TargetFile", "verify_copy"]

RECEIPT_TTL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFile:
    """One file that was copied, as both sides were when the copy had its name."""

    path: str
    """Relative to source and target alike."""
    source: FileIdentity
    target: FileIdentity
    digest: Digest
    """Of the bytes read from the source, and of those read back from the target's device."""
    is_quiet: bool
    """The kernel said, before and after the reading, that nobody had the source open for writing."""
    is_read_back: bool
    """In this process; else it is on record only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFile:
    """The copy: open, and where its name is."""

    fd: int
    folder: Folder
    name: str


def verify_copy(copied: CopiedFile, *, source_fd: int, target: TargetFile, clock: Clock) -> CopyReceipt:
    """A receipt for the open source, whose name may have been moved since it was read.

    `NotVerified` with the reason in every case of doubt; OSError where a side cannot be read. Reads the target in full
    unless this process did and it has not changed since; the source likewise if somebody may have written to it.
    """
    source, now = identify(source_fd), identify(target.fd)
    if not are_apart(source_fd, target.fd):
        raise NotVerified(f"{copied.path}: source and copy are on one device")
    if not source.is_same_renamed(copied.source):  # the change time was compared before the move
        raise NotVerified(f"{copied.path}: the source is not the file that was copied")
    named = target.folder.identity(target.name)
    if not named.is_same_inode(now):
        raise NotVerified(f"{copied.path}: another file has the name of the copy")
    if now.size_bytes != source.size_bytes:
        raise NotVerified(f"{copied.path}: the copy has {now.size_bytes} bytes, the source {source.size_bytes}")
    if not copied.is_read_back or now != copied.target:
        drop_cached(target.fd)
        if digest_of(target.fd) != copied.digest:
            raise NotVerified(f"{copied.path}: the copy does not have the bytes that were read")
        if identify(target.fd) != now:
            raise NotVerified(f"{copied.path}: the copy changes while it is read")
    if not copied.is_quiet and digest_of(source_fd) != copied.digest:
        raise NotVerified(f"{copied.path}: the source was written to while it was copied")
    return mint_copy(identity=source, target=now, digest=copied.digest, clock=clock, ttl_s=RECEIPT_TTL_S)
