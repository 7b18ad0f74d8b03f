"""The two trees of a migration: found, held, locked, and known to be two.

Duty: refuse trees that overlap under whatever names, and tell at any moment whether both are still what was opened.
Must never make anything before the plan was accepted, and nothing in SRC but its private folder.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from durastore.errors import ConfigError, DiskFailed, RootMismatch, SpoolLocked, StoreMissing
from durastore.fsio.folder import Folder
from durastore.fsio.folding import Folding, find_folding
from durastore.fsio.lock import FlockedFile
from durastore.fsio.mounts import disk_place
from durastore.fsio.space import filesystem_of
from durastore.migrate.scan import PRIVATE_NAME, Scan
from durastore.observe.events import LOGGER

__all__ = ["Target", "Trees", "find_unwritable", "hold_trees", "make_target", "refuse_inside"]

_NFC_NAME = "caf\u00e9"
"""An empty folder by whose name a file system shows whether it knows accents in one form only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """Both trees as found, before anything is made."""

    source: Folder
    target_path: Path
    existing: Folder
    """DST, or where it does not exist yet the folder that it will be made in."""
    is_new: bool
    is_source_locked: bool

    @property
    def is_one_device(self) -> bool:
        return os.fstat(self.source.fd).st_dev == os.fstat(self.existing.fd).st_dev

    @property
    def source_id(self) -> str:
        """Which tree the records are about."""
        return f"{filesystem_of(self.source.path).uuid}:{os.fstat(self.source.fd).st_ino}"

    def find_folding(self) -> Folding:
        return find_folding(self.existing)

    def check(self) -> None:
        """`RootMismatch` unless the source's path still leads to the held folder (case B20)."""
        _check_held(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """DST, held and locked, with its private folders."""

    trees: Trees
    folder: Folder
    private: Folder
    temps: Folder
    superseded: Folder
    device: int
    has_syncfs: bool
    """One call makes all of it durable."""

    def check(self) -> None:
        """`RootMismatch` unless both paths still lead to the held folders (case B20)."""
        self.trees.check()
        _check_held(self.folder)


def hold_trees(source: Path, target: Path, *, stack: ExitStack) -> Trees:
    """Find both, hold them until `stack` ends, and lock what exists: nothing is made, nothing is written.

    `StoreMissing` where SRC, or the folder that DST would be in, does not exist; `ConfigError` where the trees overlap
    or one is a file;
    `SpoolLocked` where another migrate works on one of them.
    """
    held = _open(source, what="SRC")
    stack.enter_context(held)
    real = Path(os.path.realpath(target))
    is_new = not real.exists()
    # only the last folder is made: a path of which more is missing is most often a disk that is not mounted (case B20)
    existing = _open(real.parent if is_new else real, what="the folder of DST" if is_new else "DST")
    stack.enter_context(existing)
    _refuse_overlap(held, existing, target=real, is_new=is_new)
    is_source_locked = _is_locked(held, stack=stack)
    if not is_new:
        _is_locked(existing, stack=stack)
    return Trees(source=held, target_path=real, existing=existing, is_new=is_new, is_source_locked=is_source_locked)


def make_target(trees: Trees, *, stack: ExitStack) -> Target:
    """DST and its private folders, made where they are new and synced. `DiskFailed`."""
    try:
        if trees.is_new:
            folder = trees.existing.ensure_child(trees.target_path.name)
            stack.enter_context(folder)
            _is_locked(folder, stack=stack)
        else:
            folder = trees.existing
        private = stack.enter_context(folder.ensure_child(PRIVATE_NAME))
        temps, superseded, _ = (
            stack.enter_context(private.ensure_child(name)) for name in ("temp", "superseded", _NFC_NAME)
        )
    except OSError as exc:
        raise DiskFailed(f"making {trees.target_path}: {exc.strerror or exc}", errno=exc.errno) from exc
    device = os.fstat(folder.fd).st_dev
    return Target(
        trees=trees,
        folder=folder,
        private=private,
        temps=temps,
        superseded=superseded,
        device=device,
        has_syncfs=filesystem_of(folder.path).has_syncfs,
    )


def find_unwritable(folder: Folder) -> str | None:
    """Why nothing can be made in it; None where nothing speaks against it."""
    if os.statvfs(folder.fd).f_flag & os.ST_RDONLY:
        return f"({folder.path}) is on a file system that is mounted read-only"
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder.fd, effective_ids=True):
        return f"({folder.path}) may not be written by this user"
    return None


