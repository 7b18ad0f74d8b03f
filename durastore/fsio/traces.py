"""Whether whoever writes to a file leaves a trace in its times, so that what its bytes were may be put on record.

Duty: answer for a file system, by its device number. Must never take a file system that cannot be asked for one that
leaves them.
"""

from __future__ import annotations

import os

from durastore.fsio.mounts import load_mounts

__all__ = ["IN_MEMORY", "LAYERED", "POOLED", "Traces"]

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
"""File systems in memory. A page that was read through a writable mapping is written there without a fault, and so
without a new time: the file has other bytes, and all numbers that it was known by.
"""
LAYERED = frozenset({"overlay", "aufs", "ecryptfs", "fuse.mergerfs", "fuse.unionfs", "fuse.unionfs-fuse"})
"""File systems that show what lies on others, under a device number of their own. Those may be in memory."""
POOLED = frozenset({"btrfs", "zfs", "bcachefs"})
"""File systems that show one disk under several device numbers: a number for each subvolume or dataset."""


class Traces:
    """Asked about many files in a row; what was learnt of a file system is kept for as long as this is."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def are_left(self, dev: int) -> bool:
        """Whether every write to a file of this device sets its times, a mapped one too."""
        known = self._known.get(dev)
        if known is None:
            known = self._known[dev] = not _is_in_memory(dev)
        return known


def _is_in_memory(dev: int) -> bool:
    """True also where it may be, or nobody tells."""
    try:
        mounts = load_mounts()
    except OSError:
        return True
    want = f"{os.major(dev)}:{os.minor(dev)}"
    kinds = {mount.type_name for mount in mounts if mount.device == want}
    if not kinds:  # another namespace's, unmounted by now, or below layers; a subvolume is in no table either
        return not any(mount.type_name in POOLED for mount in mounts)
    return not kinds.isdisjoint(IN_MEMORY | LAYERED)
