"""The spool root: the directory given as `local=`, and the proof that it still is that directory.

Duty: make or recognise a root, and refuse one that was unmounted, replaced, copied or moved away. An empty directory
where a full disk was mounted looks like "nothing to do" and is the beginning of every such loss (case B17, B20), so the
identity is compared before anything is freed. Must never create, move or drop a pack.
"""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import stat as stat_module
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from durastore.errors import NO_ROOM, DiskFailed, DurastoreError, RootMismatch, SpoolUnreadable, UnsupportedFilesystem
from durastore.formats.spool_root import (
    MOVED_NAME,
    ROOT_MARKER_NAME,
    RootRecord,
    parse_root,
    render_root,
)
from durastore.fsio.folder import Folder
from durastore.fsio.publish import publish
from durastore.fsio.space import Filesystem, filesystem_of
from durastore.spool.opened import refuse_unfinished

__all__ = ["RootIdentity", "SpoolRoot", "is_surely_copied", "read_moved"]

_MARKER_LIMIT_BYTES = 65_536
_REMOUNT = "mount the disk again; nothing was changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RootIdentity:
    """Which directory a root is. `dev` is good within one boot; the other numbers for the life of the root."""

    root_id: str
    fs_uuid: str
    dev: int
    directory_inode: int
    marker_inode: int


class SpoolRoot:
    """A held, identified spool root. Close it after the spools in it."""

    def __init__(self, folder: Folder, *, identity: RootIdentity, filesystem: Filesystem) -> None:
        self.folder = folder
        self.path = folder.path
        self.identity = identity
        self.filesystem = filesystem

    @classmethod
    def open(cls, path: Path | str, *, is_any_filesystem_allowed: bool = False) -> SpoolRoot:
        """Open the root at `path`, making directory and marker if there is none. Safe to repeat, also by two processes.

        `UnsupportedFilesystem` where the file system is not a local disk (unless allowed), `RootMismatch` where the
        root was moved away, copied or replaced, `SpoolUnreadable` where it cannot be read or its parent does not exist.
        """
        real = Path(os.path.realpath(path))
        try:
            _refuse_missing_parent(real)
            folder = Folder.create(real)
        except OSError as exc:
            raise _unopened(real, exc) from exc
        try:
            _refuse_moved(folder)
            filesystem = filesystem_of(real)
            if not filesystem.is_local_disk and not is_any_filesystem_allowed:
                raise UnsupportedFilesystem(
                    f"spool root {real} is on {filesystem.type_name}, which may lose acknowledged data",
                    hint="use a local disk (ext4, xfs, ...); DURASTORE_IS_ANY_FILESYSTEM_ALLOWED=1 takes the risk",
                )
            _settle_names(folder)
            return cls(folder, identity=_identify(folder, filesystem), filesystem=filesystem)
        except OSError as exc:
            folder.close()
            raise _unopened(real, exc) from exc
        except BaseException:
            folder.close()
            raise

    def check(self) -> None:
        """Pass if the path still leads to this very root; `RootMismatch` if it was unmounted, replaced or moved."""
        held = os.fstat(self.folder.fd)
        try:
            with Folder.open(self.path) as now:
                stat = os.fstat(now.fd)
                marker = now.identity(ROOT_MARKER_NAME)
                _refuse_moved(now)
        except (OSError, SpoolUnreadable) as exc:
            raise RootMismatch(f"spool root {self.path} is not there any more: {exc}", hint=_REMOUNT) from exc
        is_same_directory = (stat.st_dev, stat.st_ino) == (held.st_dev, held.st_ino)
        if not is_same_directory or (marker.dev, marker.inode) != (self.identity.dev, self.identity.marker_inode):
            raise RootMismatch(f"spool root {self.path} is another directory than the one opened", hint=_REMOUNT)

    def close(self) -> None:
        """Release the directory. Safe to repeat."""
        self.folder.close()


