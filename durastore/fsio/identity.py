"""Which file this is: the five numbers that tell whether it is still the one we looked at."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

__all__ = ["FileIdentity", "identify", "identity_of"]

_SECOND_NS = 1_000_000_000
_COARSEST_NS = 2 * _SECOND_NS + _SECOND_NS // 2  # FAT counts in steps of two


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """Device, inode, size and both change times (nanoseconds) of one regular file."""

    dev: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    def would_show_change(self, now_ns: int) -> bool:
        """Whether a write from `now_ns` (wall clock) on leaves other times than these. Not where they are kept in whole
        seconds (ext4 with small inodes, ext3, FAT) and the last change is of this moment.
        """
        is_coarse = self.ctime_ns % _SECOND_NS == 0
        return not is_coarse or now_ns - max(self.mtime_ns, self.ctime_ns) >= _COARSEST_NS

    def is_of(self, stat: os.stat_result) -> bool:
        """Whether this is what `stat` tells: as to compare with `identity_of`, and nothing is made for it."""
        return (
            stat.st_ctime_ns == self.ctime_ns
            and stat.st_mtime_ns == self.mtime_ns
            and stat.st_size == self.size_bytes
            and stat.st_ino == self.inode
            and stat.st_dev == self.dev
        )

    def is_same_inode(self, other: FileIdentity) -> bool:
        """One file, whatever happened to it in between."""
        return (self.dev, self.inode) == (other.dev, other.inode)

    def is_same_renamed(self, then: FileIdentity) -> bool:
        """Unchanged but for the change time, which giving the file another name sets anew."""
        return self == replace(then, ctime_ns=self.ctime_ns)

    def is_same_remounted(self, then: FileIdentity) -> bool:
        """Unchanged but for the device number: a reboot may change that, and leaves the times of an inode."""
        return self == replace(then, dev=self.dev)

    def render(self) -> str:
        return f"{self.dev}:{self.inode}:{self.size_bytes}:{self.mtime_ns}:{self.ctime_ns}"

    @classmethod
    def parse(cls, text: str) -> FileIdentity:
        """Inverse of `render`; ValueError on anything else."""
        dev, inode, size_bytes, mtime_ns, ctime_ns = (int(part) for part in text.split(":"))
        return cls(dev=dev, inode=inode, size_bytes=size_bytes, mtime_ns=mtime_ns, ctime_ns=ctime_ns)


def identity_of(stat: os.stat_result) -> FileIdentity:
    """The identity that a stat result tells."""
    return FileIdentity(
        dev=stat.st_dev,
        inode=stat.st_ino,
        size_bytes=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        ctime_ns=stat.st_ctime_ns,
    )


def identify(fd: int) -> FileIdentity:
    """The identity of an open file."""
    return identity_of(os.fstat(fd))
