"""The listing of a directory bucket: its files in the byte order of their keys.

Duty: name every object once, or raise. Must never follow a link, and never pass over a file it cannot read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from durastore.errors import InventoryIncomplete
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identity_of
from durastore.fsio.publish import TEMP_PREFIX
from durastore.model import ObjectKey
from durastore.objectstore.directory_object import HIDDEN
from durastore.objectstore.listing import listed_key
from durastore.objectstore.port import ListPage, ObjectStat

__all__ = ["walk_pages"]

_PAGE_KEYS = 1000
_NOT_OBJECTS = frozenset((HIDDEN, "lost+found"))  # at the top only: ours, and the file system's own

EtagOf = Callable[[ObjectKey, FileIdentity], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    order: bytes
    """The name, with a slash after a folder's: sorted by this, a walk gives keys in byte order."""
    name: str
    is_folder: bool


def walk_pages(root: Folder, *, prefix: str, start_after: str | None, etag_of: EtagOf) -> Iterator[ListPage]:
    """Pages of up to 1,000 objects. `InventoryIncomplete` on anything that cannot be read, is a link, or has no key."""
    page: ListPage = []
    for row in _Walk(prefix=prefix, start_after=start_after, etag_of=etag_of).rows(root, ""):
        page.append(row)
        if len(page) == _PAGE_KEYS:
            yield page
            page = []
    if page:
        yield page


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """What one listing asked for."""

    prefix: str
    start_after: str | None
    etag_of: EtagOf

    def rows(self, folder: Folder, base: str) -> Iterator[ObjectStat]:
        """The objects in `folder`, whose path from the root is `base`, and below it."""
        for entry in _entries(folder, base):
            path = base + entry.name
            if not entry.is_folder:
                if self._holds(path):
                    yield _stat_of(folder, entry.name, path=path, etag_of=self.etag_of)
            elif self._may_hold(path + "/"):
                with _child(folder, entry.name) as inner:
                    yield from self.rows(inner, path + "/")

    def _holds(self, path: str) -> bool:
        return path.startswith(self.prefix) and (self.start_after is None or path.encode() > self.start_after.encode())

    def _may_hold(self, below: str) -> bool:
        if not (below.startswith(self.prefix) or self.prefix.startswith(below)):
            return False
        after = self.start_after
        return after is None or after.startswith(below) or below.encode() > after.encode()


def _entries(folder: Folder, base: str) -> list[_Entry]:
    entries: list[_Entry] = []
    try:
        with folder.again() as own, os.scandir(own.fd) as found:
            for item in found:
                if item.name.startswith(TEMP_PREFIX) or (not base and item.name in _NOT_OBJECTS):
                    continue
                is_folder = item.is_dir(follow_symlinks=False)
                if not is_folder and not item.is_file(follow_symlinks=False):
                    raise InventoryIncomplete(
                        f"{folder.path / item.name} is neither a file nor a folder",
                        hint="links in a bucket are not followed",
                    )
                entries.append(
                    _Entry(order=_order(folder, item.name, is_folder=is_folder), name=item.name, is_folder=is_folder)
                )
    except OSError as exc:
        raise InventoryIncomplete(f"{folder.path} cannot be read: {exc.strerror}") from exc
    return sorted(entries, key=lambda entry: entry.order)


def _order(folder: Folder, name: str, *, is_folder: bool) -> bytes:
    try:
        return name.encode() + (b"/" if is_folder else b"")
    except UnicodeEncodeError as exc:
        raise InventoryIncomplete(f"{folder.path} holds the name {name!a}, which is not UTF-8 and no key") from exc


def _child(folder: Folder, name: str) -> Folder:
    try:
        return folder.child(name)
    except OSError as exc:
        raise InventoryIncomplete(f"{folder.path / name} cannot be read: {exc.strerror}") from exc


def _stat_of(folder: Folder, name: str, *, path: str, etag_of: EtagOf) -> ObjectStat:
    try:
        identity = identity_of(os.stat(name, dir_fd=folder.fd, follow_symlinks=False))
    except OSError as exc:
        raise InventoryIncomplete(f"{folder.path / name} cannot be read: {exc.strerror}") from exc
    key = listed_key(path, size_bytes=identity.size_bytes)
    if key is None:
        raise InventoryIncomplete(f"{folder.path / name} has no key")
    return ObjectStat(
        key=key, size_bytes=identity.size_bytes, etag=etag_of(key, identity), last_modified_s=identity.mtime_ns / 1e9
    )
