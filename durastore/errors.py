"""Every error durastore raises, by what the caller would do about it.

Duty: one class per reaction (fix the input, fix the configuration, wait, stop), each with a stable `code` and the
process exit code it maps to. Must never import anything else of durastore. Codes and exit codes are append-only.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar

__all__ = [
    "AmbiguousWrite",
    "BucketMissing",
    "ConfigError",
    "CredentialsRefused",
    "DiskFailed",
    "DurastoreError",
    "EndpointUnreachable",
    "EngineFailed",
    "ForkedStore",
    "FormatUnsupported",
    "IntegrityError",
    "InvalidInput",
    "InvalidSampleId",
    "InventoryIncomplete",
    "JournalFailed",
    "ManifestIncomplete",
    "NotVerified",
    "ObjectAbsent",
    "ObjectExists",
    "OverloadedEndpoint",
    "PackFailed",
    "PartlyDone",
    "PermissionRefused",
    "ReceiptRefused",
    "RequestRefused",
    "RootMismatch",
    "RunMismatch",
    "SameFailureDomain",
    "SampleAbsent",
    "SampleExists",
    "SpoolFull",
    "SpoolLocked",
    "SpoolUnreadable",
    "StoreClosed",
    "StoreMissing",
    "StoreWarning",
    "UnknownAnswer",
    "UnsupportedFilesystem",
    "UnsupportedTensor",
]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What the kernel says where a disk, or a user's share of it, is full."""


class StoreWarning(UserWarning):
    """Nothing is lost, but what was done is most often a slip: a store opened twice or not closed, a run left away."""


class DurastoreError(Exception):
    """Base of all errors raised on purpose. `hint` names the operator's next step, where there is one.

    `code` is the error's stable name, `exit_code` what a command ends with; `message` and `facts` say what happened.
    Instances survive pickling (a worker process hands them to its parent) with message, hint and facts.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, Any] = facts

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), (self.message, self.hint, self.facts))


def _rebuild(cls: type[DurastoreError], state: tuple[str, str | None, dict[str, Any]]) -> DurastoreError:
    message, hint, facts = state
    return cls(message, hint=hint, **facts)


# --- fix the input -------------------------------------------------------------------------------------------------


class InvalidInput(DurastoreError):
    """A value handed in cannot be stored as it is; nothing was written."""

    code, exit_code = "invalid-input", 2


class InvalidSampleId(InvalidInput):
    """The sample id breaks DESIGN 5's rule (NFC UTF-8, <= 512 bytes, no control character, no empty or dot segment)."""

    code = "invalid-sample-id"


class UnsupportedTensor(InvalidInput):
    """A tensor's dtype or layout has no lossless form in a sample."""

    code = "unsupported-tensor"


class SampleExists(InvalidInput):
    """This id already holds other content in this run; nothing was written."""

    code, exit_code = "sample-exists", 1


class SampleAbsent(DurastoreError, KeyError):
    """No live sample of this id."""

    code = "sample-absent"

    def __str__(self) -> str:  # KeyError would print the repr of its argument
        return DurastoreError.__str__(self)


# --- fix the configuration -----------------------------------------------------------------------------------------


class ConfigError(DurastoreError):
    """An option, URL or configuration file is wrong."""

    code, exit_code = "config", 2


class RunMismatch(ConfigError):
    """The prefix already holds samples of another `run`; the message carries the difference."""

    code = "run-mismatch"


class SameFailureDomain(ConfigError):
    """Spool and remote lie on one disk, so the remote copy would prove nothing."""

    code = "same-failure-domain"


class UnsupportedFilesystem(ConfigError):
    """The spool's file system cannot keep a promise (network, FUSE, tmpfs)."""

    code = "unsupported-filesystem"


class StoreMissing(DurastoreError):
    """There is no store (no marker, no spool root) where one was expected."""

    code, exit_code = "no-store", 10


class BucketMissing(StoreMissing):
    """The bucket itself does not exist."""

    code = "no-bucket"


