"""Spool roots around a folder, also those that lost their marker.

Duty: tell whoever is about to treat a folder's files as files of others. Opens folders and reads names, nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path

from durastore.formats.spool_root import LOCK_NAME, ROOT_MARKER_NAME, is_spool_content, parse_spool_name
from durastore.fsio.folder import Folder

__all__ = ["locks_in", "looks_like_spool", "root_above", "spools_in"]


def spools_in(folder: Folder) -> list[str]:
    """Names of folders right in it that look like spools. OSError if it cannot be read."""
    return [name for name in folder.names() if looks_like_spool(folder, name)]


def locks_in(root: Path) -> list[Path]:
    """Where the lock of each spool of a root is, also of one that lost its marker; sorted.

    OSError where it cannot be read: a pattern (`glob`) passes over what it may not enter, as if nobody were there.
    """
    names = sorted(name for name in os.listdir(root) if parse_spool_name(name) is not None)
    return [root / name / LOCK_NAME for name in names if (root / name).is_dir()]


def looks_like_spool(folder: Folder, name: str) -> bool:
    """Whether the folder of this name right in it looks like a spool. OSError if that cannot be told."""
    if parse_spool_name(name) is None:
        return False
    try:
        with folder.child(name) as below:
            return is_spool_content(below.names())
    except NotADirectoryError:
        return False  # a file of this name, or a link, which is never followed


def root_above(real: Path) -> Path | None:
    """The spool root that a path without links lies in, by its marker or by the spools in it; None if it is in none."""
    return next((parent for parent in real.parents if _is_root(parent)), None)


def _is_root(path: Path) -> bool:
    if (path / ROOT_MARKER_NAME).exists():
        return True
    try:
        with Folder.open(path) as folder:
            return bool(spools_in(folder))
    except OSError:
        return False  # a parent that may not be read, or /proc: nothing is known of it, and it is not ours to free