def refuse_inside(trees: Trees, scan: Scan) -> None:
    """`ConfigError` if DST turned up among the folders of SRC: a bind mount that the kernel's table did not show."""
    for folder in _ancestry(trees.existing):
        if folder in scan.folder_ids:
            raise _overlap(trees.source.path, trees.target_path, why="DST lies inside SRC")


def _open(path: Path, *, what: str) -> Folder:
    real = Path(os.path.realpath(path))
    try:
        return Folder.open(real)
    except OSError as exc:
        if real.exists() and not real.is_dir():
            hint = "migrate takes a folder with all that is in it, never a single file; nothing was made or changed"
            raise ConfigError(f"{what} {path} is no folder", hint=hint) from exc
        if exc.errno not in (errno.ENOENT, errno.ENOTDIR):  # it is there
            raise DiskFailed(f"{what} {path}: {exc.strerror or exc}", errno=exc.errno) from exc
        raise StoreMissing(
            f"{what} {path}: {exc.strerror}", hint="is the disk mounted? Nothing was made or changed"
        ) from exc


def _refuse_overlap(source: Folder, existing: Folder, *, target: Path, is_new: bool) -> None:
    above_source, above_target = _ancestry(source), _ancestry(existing)
    if above_source[0] == above_target[0] and not is_new:
        raise _overlap(source.path, target, why="they are the same folder")
    if above_source[0] in above_target:
        raise _overlap(source.path, target, why="DST lies inside SRC")
    if not is_new and above_target[0] in above_source:
        raise _overlap(source.path, target, why="SRC lies inside DST")
    one, other = disk_place(source.path), disk_place(target)
    if one is not None and other is not None and (one.holds(other) or other.holds(one)):
        raise _overlap(source.path, target, why=f"both lead to {one.path} on device {one.device}")


def _overlap(source: Path, target: Path, *, why: str) -> ConfigError:
    return ConfigError(f"{source} and {target} overlap: {why}", hint="give two separate folders; nothing was changed")


def _ancestry(folder: Folder) -> list[tuple[int, int]]:
    """Device and inode of the folder and of every one above it."""
    found: list[tuple[int, int]] = []
    at = folder.again()
    try:
        while True:
            stat = os.fstat(at.fd)
            if found and found[-1] == (stat.st_dev, stat.st_ino):
                return found  # the root is its own parent
            found.append((stat.st_dev, stat.st_ino))
            above = Folder(os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at.fd), at.path.parent)
            at.close()
            at = above
    finally:
        at.close()


def _is_locked(folder: Folder, *, stack: ExitStack) -> bool:
    """False where this file system knows no locks of folders (some network ones)."""
    try:
        lock = FlockedFile.try_lock_folder(folder)
    except DiskFailed as exc:
        LOGGER.warning("%s cannot be locked against another migrate: %s", folder.path, exc.message)
        return False
    if lock is None:
        raise SpoolLocked(f"another migrate works on {folder.path}", hint="wait for it, or stop it")
    stack.callback(lock.close)
    return True


def _check_held(folder: Folder) -> None:
    held = os.fstat(folder.fd)
    try:
        now = os.stat(folder.path)
    except OSError as exc:
        raise RootMismatch(f"{folder.path} is not there any more: {exc.strerror}", hint=_REMOUNT) from exc
    if (now.st_dev, now.st_ino) != (held.st_dev, held.st_ino):
        raise RootMismatch(f"{folder.path} is another directory than the one opened", hint=_REMOUNT)


_REMOUNT = "mount the disk again and run the same command"
