"""What kind of file system this is, and how much room it has.

Duty: tell a local disk from what only looks like one. Knowing no answer is told as "not a local disk".
"""

from __future__ import annotations

import fcntl
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from durastore.errors import DiskFailed
from durastore.fsio.mounts import load_mounts
from durastore.fsio.traces import IN_MEMORY, LAYERED, POOLED

__all__ = ["Filesystem", "are_apart", "are_one_domain", "disk_bytes", "filesystem_of", "free_bytes"]

_GET_UUID = 0x80111500
"""FS_IOC_GETFSUUID (Linux 6.9 and newer): a length, then 16 bytes."""
_FSID = "fsid-"
_FSID_LASTS = frozenset({"ext2", "ext3", "ext4", "btrfs"})
"""File systems that make their statvfs id of their UUID; elsewhere it may change with the device number at a reboot."""
_LOCAL_DISK = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "apfs", "hfs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    """The file system under a path."""

    type_name: str
    is_local_disk: bool
    """False for network, FUSE, memory and overlay file systems, and where the type is unknown."""
    uuid: str
    """Of the file system or its device where the system tells it, else the statvfs file-system id."""
    st_dev: int

    def is_surely_not(self, recorded: str) -> bool:
        """True if the uuid on record contradicts this one. One of each kind says nothing: the kernel may be newer."""
        is_weak = self.uuid.startswith(_FSID)
        if recorded == self.uuid or is_weak != recorded.startswith(_FSID):
            return False
        return not is_weak or self.type_name in _FSID_LASTS

    @property
    def has_syncfs(self) -> bool:
        """Whether `syncfs` does what `fsync` of every file does, and fails where that would. A FUSE or network server
        hears of none by it, and an overlay does not tell what the disk below could not write.
        """
        return self.is_local_disk or self.type_name in IN_MEMORY

    @property
    def domain(self) -> str:
        """What is lost with it, for `are_one_domain`. One in `memory:` ends with the machine; whether the disk under
        `layers:` is another one's too cannot be told.
        """
        if self.type_name in IN_MEMORY:
            return f"memory:{self.st_dev}"
        if self.type_name in LAYERED:
            return f"layers:{self.type_name}"
        if self.type_name not in POOLED:
            return f"disk:{self.st_dev}"
        # two datasets of one zfs pool have ids of their own, so all of them count as one
        is_known = self.type_name != "zfs" and not self.uuid.startswith(_FSID)
        return f"pool:{self.type_name}:{self.uuid}" if is_known else f"pool:{self.type_name}"


def filesystem_of(path: Path) -> Filesystem:
    """The file system that holds the existing `path`. OSError if the path cannot be looked at."""
    real = path.resolve(strict=True)
    st_dev = real.stat().st_dev
    type_name = _type_of(real, st_dev)
    return Filesystem(
        type_name=type_name,
        is_local_disk=type_name in _LOCAL_DISK,
        uuid=_own_uuid(real) or _device_uuid(st_dev) or f"{_FSID}{os.statvfs(real).f_fsid:x}",
        st_dev=st_dev,
    )


def are_one_domain(one: str, other: str) -> bool:
    """Whether what is in these domains ends together. A pool that is not known may be any pool of its type."""
    if one == other:
        return True
    return one.startswith("pool:") and (one.startswith(f"{other}:") or other.startswith(f"{one}:"))


def are_apart(one: int, other: int) -> bool:
    """Whether two open files lie on file systems that do not end together, as far as device numbers and ids tell. False
    where that cannot be known. OSError if a file cannot be looked at.
    """
    first, second = (filesystem_of(Path(os.readlink(f"/proc/self/fd/{fd}"))) for fd in (one, other))
    if first.st_dev == second.st_dev:
        return False
    return first.type_name not in POOLED or not are_one_domain(first.domain, second.domain)


def _type_of(real: Path, st_dev: int) -> str:
    """Of the mount that holds the path: the device number decides, the longest mount point above it breaks ties."""
    try:
        mounts = load_mounts()
    except OSError:
        return "unknown"
    want = f"{os.major(st_dev)}:{os.minor(st_dev)}"
    above = [mount for mount in mounts if real.is_relative_to(mount.point)]
    # a later line hides an earlier mount at the same point: of equal ones the last
    best = max(reversed(above), key=lambda mount: (mount.device == want, len(mount.point.parts)), default=None)
    return best.type_name if best is not None else "unknown"


def _own_uuid(real: Path) -> str | None:
    """As the file system tells it: also in a container, where no udev keeps a folder of them."""
    answer = bytearray(17)
    fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(fd, _GET_UUID, answer)
    except OSError:
        return None  # an older kernel, or a file system without one
    finally:
        os.close(fd)
    return str(uuid.UUID(bytes=bytes(answer[1:]))) if answer[0] == 16 and any(answer[1:]) else None


def _device_uuid(st_dev: int) -> str | None:
    folder = Path("/dev/disk/by-uuid")
    try:
        for entry in folder.iterdir():
            if entry.stat().st_rdev == st_dev:
                return entry.name
    except OSError:
        return None
    return None


def free_bytes(path: Path | int) -> int:
    """Bytes that this user may still write where `path` (or a descriptor) lies. `DiskFailed` if that place is gone."""
    stat = _statvfs(path)
    return stat.f_bavail * stat.f_frsize


def disk_bytes(path: Path | int) -> int:
    """Size of the file system of `path`. `DiskFailed` as `free_bytes`."""
    stat = _statvfs(path)
    return stat.f_blocks * stat.f_frsize


def _statvfs(path: Path | int) -> os.statvfs_result:
    try:
        return os.statvfs(path)
    except OSError as exc:  # unmounted, or replaced by another folder
        raise DiskFailed(f"the file system of {path} cannot be asked: {exc.strerror}", errno=exc.errno) from exc
