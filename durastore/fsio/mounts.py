"""The kernel's table of mounts, and where a directory lies on its file system, whatever path led to it.

Duty: read the table, and see through bind mounts by it. Where it cannot be read nothing is claimed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["DiskPlace", "Mount", "disk_place", "kernel_place", "load_mounts"]

_TABLE = Path("/proc/self/mountinfo")
_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of the table. Names in it are bytes: what is no UTF-8 is in surrogates, as in every `Path`."""

    device: str
    """`<major>:<minor>`."""
    root: PurePosixPath
    """What of the file system is shown."""
    point: PurePosixPath
    """Where."""
    type_name: str


def load_mounts() -> list[Mount]:
    """All mounts, in the table's order: a later one hides an earlier one at the same point. OSError where the kernel
    does not tell.
    """
    found = []
    for line in _TABLE.read_bytes().split(b"\n"):
        place, _, kind = line.partition(b" - ")
        fields, type_name = place.split(b" "), kind.partition(b" ")[0]
        if len(fields) < 5 or not type_name:
            continue
        root, point = (PurePosixPath(_text(field)) for field in fields[3:5])
        found.append(Mount(device=_text(fields[2]), root=root, point=point, type_name=_text(type_name)))
    return found


@dataclass(frozen=True, slots=True)
class DiskPlace:
    """A directory, as the file system itself calls it."""

    device: str
    path: PurePosixPath

    def holds(self, other: DiskPlace) -> bool:
        """True if `other` is this directory, or lies in it."""
        return self.device == other.device and other.path.is_relative_to(self.path)


def disk_place(real: Path) -> DiskPlace | None:
    """Of an absolute path without links. None where the kernel does not tell."""
    try:
        mounts = load_mounts()
    except OSError:
        return None
    above = [mount for mount in mounts if PurePosixPath(real).is_relative_to(mount.point)]
    # a later line hides an earlier mount at the same point: of the deepest the last
    mount = max(reversed(above), key=lambda each: len(each.point.parts), default=None)
    if mount is None:
        return None
    return DiskPlace(mount.device, mount.root / PurePosixPath(real).relative_to(mount.point))


def kernel_place(fd: int) -> tuple[int, int]:
    """Device and inode of an open file by the numbers that the kernel's own tables have. Btrfs and overlays tell other
    ones by `stat`, which stand here where the tables do not tell.
    """
    stat = os.fstat(fd)
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii").splitlines()
        facts = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        mount = facts["mnt_id"].encode()
        fields = next(each for each in map(bytes.split, _TABLE.read_bytes().splitlines()) if each[0] == mount)
        major, _, minor = fields[2].partition(b":")
        return os.makedev(int(major), int(minor)), int(facts.get("ino", stat.st_ino))
    except (OSError, KeyError, StopIteration):
        return stat.st_dev, stat.st_ino


def _text(field: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))
