"""Which files of a folder were hashed, and to what: so that a quick look need not trust a name and a size.

Duty: append-only lists beside the private spool, each under a name that carries its digest. An entry counts only for
the very inode with the very size and times it was made of; a damaged list counts for nothing (all is hashed again).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from durastore.errors import SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity
from durastore.fsio.publish import publish
from durastore.model import Digest, WriterId

__all__ = ["LAST_SEGMENT", "HashedEntry", "Ledger", "load_ledger", "mark_of", "save_ledger"]

LAST_SEGMENT = "last_segment"
"""The fact that names the newest segment this folder saw published."""

_compute: Any = pyarrow.compute
_MAX_BYTES = 8 << 30
_HEX_DIGITS = 32
"""Of a digest; with them each line begins, as the digest in the list's name says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedEntry:
    """One file, as it was when its bytes were hashed."""

    path: str
    identity: FileIdentity
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Equally many marks and digests (hex), as columns of texts. A mark: path, inode, size, both times, NUL between."""

    marks: pa.Array[Any] = field(default_factory=lambda: pa.array([], pa.large_string()))
    digests: pa.Array[Any] = field(default_factory=lambda: pa.array([], pa.large_string()))


def save_ledger(folder: Folder, entries: Iterable[HashedEntry], *, writer: WriterId) -> None:
    """Keep these entries, durably. Safe to repeat."""
    lines = [b"%s\0%s\n" % (each.digest.hex.encode(), mark_of(each.path, each.identity)) for each in entries]
    if not lines:
        return
    data = b"".join(lines)
    try:
        publish(folder, f"hashed-{writer}-{Digest.of(data).short}.log", chunks=[data], expect_size=len(data))
    except FileExistsError:
        pass  # the same entries, kept before


def mark_of(path: str, of: FileIdentity) -> bytes:
    """What a list knows a file by: another inode, size or time is another file."""
    return f"{path}\0{of.inode}\0{of.size_bytes}\0{of.mtime_ns}\0{of.ctime_ns}".encode()


def load_ledger(folder: Folder) -> Ledger:
    """All that is on record. A list whose bytes do not match its name is left out. OSError passes."""
    lists = [Ledger()]
    for name in folder.names():
        if not (name.startswith("hashed-") and name.endswith(".log")):
            continue
        try:
            data = folder.read_bytes(name, limit_bytes=_MAX_BYTES)
        except SpoolUnreadable:
            continue
        if not name.endswith(f"-{Digest.of(data).short}.log"):
            continue
        lists.append(_parse_lines(data))
    return Ledger(
        marks=pa.concat_arrays([each.marks for each in lists]),
        digests=pa.concat_arrays([each.digests for each in lists]),
    )


def _parse_lines(data: bytes) -> Ledger:
    """The lines of a list, cut in two where the digest ends. No object is made of a line."""
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1
    offsets: Any = np.concatenate([np.zeros(1, dtype=np.int64), ends])
    lines: Any = pa.Array.from_buffers(pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return Ledger(
        marks=_compute.binary_slice(lines, _HEX_DIGITS + 1, -1).cast(pa.large_string()),
        digests=_compute.binary_slice(lines, 0, _HEX_DIGITS).cast(pa.large_string()),
    )
