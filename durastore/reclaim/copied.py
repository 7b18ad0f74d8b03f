"""Reclaiming sources of a migration: files whose copy on another device was read back.

Order for each file (ADR 0009): lease and locks -> unchanged since it was read -> durable intent on the target's disk
-> moved into the private folder of the source -> proof, receipt -> receipt on record -> spend it, unlink the private
name. Whatever fails is moved back. A crash leaves the file in the private folder, and `restore_copied` takes it back.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from durastore.clock import Clock
from durastore.errors import DiskFailed, NotVerified, SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import identify
from durastore.fsio.lease import NotLeased, check_leased, leased
from durastore.fsio.lock import FlockedFile
from durastore.fsio.one_tree import is_one_tree
from durastore.fsio.paths import open_parent
from durastore.fsio.relocate import relocate_shared
from durastore.observe.events import LOGGER
from durastore.reclaim._unlink import unlink_proven
from durastore.reclaim.aside import move_back
from durastore.verify.copied import CopiedFile, TargetFile, verify_copy

__all__ = ["CopiedPlace", "CopiedReport", "IntentLog", "reclaim_copied", "restore_copied"]


class IntentLog(Protocol):
    """Where it is written what is about to go. Each call is durable when it returns, or raised."""

    def announce(self, private: str, path: str) -> None: ...

    def record_receipt(self, private: str, text: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPlace:
    """Both trees, held, and the private folder on the source's file system."""

    source: Folder
    target: Folder
    going: Folder
    """Nobody else puts a name there."""
    log: IntentLog
    check: Callable[[], None]
    """Raises if one of the folders or locks is no longer what was opened."""
    clock: Clock


@dataclass(slots=True)
class CopiedReport:
    """What was freed, and what stayed and why."""

    files: int = 0
    bytes_freed: int = 0
    kept: dict[str, str] = field(default_factory=dict)


def reclaim_copied(place: CopiedPlace, files: Iterable[CopiedFile]) -> CopiedReport:
    """Prove and free each source. What cannot be proven stays and is named in the report.

    `NotVerified`, `RootMismatch`, `DiskFailed` or OSError if what all of it rests on does not hold; then the remaining
    files are untouched.
    """
    report = CopiedReport()
    if is_one_tree(place.source, place.target):  # device numbers would not tell: ADR 0009
        raise NotVerified(f"{place.source.path} and {place.target.path} show one tree: its files are their own copies")
    for copied in files:
        place.check()  # a disk may have been unmounted or replaced between two files (case B20)
        try:
            freed = _free(place, copied)
        except (NotVerified, NotLeased, SpoolUnreadable, OSError) as exc:
            report.kept[copied.path] = str(exc)
            LOGGER.warning("kept %s: %s", copied.path, exc)
            continue
        report.files += 1
        report.bytes_freed += freed
    return report


def restore_copied(source: Folder, going: Folder, *, paths: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Take back what an interrupted reclaim had moved: the paths, and names that stay aside because nobody knows their
    path, or it is taken. `paths`: private name -> path. Safe to repeat.
    """
    restored, left = [], []
    for private in going.names():
        path = paths.get(private)
        if path is not None and _is_restored(source, going, private=private, path=path):
            restored.append(path)
        else:
            left.append(private)
    return restored, left


def _free(place: CopiedPlace, copied: CopiedFile) -> int:
    with ExitStack() as held:
        parent, name = open_parent(place.source, copied.path)
        held.callback(parent.close)
        target_folder, target_name = open_parent(place.target, copied.path)
        held.callback(target_folder.close)
        # alone here, shared there: of two migrates in opposite directions one at least is refused (case B21)
        source = _locked(parent, name, is_shared=False)
        held.callback(source.close)
        target = _locked(target_folder, target_name, is_shared=True)
        held.callback(target.close)
        held.enter_context(leased(source.fd))
        if identify(source.fd) != copied.source:
            raise NotVerified(f"{copied.path}: it changed since it was copied")
        if identify(source.fd).dev != os.fstat(place.going.fd).st_dev:
            raise NotVerified(f"{copied.path}: it lies on another file system than its tree")
        with _moved(place, parent, name=name, path=copied.path, fd=source.fd) as private:
            file = TargetFile(fd=target.fd, folder=target_folder, name=target_name)
            receipt = verify_copy(copied, source_fd=source.fd, target=file, clock=place.clock)
            check_leased(source.fd)
            place.log.record_receipt(private, receipt.render())  # INV-3
            return unlink_proven(place.going, private, receipt=receipt)


def _locked(folder: Folder, name: str, *, is_shared: bool) -> FlockedFile:
    lock = FlockedFile.try_lock_existing(folder, name, is_shared=is_shared)
    if lock is None:
        raise NotVerified(f"{folder.path / name}: somebody holds its lock")
    return lock


@contextmanager
def _moved(place: CopiedPlace, parent: Folder, *, name: str, path: str, fd: int) -> Iterator[str]:
    """The file under a private name; back under its own if the block does not end well."""
    private = secrets.token_hex(16)
    place.log.announce(private, path)  # before the move: it alone says where the file belongs
    try:
        try:
            relocate_shared(parent, name, target=place.going, new_name=private)
        except DiskFailed as exc:  # read-only, immutable: this file stays, others may go
            raise NotVerified(f"{path} cannot be moved: {exc.message}") from exc
        if not place.going.identity(private).is_same_inode(identify(fd)):
            raise NotVerified(f"{path}: another file came under its name")
        yield private
    except BaseException:
        if place.going.has(private) and not _is_restored(place.source, place.going, private=private, path=path):
            LOGGER.error("%s was moved for reclaiming and not proven; it lies in %s", path, place.going.path / private)
        raise


def _is_restored(source: Folder, going: Folder, *, private: str, path: str) -> bool:
    try:
        move_back(going, private, folder=source, path=path)
    except (OSError, ValueError, DiskFailed) as exc:  # FileExistsError: somebody made a new file of that name
        LOGGER.error("%s cannot be moved back: %s", path, exc)
        return False
    return True
