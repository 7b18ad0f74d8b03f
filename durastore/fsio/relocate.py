"""Move a name within one file system without a moment in which the data has none, and overwrite nothing.

`relocate`, in folders that only we write: link the new name -> sync its folder -> drop the old name -> sync that
folder. A crash in between leaves two names of one inode, never none. `relocate_shared`, where others write: one rename.
Dropping the old name by itself would drop what somebody put under it since the link, perhaps its only name (ADR 0007).
"""

from __future__ import annotations

import os

from durastore.errors import DiskFailed
from durastore.fsio.folder import Folder
from durastore.fsio.sys import SYS

__all__ = ["relocate", "relocate_shared"]


def relocate(source: Folder, name: str, *, target: Folder, new_name: str) -> None:
    """Give `name` the place `new_name` in `target`. Safe to repeat after a crash: an equal inode there is accepted.

    FileExistsError if `new_name` is another file; `DiskFailed` on any other error, with at least one name left.
    """
    try:
        try:
            SYS.link(name, new_name, source_fd=source.fd, target_fd=target.fd)
        except FileExistsError:
            if not _is_same_inode(source, name, target=target, new_name=new_name):
                raise
        target.sync()
        # the inode keeps the name just synced: this drops a second name, never the last
        if not _is_same_inode(source, name, target=target, new_name=new_name):
            raise OSError(5, "the new name is not the file that was linked")
        SYS.unlink(name, dir_fd=source.fd)
        source.sync()
    except FileExistsError:
        raise
    except OSError as exc:
        where = f"{source.path / name} to {target.path / new_name}"
        raise DiskFailed(f"moving {where}: {exc.strerror or exc}", errno=exc.errno) from exc


def relocate_shared(source: Folder, name: str, *, target: Folder, new_name: str) -> None:
    """Give whatever is called `name` now the place `new_name` in `target`: which file that was, the caller has to look.

    FileExistsError if `new_name` is taken; `DiskFailed` on any other error, also where the file system cannot rename
    without overwriting. A crash leaves the file under one of the two names.
    """
    try:
        SYS.rename_new(name, new_name, source_fd=source.fd, target_fd=target.fd)
        target.sync()
        source.sync()
    except FileExistsError:
        raise
    except OSError as exc:
        where = f"{source.path / name} to {target.path / new_name}"
        raise DiskFailed(f"moving {where}: {exc.strerror or exc}", errno=exc.errno) from exc


def _is_same_inode(source: Folder, name: str, *, target: Folder, new_name: str) -> bool:
    if source.fd == target.fd and name == new_name:
        return False  # one name is not two
    old = os.stat(name, dir_fd=source.fd, follow_symlinks=False)
    new = os.stat(new_name, dir_fd=target.fd, follow_symlinks=False)
    return (old.st_dev, old.st_ino) == (new.st_dev, new.st_ino) and old.st_nlink >= 2
