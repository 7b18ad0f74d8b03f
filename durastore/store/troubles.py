"""What a failed upload or look means for its pack. Pure: errors in, a decision out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from durastore.errors import (
    BucketMissing,
    CredentialsRefused,
    DiskFailed,
    DurastoreError,
    EndpointUnreachable,
    IntegrityError,
    NotVerified,
    ObjectAbsent,
    PackFailed,
    UnknownAnswer,
)
from durastore.model import PackState
from durastore.spool.journal import PackRecord

__all__ = ["Trouble", "judge_upload", "judge_verification"]

_DAMAGE_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The reaction: by default wait and try again for ever."""

    is_final: bool = False
    """The pack is set aside for this session; its file stays."""
    stops_puts: bool = False
    """Nothing will get through until someone acts: `put` says so."""
    moves_back_to: PackState | None = None
    is_local_suspect: bool = False
    needs_rewrite: bool = False
    max_attempts: float = math.inf

    def failure(self, record: PackRecord, error: BaseException) -> PackFailed:
        """What `flush`, `close` and the exit code report."""
        failed = PackFailed(
            f"pack {record.name} ({record.sample_count} samples) did not reach the bucket: {error}",
            hint="its samples are safe in the spool; the same command tries again",
            pack=record.name,
        )
        failed.__cause__ = error
        return failed


def judge_upload(error: BaseException) -> Trouble:
    """After an upload that did not end with an acknowledgement."""
    if isinstance(error, CredentialsRefused | BucketMissing):
        return Trouble(stops_puts=True)
    if isinstance(error, UnknownAnswer):
        # for example "it exists" and "it is absent" in turn; writing the same bytes again settles it (INV-4)
        return Trouble(needs_rewrite=True)
    if isinstance(error, EndpointUnreachable | ObjectAbsent):
        return Trouble()
    if isinstance(error, IntegrityError) and error.facts.get("is_conflict"):
        return Trouble(is_final=True, moves_back_to=PackState.CONFLICT)
    if isinstance(error, IntegrityError) and error.facts.get("is_own_damaged"):
        return Trouble(needs_rewrite=True, max_attempts=_DAMAGE_ATTEMPTS)  # acknowledged, and stored wrong (case B75)
    if isinstance(error, IntegrityError | DiskFailed | OSError):
        return Trouble(is_local_suspect=True)
    if isinstance(error, DurastoreError):
        # also a refusal: the probe under way may find headers that are taken (case B160)
        return Trouble(max_attempts=_DAMAGE_ATTEMPTS)
    return Trouble(is_final=True)


def judge_verification(error: BaseException) -> Trouble:
    """After a look at the bucket that did not end with evidence."""
    if isinstance(error, IntegrityError | ObjectAbsent):
        # acknowledged, and then other bytes or nothing: send it again, but not for ever (cases B05, B75)
        return Trouble(moves_back_to=PackState.SEALED, needs_rewrite=True, max_attempts=_DAMAGE_ATTEMPTS)
    if isinstance(error, CredentialsRefused):
        return Trouble(stops_puts=True)
    if isinstance(error, EndpointUnreachable | UnknownAnswer | NotVerified):
        return Trouble()
    if isinstance(error, DurastoreError):
        return Trouble(max_attempts=_DAMAGE_ATTEMPTS)
    return Trouble(is_final=True)
