"""What lies below a folder: paths and sizes as columns, walked in parallel.

Duty: every entry once, no link followed, names as bytes until they are known to be text. A directory that cannot be
read is named, never passed over (INV-6). Must never open a file.
"""

from __future__ import annotations

import os
import stat as stat_module
import threading
from array import array
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from durastore.adopt.place import PRIVATE_NAME
from durastore.formats.spool_root import EXPORT_RECORD_NAME, ROOT_MARKER_NAME, is_spool_content, parse_spool_name
from durastore.fsio.folder import Folder
from durastore.fsio.paths import open_parent
from durastore.migrate.scan import PRIVATE_NAME as MIGRATE_NAME

__all__ = ["LocalInventory", "OddEntry", "Texts", "case_collisions", "is_empty_folder", "load_local", "texts"]

_THREADS = 2
"""The kernel answers quickly; more threads spend more on taking the interpreter's lock from each other."""
_OF_FILE_SYSTEM = b"lost+found/"

Texts: TypeAlias = "pa.Array[Any]"
"""A column of texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OddEntry:
    """An entry that is no ordinary file with a usable name: what it is, and its path as bytes."""

    path: bytes
    what: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalInventory:
    """All of a folder. `paths` are relative, with `/`, unordered; `sizes` go with them."""

    paths: Texts
    sizes: NDArray[np.int64]
    identities: NDArray[np.int64]
    """Inode, mtime_ns and ctime_ns of each, a row a file."""
    odd: tuple[OddEntry, ...] = ()
    unreadable: tuple[OddEntry, ...] = ()
    """Directories that could not be read: what is below them is unknown."""
    spools: tuple[str, ...] = ()
    """Folders that look like spools of a root whose marker is gone. Nothing may be planned about their files."""

    @property
    def is_empty(self) -> bool:
        """Nothing is in it, but for what a fresh file system has at its root: a disk that is new, or another one."""
        odd = [*self.odd, *self.unreadable]
        if self.spools or not all((entry.path + b"/").startswith(_OF_FILE_SYSTEM) for entry in odd):
            return False
        is_own = pc.starts_with(self.paths, pattern=_OF_FILE_SYSTEM.decode())
        return bool(is_own.to_numpy(zero_copy_only=False).all())


@dataclass(slots=True)
class _Found:
    """What the walk of one directory gave."""

    lead: bytes = b""
    """What the names of its entries begin with."""
    folders: list[bytes] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Files, without `lead`, as Python decodes names (what is no UTF-8 is in surrogates)."""
    numbers: array[int] = field(default_factory=partial(array, "q"))
    """Size, inode, mtime_ns and ctime_ns of each file: four a file, and no object of its own for the collector."""
    odd: list[OddEntry] = field(default_factory=list)
    unreadable: list[OddEntry] = field(default_factory=list)
    spools: list[str] = field(default_factory=list)


def texts(values: list[str] | list[bytes]) -> Texts:
    """An array of texts; `pa.ArrowInvalid` where bytes are no UTF-8."""
    if values and isinstance(values[0], bytes):
        return pa.array(values, type=pa.large_binary()).cast(pa.large_string())
    return pa.array(values, type=pa.large_string())


def load_local(root: Folder) -> LocalInventory:
    """Walk everything below `root`, but for `.durastore` and other roots inside of it. Raises nothing for what it
    meets: what could not be read is in the result. Safe to repeat.
    """
    path_chunks: list[Texts] = []
    size_chunks: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    identity_chunks: list[NDArray[np.int64]] = [np.empty((0, 3), dtype=np.int64)]
    odd: list[OddEntry] = []
    unreadable: list[OddEntry] = []
    spools: list[str] = []
    for found in _walk(root):
        odd.extend(found.odd)
        unreadable.extend(found.unreadable)
        spools.extend(found.spools)
        if found.names:
            paths, numbers, nameless = _columns(found)
            path_chunks.append(paths)
            size_chunks.append(numbers[:, 0])
            identity_chunks.append(numbers[:, 1:])
            odd.extend(nameless)
    none: Texts = texts([])
    return LocalInventory(
        paths=pa.concat_arrays([none, *path_chunks]),
        sizes=np.concatenate(size_chunks),
        identities=np.concatenate(identity_chunks),
        odd=tuple(sorted(odd, key=lambda each: each.path)),
        unreadable=tuple(sorted(unreadable, key=lambda each: each.path)),
        spools=tuple(sorted(spools)),
    )


def is_empty_folder(root: Folder) -> bool:
    """Whether nothing is right in `root`, but for what a fresh file system has there. OSError passes."""
    return not set(root.names()) - {_OF_FILE_SYSTEM.rstrip(b"/").decode()}


