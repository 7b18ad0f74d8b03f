"""What lies in a source tree, by a walk that follows no link and leaves no file system.

Duty: lists of folders, files, links and odd things, and of what could not be read. Opens no file.
"""

from __future__ import annotations

import os
import stat as stat_module
from dataclasses import dataclass, field

from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identity_of
from durastore.fsio.one_tree import ASKED_PREFIX
from durastore.fsio.paths import open_folder

__all__ = ["PRIVATE_NAME", "Meta", "Scan", "SourceFile", "SourceFolder", "SourceLink", "parent_of", "scan_tree"]

PRIVATE_NAME = ".durastore-migrate"
"""Folder in DST (record, temp files, superseded copies), and in SRC while sources are freed. Never copied; nor
is what a killed run left of its question whether SRC and DST are one tree."""
_OTHER_FILESYSTEM = "another file system is mounted here: migrate it by itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What is kept of a file or folder besides its bytes."""

    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One regular file. Paths are relative to the tree, with `/`; bytes that are no UTF-8 are surrogates."""

    path: str
    identity: FileIdentity
    meta: Meta
    names: int
    """How many names the inode has."""
    is_sparse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFolder:
    path: str
    meta: Meta


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLink:
    """A symbolic link, which is never followed."""

    path: str
    target: str
    atime_ns: int
    mtime_ns: int


@dataclass(slots=True)
class Scan:
    """In the order of the walk: a folder comes before what is in it, its files in the order of their inodes."""

    folders: list[SourceFolder] = field(default_factory=list)
    files: list[SourceFile] = field(default_factory=list)
    links: list[SourceLink] = field(default_factory=list)
    odd: dict[str, str] = field(default_factory=dict)
    """Path -> what it is: a device, a pipe, a socket."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Path -> why nothing below it is known."""
    folder_ids: set[tuple[int, int]] = field(default_factory=set)
    """Device and inode of every folder."""

    @property
    def size_bytes(self) -> int:
        return sum(file.identity.size_bytes for file in self.files)


def scan_tree(source: Folder, *, begin: str = "") -> Scan:
    """Walk the tree from `begin` down. What cannot be read is in the scan, not raised; OSError only for `begin`."""
    scan = Scan()
    device = os.fstat(source.fd).st_dev
    pending = [begin]
    while pending:
        path = pending.pop()
        try:
            with open_folder(source, path) as folder:
                below = _scan_folder(folder, path, scan=scan, device=device)
        except OSError as exc:
            if path == begin:
                raise
            scan.unreadable[path] = f"cannot be read: {exc.strerror or exc}"
            continue
        pending += reversed(below)
    return scan


def parent_of(path: str) -> str:
    """The folder's path; empty for the tree itself."""
    return path.rpartition("/")[0]


def _scan_folder(folder: Folder, path: str, *, scan: Scan, device: int) -> list[str]:
    """Adds what is in it; returns the folders below, sorted."""
    own = os.fstat(folder.fd)
    if own.st_dev != device:
        scan.unreadable[path] = _OTHER_FILESYSTEM
        return []
    below: list[str] = []
    files: list[SourceFile] = []
    with os.scandir(folder.fd) as entries:
        for entry in entries:
            at = f"{path}/{entry.name}" if path else entry.name
            if at == PRIVATE_NAME or at.startswith(ASKED_PREFIX):
                continue
            try:
                stat = entry.stat(follow_symlinks=False)
                if stat_module.S_ISDIR(stat.st_mode):
                    below.append(at)
                elif stat_module.S_ISREG(stat.st_mode):
                    files.append(_file(at, stat))
                elif stat_module.S_ISLNK(stat.st_mode):
                    scan.links.append(_link(folder, entry.name, path=at, stat=stat))
                else:
                    scan.odd[at] = _kind(stat.st_mode)
            except FileNotFoundError:
                continue  # gone in this moment
            except OSError as exc:
                scan.unreadable[at] = f"cannot be read: {exc.strerror or exc}"
    scan.folders.append(SourceFolder(path=path, meta=_meta(own)))
    scan.folder_ids.add((own.st_dev, own.st_ino))
    scan.files += sorted(files, key=lambda file: file.identity.inode)
    return sorted(below)


def _file(path: str, stat: os.stat_result) -> SourceFile:
    return SourceFile(
        path=path,
        identity=identity_of(stat),
        meta=_meta(stat),
        names=stat.st_nlink,
        is_sparse=stat.st_blocks * 512 < stat.st_size,
    )


def _link(folder: Folder, name: str, *, path: str, stat: os.stat_result) -> SourceLink:
    target = os.readlink(name, dir_fd=folder.fd)
    return SourceLink(path=path, target=target, atime_ns=stat.st_atime_ns, mtime_ns=stat.st_mtime_ns)


def _meta(stat: os.stat_result) -> Meta:
    return Meta(
        mode=stat_module.S_IMODE(stat.st_mode),
        uid=stat.st_uid,
        gid=stat.st_gid,
        atime_ns=stat.st_atime_ns,
        mtime_ns=stat.st_mtime_ns,
    )


def _kind(mode: int) -> str:
    kinds = {stat_module.S_IFIFO: "a pipe", stat_module.S_IFSOCK: "a socket"}
    return kinds.get(stat_module.S_IFMT(mode), "a device")
