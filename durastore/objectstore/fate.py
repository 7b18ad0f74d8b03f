"""Whether a bucket and a local place are lost together: then no copy in the one may free a file in the other.

Duty: one question, asked before anything is written, by all that may free files. Must never take a device number of its
own for a disk of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

from durastore.errors import SameFailureDomain, SpoolUnreadable
from durastore.fsio.space import are_one_domain, filesystem_of
from durastore.objectstore.port import ObjectStore

__all__ = ["refuse_same_fate"]

_HINT = 'use a bucket on another disk or machine, or reclaim="never" (--reclaim never), which keeps every local file'


def refuse_same_fate(objects: ObjectStore, local: Path, *, is_allowed: bool) -> None:
    """`SameFailureDomain` where the bucket lies on the disk of `local` (which need not be there yet), in memory, or in
    layers over disks that may be the same. `is_allowed`: the last two are what the caller wants. `SpoolUnreadable`
    where nobody tells what `local` lies on.
    """
    kind, _, _ = objects.failure_domain.partition(":")
    if kind == "memory" and not is_allowed:
        raise SameFailureDomain(
            f"the bucket {objects.url} is in memory and ends with this process or machine", hint=_HINT
        )
    if kind == "layers" and not is_allowed:
        raise SameFailureDomain(
            f"the bucket directory {objects.url} is in layers over other disks, perhaps that of {local}", hint=_HINT
        )
    if kind in ("disk", "pool") and are_one_domain(objects.failure_domain, _domain_of(local)):
        raise SameFailureDomain(
            f"the bucket directory {objects.url} and {local} lie on the same file system or disk", hint=_HINT
        )


def _domain_of(local: Path) -> str:
    """Of the folder itself, or of where it would be made."""
    place = Path(os.path.realpath(local))  # where a link leads, also one to what is not there yet: it is made there
    try:
        while not place.exists():
            place = place.parent
        return filesystem_of(place).domain
    except OSError as exc:
        raise SpoolUnreadable(f"spool root {local}: {exc.strerror or exc}", errno=exc.errno) from exc
