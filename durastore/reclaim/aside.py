"""The way back for a file that was moved aside to be proven, and was not.

Duty: under its path again, whatever it is: between the last look at a name and its move somebody may have put something
else there. Must never overwrite what has the name by now.
"""

from __future__ import annotations

import os
import stat
from contextlib import closing

from durastore.fsio.folder import Folder
from durastore.fsio.paths import open_parent
from durastore.fsio.relocate import relocate, relocate_shared

__all__ = ["is_file", "move_back"]


def is_file(going: Folder, private: str) -> bool:
    """Whether it is a regular file."""
    return stat.S_ISREG(os.stat(private, dir_fd=going.fd, follow_symlinks=False).st_mode)


def move_back(going: Folder, private: str, *, folder: Folder, path: str) -> None:
    """Give `private` its `path` below `folder` again.

    FileExistsError if that name is taken; other OSError, ValueError and `DiskFailed` where there is no way back. It is
    in `going` still then.
    """
    parent, name = open_parent(folder, path)
    with closing(parent):
        if is_file(going, private):
            relocate(going, private, target=parent, new_name=name)
        else:  # a folder that came under the name before the move: it has one name only, and cannot be linked
            relocate_shared(going, private, target=parent, new_name=name)
