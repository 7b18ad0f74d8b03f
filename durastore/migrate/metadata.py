"""What is kept besides bytes: folders, modes, times, links.

Duty: make folders before their files, and set folders' times after them, deepest first. Owners are kept where this user
may give files away. Must never follow a link, and never change a name that is there.
"""

from __future__ import annotations

import fcntl
import os
import stat as stat_module
from contextlib import suppress

from durastore.errors import NO_ROOM, SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.paths import open_folder, open_parent
from durastore.fsio.sys import SYS
from durastore.migrate.outcome import Outcome, StopCopying
from durastore.migrate.places import Target
from durastore.migrate.scan import Meta, SourceFolder, SourceLink

__all__ = ["NO_ATIME", "finish_folders", "make_folders", "make_links", "names_of", "set_file_meta"]

NO_ATIME = getattr(os, "O_NOATIME", 0)


def make_folders(target: Target, folders: list[SourceFolder], *, outcome: Outcome) -> dict[str, frozenset[str]]:
    """Every one of them, made if it is new; the names that each had already. One that cannot be made fails (its files
    fail with it); `StopCopying` on a full disk.
    """
    names: dict[str, frozenset[str]] = {}
    for folder in folders:
        try:
            is_new = folder.path != "" and _made(target.folder, folder.path)
            with open_folder(target.folder, folder.path) as made:
                names[folder.path] = frozenset() if is_new else frozenset(made.names())
        except OSError as exc:
            if exc.errno in NO_ROOM:
                raise StopCopying.of(exc) from exc
            outcome.doubt(folder.path, f"the folder cannot be made in the destination: {exc.strerror or exc}")
    return names


def names_of(target: Target, paths: list[str]) -> dict[str, frozenset[str]]:
    """What is in these folders of DST, as far as they are there. Makes nothing."""
    names: dict[str, frozenset[str]] = {}
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError), open_folder(target.folder, path) as folder:
            names[path] = frozenset(folder.names())
    return names


def finish_folders(target: Target, folders: list[SourceFolder], *, outcome: Outcome) -> None:
    """Modes and times, after the last name was made in them."""
    for folder in reversed(folders):
        try:
            with open_folder(target.folder, folder.path) as made:
                set_file_meta(made.fd, folder.meta)
        except OSError as exc:
            if folder.path not in outcome.failed:
                outcome.doubt(folder.path, f"mode or times cannot be set: {exc.strerror or exc}")


def make_links(target: Target, links: list[SourceLink], *, outcome: Outcome) -> int:
    """The links as they are, wherever they lead; how many are there now."""
    count = 0
    for link in links:
        try:
            parent, name = open_parent(target.folder, link.path)
            with parent:
                _make_link(parent, name, link=link)
            count += 1
        except (OSError, SpoolUnreadable) as exc:
            if isinstance(exc, OSError) and exc.errno in NO_ROOM:
                raise StopCopying.of(exc) from exc
            outcome.doubt(link.path, f"the link cannot be made: {getattr(exc, 'strerror', None) or exc}")
    return count


def set_file_meta(fd: int, meta: Meta) -> None:
    """Of an open file or folder. OSError if mode or times cannot be set."""
    made = os.fstat(fd)
    is_others = (made.st_uid, made.st_gid) != (meta.uid, meta.gid) and os.geteuid() == 0
    if is_others:
        with suppress(OSError):  # a file system without owners
            SYS.chown(fd, uid=meta.uid, gid=meta.gid)
    if is_others or stat_module.S_IMODE(made.st_mode) != meta.mode:
        SYS.chmod(fd, meta.mode)  # after the owner, whose change takes set-id bits off
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not flags & NO_ATIME:
        with suppress(OSError):  # reading it back is nobody's access; a server that is not to serve root refuses that
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | NO_ATIME)
    SYS.set_times(fd, atime_ns=meta.atime_ns, mtime_ns=meta.mtime_ns)


def _made(root: Folder, path: str) -> bool:
    parent, name = open_parent(root, path)
    with parent:
        try:
            SYS.mkdir(name, 0o700, dir_fd=parent.fd)
        except FileExistsError:
            return False
    return True


def _make_link(parent: Folder, name: str, *, link: SourceLink) -> None:
    try:
        SYS.symlink(link.target, name, dir_fd=parent.fd)
    except FileExistsError:
        if os.readlink(name, dir_fd=parent.fd) != link.target:
            raise
        return
    with suppress(OSError):  # a file system whose links have no times
        os.utime(name, ns=(link.atime_ns, link.mtime_ns), dir_fd=parent.fd, follow_symlinks=False)