def _walk(root: Folder) -> Iterator[_Found]:
    """Each directory's entries as they come, by several threads: the kernel's part runs beside ours."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="durastore-walk") as pool:
        pending: set[Future[_Found]] = {pool.submit(_scan, root, b"", stop=stop)}
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    found = future.result()
                    pending |= {pool.submit(_scan, root, each, stop=stop) for each in found.folders}
                    yield found
        finally:
            stop.set()
            for future in pending:
                future.cancel()


def _scan(root: Folder, folder: bytes, *, stop: threading.Event) -> _Found:
    """One directory; `folder` is relative and ends with a slash, or is empty."""
    found = _Found(lead=folder)
    try:
        with _opened(root, folder) as held, os.scandir(held.fd) as entries:
            _take_files(found, entries, stop=stop)
    except OSError as exc:
        return _Found(unreadable=[OddEntry(path=folder or b".", what=f"cannot be read: {exc.strerror}")])
    if folder and _is_root(found, folder):
        return _Found(odd=[OddEntry(path=folder, what="is a spool root of its own: reconcile it by itself")])
    if _is_spool(found, folder):
        return _Found(spools=[os.fsdecode(folder.rstrip(b"/"))])
    return found


def _is_spool(found: _Found, folder: bytes) -> bool:
    """A spool whose root lost its marker: with it, the walk had not come down here."""
    if parse_spool_name(os.fsdecode(folder.rstrip(b"/").rpartition(b"/")[2])) is None:
        return False
    below = (os.fsdecode(each[len(folder) :].rstrip(b"/")) for each in found.folders)
    return is_spool_content([*found.names, *below])


def _opened(root: Folder, folder: bytes) -> Folder:
    """Held one folder after the other, so that no link that was put there meanwhile is followed."""
    if not folder:
        return root.again()
    parent, name = open_parent(root, os.fsdecode(folder[:-1]))
    with parent:
        return parent.child(name)


def _is_root(found: _Found, folder: bytes) -> bool:
    private = folder + os.fsencode(PRIVATE_NAME) + b"/"
    return ROOT_MARKER_NAME in found.names or private in found.folders


def _take_files(found: _Found, entries: Iterator[os.DirEntry[str]], *, stop: threading.Event) -> None:
    """Nearly all entries are files: the loop makes as little of each as can be."""
    add_name, add_numbers, is_stopped = found.names.append, found.numbers.extend, stop.is_set
    for entry in entries:
        if is_stopped():
            break
        try:
            stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # taken away since the directory was read
        except OSError as exc:
            path = found.lead + os.fsencode(entry.name)
            found.unreadable.append(OddEntry(path=path, what=f"cannot be looked at: {exc.strerror}"))
            continue
        if stat_module.S_ISREG(stat.st_mode):
            if entry.name != PRIVATE_NAME or found.lead:
                add_name(entry.name)
                add_numbers((stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns))
        else:
            _take_other(found, entry.name, mode=stat.st_mode)


def _take_other(found: _Found, name: str, *, mode: int) -> None:
    path = found.lead + os.fsencode(name)
    if name in (PRIVATE_NAME, MIGRATE_NAME, EXPORT_RECORD_NAME) and not found.lead:
        return
    if stat_module.S_ISDIR(mode):
        found.folders.append(path + b"/")
    elif stat_module.S_ISLNK(mode):
        found.odd.append(OddEntry(path=path, what="is a symbolic link: not followed"))
    else:
        found.odd.append(OddEntry(path=path, what="is no regular file"))


def _columns(found: _Found) -> tuple[Texts, NDArray[np.int64], list[OddEntry]]:
    """The paths that are text, their four numbers, and the other files."""
    numbers = np.frombuffer(found.numbers, dtype=np.int64).reshape(-1, 4)
    try:
        lead = found.lead.decode()
        return pa.array([lead + name for name in found.names], pa.large_string()), numbers, []
    except UnicodeError:  # also from Arrow, of surrogates
        paths = [found.lead + os.fsencode(name) for name in found.names]
    is_text = np.array([_is_utf8(path) for path in paths], dtype=np.bool_)
    nameless = [
        OddEntry(path=paths[at], what="has a name that is no UTF-8", size_bytes=int(numbers[at, 0]))
        for at in np.flatnonzero(~is_text).tolist()
    ]
    return texts([paths[at] for at in np.flatnonzero(is_text).tolist()]), numbers[is_text], nameless


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def case_collisions(paths: Texts) -> int:
    """How many paths differ from another one by upper and lower case only: elsewhere they would be one file."""
    return len(paths) - len(pc.unique(pc.utf8_lower(paths)))
