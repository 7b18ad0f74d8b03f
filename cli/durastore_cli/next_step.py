"""What to do about an error, where the error itself does not say.

Duty: one sentence for each error code and for the system's own errors, so that no message ends without a next step.
Decides nothing: what is safe was settled where the error was raised.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from types import MappingProxyType

from durastore.errors import DurastoreError

__all__ = ["AGAIN", "BY_CODE", "next_step"]

AGAIN = "the same command again goes on where this one stopped"
_PLACE = "check the endpoint and what lies between: a proxy, a web page that answers instead; " + AGAIN
_DISK = "check the disk (`dmesg`, its room, is it mounted?); nothing was freed; " + AGAIN
_READ_BACK = "keep every local file; `durastore verify --deep` and `durastore reconcile` tell what is whole"

BY_CODE: Mapping[str, str] = MappingProxyType(
    {
        "error": "--debug shows where it happened; " + AGAIN,
        "invalid-input": "mend what the message names; nothing was written",
        "invalid-sample-id": "ids are NFC text of at most 512 bytes without control characters or empty segments",
        "unsupported-tensor": "convert it to a dtype and layout that safetensors has",
        "sample-exists": "use another id, or another prefix for another run",
        "sample-absent": "`durastore ls` lists the samples that there are",
        "config": "the command's --help tells what may be given",
        "run-mismatch": "use another prefix for another run, or restore the old settings",
        "same-failure-domain": "use a bucket on another disk or machine, or --reclaim never",
        "unsupported-filesystem": "use a directory on a local disk (ext4, xfs, btrfs, ...)",
        "no-store": "check the path, or bucket and prefix",
        "no-bucket": "check the bucket's name and the endpoint; durastore never creates one",
        "locked": "wait for the other process, or ask it to end: `durastore stop --local DIR`",
        "root-mismatch": "is the right disk mounted there? `durastore doctor` looks",
        "format-unsupported": "use the version of durastore that wrote it, or a newer one",
        "closed": "open the store again; what was put is kept",
        "forked": "open a store in this process",
        "spool-full": "free some space, or find out why nothing is uploaded: `durastore status --local DIR`",
        "endpoint-unreachable": "check endpoint_url and the network; " + AGAIN,
        "endpoint-overloaded": "wait, or let fewer processes run at a time; " + AGAIN,
        "unknown-answer": _PLACE,
        "ambiguous-write": _PLACE,
        "credentials": "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_PROFILE",
        "permission": "docs/operations/iam.md tells what each role needs",
        "request-refused": "`durastore probe` shows what this endpoint takes",
        "object-absent": "`durastore reconcile` and `durastore verify` tell what the bucket lacks",
        "object-exists": "`durastore reconcile` compares both; nothing was replaced",
        "integrity": _READ_BACK,
        "not-verified": _READ_BACK,
        "receipt-refused": "the local file stays; " + AGAIN,
        "inventory-incomplete": "see to what could not be read, then the same command again; nothing was changed",
        "manifest-incomplete": "`durastore reconcile` names the segments; `durastore manifest rebuild` reads the packs",
        "pack-failed": "its samples are safe here: see to the cause, then `durastore drain --local DIR`",
        "partly-done": AGAIN,
        "engine": "see to the model or its device; " + AGAIN,
        "disk": _DISK,
        "journal": _DISK,
        "spool-unreadable": "`durastore doctor --local DIR` tells what can still be read; nothing was changed",
    }
)
_BY_ERRNO: Mapping[int, str] = MappingProxyType(
    {
        errno.EACCES: "check owner and mode of it and of the folders above; `id` tells who you are here",
        errno.EPERM: "check owner and mode of it and of the folders above; `id` tells who you are here",
        errno.ENOENT: "check the path; is its disk mounted?",
        errno.ENOTDIR: "a part of the path is a file, where a folder is meant",
        errno.EROFS: "the file system is mounted read-only: after an error of its disk, `dmesg` tells why",
        errno.ENOSPC: "free some space on this disk; what was put stays, and " + AGAIN,
        errno.EDQUOT: "your quota on this disk is used up; what was put stays, and " + AGAIN,
        errno.EMFILE: "raise the limit of open files (`ulimit -n`), then the same command again",
        errno.EIO: "the disk reports a fault: `dmesg`, and `durastore migrate` to another one",
    }
)


def next_step(exc: BaseException) -> str | None:
    """The error's own hint, else what the system's error number (its own, or its cause's) or the code asks for. None
    for an unknown exception.
    """
    if isinstance(exc, DurastoreError):
        cause = exc.__cause__.errno if isinstance(exc.__cause__, OSError) else None
        return exc.hint or _BY_ERRNO.get(exc.facts.get("errno") or cause or 0) or BY_CODE[exc.code]
    return _BY_ERRNO.get(exc.errno or 0) if isinstance(exc, OSError) else None
