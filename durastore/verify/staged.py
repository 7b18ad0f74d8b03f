"""From a durable sample to the right to drop the staging file that it was parsed from: the one issuer of
`StagingReceipt`.

Duty: look at an open file and ask whoever knows whether its sample is durable, or its request dead. Must never take a
file's age, name or size for an answer, and never answer for a file that changed since it was parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from durastore.clock import Clock
from durastore.errors import NotVerified
from durastore.fsio.identity import FileIdentity, identify
from durastore.verify.receipt import StagingReceipt, mint_staging

__all__ = ["RECEIPT_TTL_S", "StagedFile", "guard_unchanged", "verify_dead", "verify_ingested"]

RECEIPT_TTL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One file of a server, as it was before and after its bytes were read."""

    path: str
    """Relative to the staging folder."""
    identity: FileIdentity


def guard_unchanged(staged: StagedFile, *, fd: int) -> None:
    """`NotVerified` unless the open file is exactly the one that was parsed. To be asked before its name is moved,
    which sets the change time anew.
    """
    if identify(fd) != staged.identity:
        raise NotVerified(f"{staged.path}: it changed since it was parsed")


def verify_ingested(staged: StagedFile, *, fd: int, holds: Callable[[], bool], clock: Clock) -> StagingReceipt:
    """A receipt for a file whose sample the store holds; `holds` asks the store, now.

    `NotVerified` where it does not hold it, or where the open file is not the inode that was parsed. What `holds`
    raises passes.
    """
    now = identify(fd)
    if not now.is_same_renamed(staged.identity):
        raise NotVerified(f"{staged.path}: it is not the file that was parsed")
    if not holds():
        raise NotVerified(f"{staged.path}: the store does not hold its sample")
    return mint_staging(identity=now, clock=clock, ttl_s=RECEIPT_TTL_S)


def verify_dead(path: str, *, fd: int, is_dead: Callable[[], bool], clock: Clock) -> StagingReceipt:
    """A receipt for a file of a request that can never be ingested; `is_dead` asks whoever made the request, now.

    `NotVerified` where it may still be. What `is_dead` raises passes.
    """
    now = identify(fd)
    if not is_dead():
        raise NotVerified(f"{path}: its request may still be answered")
    return mint_staging(identity=now, clock=clock, ttl_s=RECEIPT_TTL_S)