class SpoolLocked(DurastoreError):
    """Another live process holds the lock."""

    code, exit_code = "locked", 11


class RootMismatch(DurastoreError):
    """The spool root is not the directory it was (unmounted, replaced, copied)."""

    code, exit_code = "root-mismatch", 12


class FormatUnsupported(DurastoreError):
    """Written by a newer major version; never guessed at."""

    code = "format-unsupported"


class StoreClosed(DurastoreError):
    """The store was closed, or stopped by an earlier error named in the cause."""

    code = "closed"


class ForkedStore(DurastoreError):
    """The store was opened in the parent process; open one in this process instead."""

    code = "forked"


# --- wait or retry -------------------------------------------------------------------------------------------------


class SpoolFull(DurastoreError):
    """Local space ran out and nothing was freed for `stall_s`."""

    code, exit_code = "spool-full", 14


class EndpointUnreachable(DurastoreError):
    """No answer from the endpoint. Safe to retry reads; a write may or may not have happened."""

    code, exit_code = "endpoint-unreachable", 20


class OverloadedEndpoint(EndpointUnreachable):
    """The endpoint asked for fewer requests (503 SlowDown, 429)."""

    code = "endpoint-overloaded"


class UnknownAnswer(DurastoreError):
    """The answer tells neither presence nor absence (5xx, odd 2xx, 403 on HEAD). Not knowing means keeping."""

    code, exit_code = "unknown-answer", 20


class AmbiguousWrite(UnknownAnswer):
    """A write whose answer was lost: settle it by reading back, by digest or write id."""

    code = "ambiguous-write"


class CredentialsRefused(DurastoreError):
    """Credentials are missing, expired or wrong."""

    code, exit_code = "credentials", 21


class PermissionRefused(CredentialsRefused):
    """The credentials are known but may not do this."""

    code = "permission"


class RequestRefused(DurastoreError):
    """The server understood and refused the request (4xx other than those above); repeating it cannot help."""

    code = "request-refused"


# --- stop ----------------------------------------------------------------------------------------------------------


class ObjectAbsent(DurastoreError):
    """404 for this key."""

    code = "object-absent"


class ObjectExists(DurastoreError):
    """412: create-only on an existing key."""

    code = "object-exists"


class IntegrityError(DurastoreError):
    """Bytes do not match their digest. Never retried as if it were a network error; never handed out."""

    code, exit_code = "integrity", 13


class NotVerified(DurastoreError):
    """A copy could not be proven; the local file stays."""

    code, exit_code = "not-verified", 13


class ReceiptRefused(NotVerified):
    """A receipt is spent, expired, or its file is not the file it was made for; the local file stays."""

    code = "receipt-refused"


class InventoryIncomplete(DurastoreError):
    """A listing, directory or segment could not be read; therefore there is no plan."""

    code, exit_code = "inventory-incomplete", 12


class ManifestIncomplete(InventoryIncomplete):
    """A writer's segment sequence has a gap, or a segment is unreadable."""

    code = "manifest-incomplete"


class PackFailed(DurastoreError):
    """One pack cannot reach the bucket; its samples are safe on local disk."""

    code, exit_code = "pack-failed", 3


class PartlyDone(DurastoreError):
    """The command did what it could; the message counts what is left."""

    code, exit_code = "partly-done", 3


class EngineFailed(DurastoreError):
    """The model cannot go on (a lost device, not one bad sample); what was stored is whole."""

    code = "engine"


class DiskFailed(DurastoreError):
    """A local write or fsync failed. The file concerned was abandoned, never retried in place."""

    code = "disk"

    @property
    def is_full(self) -> bool:
        """True if the disk or a quota had no room: to be tried again, elsewhere, once there is some."""
        return self.facts.get("errno") in NO_ROOM


class JournalFailed(DiskFailed):
    """The journal could not be read or written; the store stops, the next open moves it to a new file."""

    code = "journal"


class SpoolUnreadable(DiskFailed):
    """A file of the spool cannot be read or understood."""

    code = "spool-unreadable"
