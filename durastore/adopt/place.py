"""The private folder of a reconciled folder: a spool root of its own, with lock, record, quarantine.

Duty: make or recognise `DIR/.durastore`, hold it, and move damaged files aside. Must never unlink, and never work in a
folder that is not the one it was, or that lies in another spool root.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath

from durastore.adopt.inspect import find_damage
from durastore.clock import Clock
from durastore.errors import DiskFailed, RootMismatch, StoreMissing
from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.fsio.folder import Folder
from durastore.fsio.paths import open_parent
from durastore.fsio.relocate import relocate, relocate_shared
from durastore.model import Digest
from durastore.reclaim.foreign import ForeignPlace
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool

__all__ = ["PRIVATE_NAME", "FolderPlace", "hold_folder", "opened_place", "put_aside", "quarantine_name"]

PRIVATE_NAME = ".durastore"
_MAX_NAME_BYTES = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderPlace:
    """A folder and its private one, both held; the lock of the private spool is ours."""

    folder: Folder
    root: SpoolRoot
    spool: Spool
    going: Folder

    def check(self) -> None:
        """`RootMismatch` or `SpoolLocked` unless path, folders, file system and lock are what was opened."""
        self.spool.check_held()
        check_folder(self.folder)

    def foreign(self) -> ForeignPlace:
        """As the reclaimer takes it."""
        return ForeignPlace(
            folder=self.folder,
            going=self.going,
            quarantine=self.spool.quarantine_folder,
            journal=self.spool.journal,
            check=self.check,
        )


def hold_folder(path: Path) -> Folder:
    """The folder, held. `StoreMissing` where there is none, `RootMismatch` where it lies inside a spool root."""
    real = Path(os.path.realpath(path))
    try:
        folder = Folder.open(real)
    except OSError as exc:
        raise StoreMissing(f"folder {path}: {exc.strerror}", hint="check --local; nothing was changed") from exc
    for parent in real.parents:
        if (parent / ROOT_MARKER_NAME).exists() or (parent / PRIVATE_NAME / ROOT_MARKER_NAME).exists():
            folder.close()
            raise RootMismatch(f"{path} lies inside the root {parent}", hint=f"reconcile --local {parent}")
    return folder


def check_folder(folder: Folder) -> None:
    """`RootMismatch` unless the path still leads to the held folder (case B20)."""
    held = os.fstat(folder.fd)
    try:
        now = os.stat(folder.path)
    except OSError as exc:
        raise RootMismatch(f"folder {folder.path} is not there any more: {exc.strerror}") from exc
    if (now.st_dev, now.st_ino) != (held.st_dev, held.st_ino):
        raise RootMismatch(f"folder {folder.path} is another directory than the one opened")


@contextmanager
def opened_place(folder: Folder, *, clock: Clock, is_any_filesystem_allowed: bool) -> Iterator[FolderPlace]:
    """The place of a held folder, made if it is new, for as long as the block lasts.

    `SpoolLocked` where another process is at work here; `RootMismatch`, `UnsupportedFilesystem` as `SpoolRoot.open`.
    """
    with ExitStack() as stack:
        root = SpoolRoot.open(folder.path / PRIVATE_NAME, is_any_filesystem_allowed=is_any_filesystem_allowed)
        stack.callback(root.close)
        spool = Spool.claim_first(root, clock=clock)
        stack.callback(spool.close)
        going = stack.enter_context(root.folder.ensure_child("going"))
        spool.journal.announce_writer()
        place = FolderPlace(folder=folder, root=root, spool=spool, going=going)
        place.check()
        yield place


def put_aside(place: FolderPlace, path: str) -> str:
    """Move a damaged file of the folder into quarantine; returns its name there. OSError, `DiskFailed` where it cannot
    be, also where the file that was moved turns out to be whole: its producer wrote it anew, and it is put back.
    """
    parent, name = open_parent(place.folder, path)
    try:
        wanted = quarantine_name(path)
        for attempt in range(10_000):
            new_name = wanted if attempt == 0 else f"{wanted}.{attempt}"
            try:
                relocate_shared(parent, name, target=place.spool.quarantine_folder, new_name=new_name)
            except FileExistsError:
                continue
            _check_moved(place, new_name, parent=parent, path=path)
            return new_name
    finally:
        parent.close()
    raise FileExistsError(f"{place.spool.quarantine_folder.path} holds ten thousand files called {wanted}")


def _check_moved(place: FolderPlace, new_name: str, *, parent: Folder, path: str) -> None:
    quarantine = place.spool.quarantine_folder
    with closing(FileIO(quarantine.open_read(new_name))) as file:
        if find_damage(file.fileno(), path) is not None:
            return
    relocate(quarantine, new_name, target=parent, new_name=PurePosixPath(path).name)
    raise DiskFailed(f"{path} was written anew while it was moved, and is back in its place", errno=errno.EAGAIN)


def quarantine_name(path: str) -> str:
    """One name for a path: `%` and `/` escaped; a name too long for a directory entry is cut and gets its digest."""
    name = "%25".join(path.split("%"))
    name = "%2F".join(name.split("/"))
    if len(name.encode()) <= _MAX_NAME_BYTES:
        return name
    cut = name.encode()[-_MAX_NAME_BYTES + 40 :].decode("utf-8", "ignore")
    return f"{Digest.of(path.encode()).hex}-{cut}"
