"""The spool root's files at one moment, and putting them back: what a killed process leaves.

A file whose bytes did not change since keeps its inode, as it would; others are written anew. The ballast and lock
files hold nothing, and SQLite makes its shared-memory file again.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["DiskImage", "pack_files"]

_LEFT_ALONE = ("ballast", "lock")


def pack_files(root: Path, *, with_quarantine: bool = True) -> list[Path]:
    """Every pack file below the root, in a fixed order."""
    found = [*root.glob("w-*/packs/*.*"), *(root.glob("w-*/quarantine/*.*") if with_quarantine else ())]
    return sorted(path for path in found if "journal" not in path.name and not path.name.startswith("."))


class DiskImage:
    """Bytes, times and links of all files below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[Path, tuple[bytes, os.stat_result]] = {}
        for path in _files_of(root):
            stat = path.stat()
            self._files[path] = (path.read_bytes(), stat)

    def restore(self) -> None:
        """Make the disk what it was."""
        for path in _files_of(self._root, with_shared_memory=True):
            if path not in self._files or path.read_bytes() != self._files[path][0]:
                path.unlink()
        by_inode: dict[int, Path] = {}
        for path, (data, stat) in self._files.items():
            first = by_inode.setdefault(stat.st_ino, path)
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if first is not path and first.exists():
                os.link(first, path)
                continue
            path.write_bytes(data)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def restore_journals(self) -> None:
        """Only the journals: as when someone put an older copy of them back."""
        for path in _files_of(self._root, with_shared_memory=True):
            if path.name.startswith("journal-") and path.parent.name != "quarantine":
                path.unlink()
        for path, (data, _) in self._files.items():
            if path.name.startswith("journal-") and path.parent.name != "quarantine":
                path.write_bytes(data)


def _files_of(root: Path, *, with_shared_memory: bool = False) -> list[Path]:
    return [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in _LEFT_ALONE and (with_shared_memory or not path.name.endswith("-shm"))
    ]
