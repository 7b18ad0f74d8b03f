"""One sample out of a pack file of the spool.

Duty: the same checks as for the bucket, on a file that may be torn, swapped or gone. Must never write to it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from durastore.errors import IntegrityError, SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.model import Sample, SampleEntry
from durastore.read.sample import Wanted, read_checked

__all__ = ["read_local_sample"]


def read_local_sample(
    folder: Folder,
    pack_name: str,
    *,
    entry: SampleEntry,
    tensors: Sequence[str] | None = None,
    rows: slice | None = None,
) -> Sample:
    """The sample of `entry` from the pack `pack_name` in `folder`; checks like `fetch_sample`. Safe to repeat.

    Raises `IntegrityError` where bytes do not match, `FileNotFoundError` where the file is gone (reclaimed a moment
    ago: the bucket then has the sample), `SpoolUnreadable` where it cannot be read.
    """
    try:
        fd = folder.open_read(pack_name)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise SpoolUnreadable(f"pack {pack_name} cannot be opened: {exc.strerror}", pack=pack_name) from exc

    def read_at(offset: int, length: int) -> bytes:
        return _pread(fd, entry.offset + offset, length=length)

    try:
        return read_checked(read_at, entry, wanted=Wanted(tensors=tensors, rows=rows), where=f"pack {pack_name}")
    except OSError as exc:
        raise SpoolUnreadable(f"pack {pack_name} cannot be read: {exc.strerror}", pack=pack_name) from exc
    finally:
        os.close(fd)


def _pread(fd: int, offset: int, *, length: int) -> bytes:
    pieces = []
    while length:
        piece = os.pread(fd, length, offset)
        if not piece:
            raise IntegrityError(f"the file ends at byte {offset}, {length} bytes early")
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
