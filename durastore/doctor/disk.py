"""The disk under a spool root, and whether the root is still the one that it was.

Duty: identity, kind of file system, errors that it has on record, room. Reads only. Must never make a root where there
is none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durastore.doctor.request import Examination
from durastore.doctor.stages import Verdict
from durastore.fsio.space import filesystem_of
from durastore.spool.opened import opened_root
from durastore.spool.root import SpoolRoot

__all__ = ["DiskLook", "find_disk_faults", "find_disk_notes", "look_at_disk", "look_below"]

_LEAST_BYTES = 1 << 20
"""With less than this no journal transaction is sure to go through."""
_MOVE = "durastore migrate SRC DST brings it to another disk, and proves the copy"
_SYS = Path("/sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLook:
    """What there is to know of the file system under a folder."""

    path: str
    type_name: str
    is_local_disk: bool
    is_read_only: bool
    free_bytes: int
    size_bytes: int
    free_inodes: int | None
    """None where the file system does not count them."""
    error_count: int | None
    """Errors that ext4 has on record in its superblock; None where nobody counts."""

    def facts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def look_at_disk(seen: Examination) -> Verdict:
    """Opens the root for the stages after it. `StoreMissing`, `RootMismatch` where it is none, or another one."""
    request = seen.request
    with opened_root(request.local):
        pass  # it is one: opening it would make it one
    root = SpoolRoot.open(request.local, is_any_filesystem_allowed=True)
    seen.resources.callback(root.close)
    seen.root = root
    look = look_below(root.path)
    options = request.options
    faults = list(find_disk_faults(look, is_any_allowed=options.is_any_filesystem_allowed))
    notes = list(find_disk_notes(look, reserve_bytes=options.reserve_bytes))
    facts: dict[str, Any] = {"root": look.facts()}
    if request.staging is not None and request.staging.is_dir():
        staging = look_below(request.staging)
        facts["staging"] = staging.facts()
        if staging.is_read_only or staging.free_bytes < _LEAST_BYTES:
            faults.append(f"the server cannot write to {staging.path}: full or read-only")
    summary = f"{look.type_name}, {look.free_bytes} of {look.size_bytes} bytes free"
    return Verdict.of_faults(faults, notes, summary=summary, facts=facts)


def look_below(path: Path) -> DiskLook:
    """The file system that holds `path`. OSError where it does not answer."""
    kind = filesystem_of(path)
    stat = os.statvfs(path)
    return DiskLook(
        path=str(path),
        type_name=kind.type_name,
        is_local_disk=kind.is_local_disk,
        is_read_only=bool(stat.f_flag & os.ST_RDONLY),
        free_bytes=stat.f_bavail * stat.f_frsize,
        size_bytes=stat.f_blocks * stat.f_frsize,
        free_inodes=stat.f_favail if stat.f_files else None,
        error_count=_count_errors(kind.st_dev),
    )


def _count_errors(st_dev: int) -> int | None:
    device = _SYS / "dev" / "block" / f"{os.major(st_dev)}:{os.minor(st_dev)}"
    try:
        name = device.resolve(strict=True).name
        text = (_SYS / "fs" / "ext4" / name / "errors_count").read_text(encoding="ascii")
    except OSError:
        return None  # no ext4, or a container that does not show it
    return int(text) if re.fullmatch(r"[0-9]+\n?", text) else None


def find_disk_faults(look: DiskLook, *, is_any_allowed: bool) -> Iterator[str]:
    """Why nothing can be written here, or why what is written may not last."""
    if look.is_read_only:
        yield f"{look.path} is mounted read-only: a disk that fails is often made so; {_MOVE}"
    if look.error_count:
        yield f"the file system has {look.error_count} errors on record: check it (fsck) before it is used; {_MOVE}"
    if not look.is_local_disk and not is_any_allowed:
        yield f"{look.path} is on {look.type_name}, which may lose acknowledged data; {_MOVE}"
    if look.free_bytes < _LEAST_BYTES:
        yield f"{look.path} is full: free some of it, or {_MOVE}"
    if look.free_inodes == 0:
        yield f"{look.path} has no inode left: no file can be made; {_MOVE}"


def find_disk_notes(look: DiskLook, *, reserve_bytes: int) -> Iterator[str]:
    """What to know."""
    if _LEAST_BYTES <= look.free_bytes < reserve_bytes:
        yield f"less than the reserve of {reserve_bytes} bytes is free: puts wait until proven packs were freed"
