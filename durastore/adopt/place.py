"""The private folder of a reconciled folder: a spool root of its own, with lock, record, quarantine.

Duty: make or recognise `DIR/.durastore`, hold it, and move damaged files aside. Must never unlink, and never work in a
folder that is not the one it was, or that lies in another spool root.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from durastore.adopt.inspect import find_fault
from durastore.clock import Clock
from durastore.errors import DiskFailed, RootMismatch, StoreMissing
from durastore.formats.spool_root import GOING_NAME, PRIVATE_ROOT_NAME, ROOT_MARKER_NAME
from durastore.fsio.folder import Folder
from durastore.fsio.paths import open_parent
from durastore.fsio.relocate import relocate, relocate_shared
from durastore.model import Digest
from durastore.observe.events import LOGGER
from durastore.spool.nearby import root_above, spools_in
from durastore.spool.root import SpoolRoot

if TYPE_CHECKING:  # imported where they are used: who only looks at a folder needs neither
    from durastore.reclaim.foreign import ForeignPlace
    from durastore.spool.spool import Spool

__all__ = [
    "PRIVATE_NAME",
    "FolderPlace",
    "check_folder",
    "hold_folder",
    "opened_place",
    "put_aside",
    "quarantine_name",
    "refuse_private_root",
    "refuse_spools",
    "take_back",
]

PRIVATE_NAME = PRIVATE_ROOT_NAME
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
        from durastore.reclaim.foreign import ForeignPlace

        return ForeignPlace(
            folder=self.folder,
            going=self.going,
            quarantine=self.spool.quarantine_folder,
            journal=self.spool.journal,
            check=self.check,
        )


def hold_folder(path: Path) -> Folder:
    """The folder, held. `StoreMissing` where there is none, `RootMismatch` where it lies inside a spool root or a
    private folder, is a spool root that lost its marker, or has a private folder that is not its own.
    """
    real = Path(os.path.realpath(path))
    try:
        folder = Folder.open(real)
    except OSError as exc:
        raise StoreMissing(f"folder {path}: {exc.strerror}", hint="check the path; nothing was changed") from exc
    try:
        _refuse_inside(real)
        refuse_spools(spools_in(folder), folder=real)
        _refuse_strange_private(folder)
    except BaseException:  # whoever was refused, or interrupted, holds no folder
        folder.close()
        raise
    return folder


def refuse_private_root(path: Path) -> None:
    """`RootMismatch` where a spool root is the private one of a folder: what it holds belongs to that folder."""
    real = Path(os.path.realpath(path))
    if real.name == PRIVATE_NAME and (real / GOING_NAME).exists():
        raise RootMismatch(
            f"{path} is the private folder of {real.parent}",
            hint=f"reconcile --local {real.parent}; nothing was changed",
        )


def refuse_spools(names: Sequence[str], *, folder: Path) -> None:
    """`RootMismatch` where spools were seen in a folder that has no root's marker: their packs are no files of others,
    and freed as such they would be missing in the journal that knows them.
    """
    if names:
        raise RootMismatch(
            f"{folder / names[0]} looks like a spool, and there is no {ROOT_MARKER_NAME} beside it",
            hint="a spool root lost its marker: put it back, or open the root with durastore.open, which makes a new "
            "one and proves every pack again; nothing of it was touched",
        )


def _refuse_inside(real: Path) -> None:
    above = root_above(real)
    private = next((parent for parent in real.parents if (parent / PRIVATE_NAME / ROOT_MARKER_NAME).exists()), None)
    for root in (above, private):
        if root is not None:
            raise RootMismatch(f"{real} lies inside the root {root}", hint=f"reconcile --local {root}")
    if PRIVATE_NAME in real.parts:
        outer = Path(*real.parts[: real.parts.index(PRIVATE_NAME)])
        raise RootMismatch(f"{real} lies inside the private folder of {outer}", hint=f"reconcile --local {outer}")


def _refuse_strange_private(folder: Folder) -> None:
    """A link would lead to the record, lock and quarantine of another folder; one without marker hides much."""
    try:
        with folder.child(PRIVATE_NAME) as private:
            if not private.has(ROOT_MARKER_NAME):
                refuse_spools(spools_in(private), folder=private.path)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise RootMismatch(
            f"{folder.path / PRIVATE_NAME} is no folder that can be opened: {exc.strerror}",
            hint="a link or a file of that name is not used: move it away",
        ) from exc


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
    from durastore.spool.spool import Spool

    with ExitStack() as stack:
        root = SpoolRoot.open(folder.path / PRIVATE_NAME, is_any_filesystem_allowed=is_any_filesystem_allowed)
        stack.callback(root.close)
        spool = Spool.claim_first(root, clock=clock)
        stack.callback(spool.close)
        going = stack.enter_context(root.folder.ensure_child(GOING_NAME))
        spool.journal.announce_writer()
        place = FolderPlace(folder=folder, root=root, spool=spool, going=going)
        place.check()
        yield place


def take_back(place: FolderPlace) -> list[str]:
    """What an interrupted reclaim had moved is moved back, before anything is looked at; returns the paths."""
    if not place.going.names():
        return []
    from durastore.reclaim.foreign import restore_moved

    moved = restore_moved(place.foreign())
    for path in moved:
        LOGGER.warning("%s was moved for reclaiming by a run that ended, and is back", path)
    return moved


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
        fault = find_fault(file.fileno(), path)
    if fault is not None and fault.is_damage:
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
