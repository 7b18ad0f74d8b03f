"""Where a directory lies on its file system, whatever path led to it.

Duty: see through bind mounts, by the kernel's own table. Where that cannot be read nothing is claimed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["DiskPlace", "disk_place"]

_TABLE = Path("/proc/self/mountinfo")
_OCTAL = re.compile(rb"\\([0-7]{3})")


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
        lines = _TABLE.read_bytes().splitlines()
    except OSError:
        return None
    found: tuple[int, DiskPlace] | None = None
    for line in lines:
        fields = line.split(b" ")
        if len(fields) < 5:
            continue
        root, point = (PurePosixPath(_text(field)) for field in fields[3:5])
        if not PurePosixPath(real).is_relative_to(point):
            continue
        depth = len(point.parts)
        # a later line hides an earlier mount at the same point, so >= on ties
        if found is None or depth >= found[0]:
            found = depth, DiskPlace(fields[2].decode("ascii"), root / PurePosixPath(real).relative_to(point))
    return found[1] if found is not None else None


def _text(field: bytes) -> str:
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field).decode("utf-8", "surrogateescape")
