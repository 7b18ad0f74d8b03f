"""Whether two folders show one and the same tree, under whatever device numbers.

Duty: ask both by a name that nobody can have looked up before. An overlay, a FUSE mount that pools or mirrors, and an
NFS mount of one's own export have device numbers of their own and show files that lie elsewhere: their copy of a file
is the file itself.
"""

from __future__ import annotations

from durastore.fsio.folder import Folder
from durastore.fsio.publish import TempFile

__all__ = ["ASKED_PREFIX", "is_one_tree"]

ASKED_PREFIX = ".durastore-one-tree-"
"""How the names begin that are made for a moment. A process that is killed in it leaves an empty file."""


def is_one_tree(one: Folder, other: Folder) -> bool:
    """Whether a name that is made in one of the folders comes up in the other. `DiskFailed` or OSError where that is
    not to be found out: then nothing is known.
    """
    # both ways: what is made in an overlay or a pool may come to a branch that is not the other folder
    return _shows(one, made_in=other) or _shows(other, made_in=one)


def _shows(folder: Folder, *, made_in: Folder) -> bool:
    with TempFile.named(made_in, prefix=ASKED_PREFIX) as temp:
        assert temp.temp_name is not None
        return folder.has(temp.temp_name)
