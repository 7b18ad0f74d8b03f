"""From a held folder to a file deeper down, one held folder at a time: no link is followed on the way.

Duty: `open_parent`, `open_folder`, and `open_local` for a file. Must never resolve a path as a whole.
"""

from __future__ import annotations

from contextlib import closing

from durastore.fsio.folder import Folder

__all__ = ["open_folder", "open_local", "open_parent"]


def open_parent(folder: Folder, path: str) -> tuple[Folder, str]:
    """The folder that holds `path` (relative, segments joined by `/`) and the last segment. The caller closes it.

    OSError where a folder on the way is absent or a link, ValueError where a segment is none.
    """
    above, _, name = path.rpartition("/")
    return open_folder(folder, above), name


def open_folder(folder: Folder, path: str) -> Folder:
    """The folder at `path` (as `open_parent`; empty: `folder` itself, held once more). The caller closes it."""
    segments = path.split("/") if path else []
    at = folder.child(segments[0]) if segments else folder.again()
    try:
        for segment in segments[1:]:
            below = at.child(segment)
            at.close()
            at = below
    except BaseException:
        at.close()
        raise
    return at


def open_local(folder: Folder, path: str) -> int:
    """A new read-only descriptor of a file below the held folder; links are refused. OSError, `SpoolUnreadable`."""
    parent, name = open_parent(folder, path)
    with closing(parent):
        return parent.open_read(name)