def _unopened(path: Path, exc: OSError) -> DiskFailed:
    if exc.errno in NO_ROOM:
        hint = "free some space on this disk, or use another --local"
        return DiskFailed(f"making spool root {path}: {exc.strerror}", hint=hint, errno=exc.errno)
    reason = "it has to be a folder" if exc.errno == errno.ENOTDIR else None
    return SpoolUnreadable(f"spool root {path}: {exc.strerror or exc}", hint=reason, errno=exc.errno)


def _refuse_missing_parent(path: Path) -> None:
    """Where a disk is not mounted its folders are missing, and a spool made there would fill the system's disk."""
    if not path.exists() and not path.parent.exists():
        raise SpoolUnreadable(
            f"spool root {path} cannot be made: {path.parent} does not exist",
            hint=f"is its disk mounted? If it is, make the folder: mkdir -p {shlex.quote(str(path.parent))}",
        )


def _settle_names(folder: Folder) -> None:
    """A process that ended between making a name and syncing it left one that a power cut would still take."""
    with suppress(PermissionError), Folder.open(folder.path.parent) as parent:
        parent.sync()
    folder.sync()


def _refuse_moved(folder: Folder) -> None:
    refuse_unfinished(folder)
    target = read_moved(folder)
    if target is None:
        return
    if not target:
        raise RootMismatch(f"spool root {folder.path} was moved away; its disk was too full to note where to")
    raise RootMismatch(f"spool root {folder.path} was moved to {target}", hint=f"use local={target}")


def read_moved(folder: Folder) -> str | None:
    """Where the contents of this root went; None if they are here. Empty where a full disk had no room for the path.

    A link is read and not followed: it is how a disk without a free block keeps a path. OSError, `SpoolUnreadable`.
    """
    if not folder.has(MOVED_NAME):
        return None
    if stat_module.S_ISLNK(os.stat(MOVED_NAME, dir_fd=folder.fd, follow_symlinks=False).st_mode):
        return os.readlink(MOVED_NAME, dir_fd=folder.fd)
    data = folder.read_bytes(MOVED_NAME, limit_bytes=_MARKER_LIMIT_BYTES)
    return data.decode("utf-8", "surrogateescape").strip("\n")


def is_surely_copied(folder: Folder) -> bool:
    """Whether the marker in it says that it was written elsewhere; False also where it says nothing. OSError."""
    try:
        record = parse_root(folder.read_bytes(ROOT_MARKER_NAME, limit_bytes=_MARKER_LIMIT_BYTES))
    except DurastoreError:
        return False  # who opens it says why
    return _is_elsewhere(record, folder, filesystem=filesystem_of(folder.path))


def _is_elsewhere(record: RootRecord, folder: Folder, *, filesystem: Filesystem) -> bool:
    is_other = record.directory_inode != os.fstat(folder.fd).st_ino
    return is_other or filesystem.is_surely_not(record.fs_uuid)


def _identify(folder: Folder, filesystem: Filesystem) -> RootIdentity:
    directory = os.fstat(folder.fd)
    if not folder.has(ROOT_MARKER_NAME):
        fresh = RootRecord(root_id=secrets.token_hex(16), fs_uuid=filesystem.uuid, directory_inode=directory.st_ino)
        try:
            publish(folder, ROOT_MARKER_NAME, chunks=[render_root(fresh)])
        except FileExistsError:
            pass  # another process made it in this moment: its marker holds
    record = parse_root(folder.read_bytes(ROOT_MARKER_NAME, limit_bytes=_MARKER_LIMIT_BYTES))
    if _is_elsewhere(record, folder, filesystem=filesystem):
        raise RootMismatch(
            f"spool root {folder.path} is a copy: its marker was written in another directory or file system",
            hint=f"use the original; if that is gone, rename {ROOT_MARKER_NAME} here: every pack is then checked anew",
        )
    return RootIdentity(
        root_id=record.root_id,
        fs_uuid=record.fs_uuid,
        dev=directory.st_dev,
        directory_inode=directory.st_ino,
        marker_inode=folder.identity(ROOT_MARKER_NAME).inode,
    )
