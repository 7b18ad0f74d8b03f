"""From a held folder to a file deeper down, one held folder at a time: no link is followed on the way.

Duty: `open_parent`, and `open_local` for a file. Must never resolve a path as a whole.
"""

from __future__ import annotations

from contextlib import closing

from durastore.fsio.folder import Folder

__all__ = ["open_local", "open_parent"]


def open_parent(folder: Folder, path: str) -> tuple[Folder, str]:
    """The folder that holds `path` (relative, segments joined by `/`) and the last segment. The caller closes it.

    OSError where a folder on the way is absent or a link, ValueError where a segment is none.
    """
    *folders, name = path.split("/")
    at = folder.child(folders[0]) if folders else folder.again()
    try:
        for segment in folders[1:]:
            below = at.child(segment)
            at.close()
            at = below
    except BaseException:
        at.close()
        raise
    return at, name


def open_local(folder: Folder, path: str) -> int:
    """A new read-only descriptor of a file below the held folder; links are refused. OSError, `SpoolUnreadable`."""
    parent, name = open_parent(folder, path)
    with closing(parent):
        return parent.open_read(name)
