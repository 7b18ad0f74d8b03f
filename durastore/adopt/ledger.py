"""Which files of a folder were hashed, and to what: so that a quick look need not trust a name and a size.

Duty: append-only lists beside the private spool, each under a name that carries its digest. An entry counts only for
the very inode with the very size and times it was made of; a damaged list counts for nothing (all is hashed again).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from durastore.errors import SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity
from durastore.fsio.publish import publish
from durastore.model import Digest, WriterId

__all__ = ["LAST_SEGMENT", "HashedEntry", "Ledger", "load_ledger", "save_ledger"]

LAST_SEGMENT = "last_segment"
"""The fact that names the newest segment this folder saw published."""

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
    """Equally many marks and digests (hex). A mark: path, inode, size, both times, with NUL between."""

    marks: list[bytes]
    digests: list[bytes]


def save_ledger(folder: Folder, entries: Iterable[HashedEntry], *, writer: WriterId) -> None:
    """Keep these entries, durably. Safe to repeat."""
    lines = []
    for entry in entries:
        of = entry.identity
        lines.append(f"{entry.digest}\0{entry.path}\0{of.inode}\0{of.size_bytes}\0{of.mtime_ns}\0{of.ctime_ns}\n")
    if not lines:
        return
    data = "".join(lines).encode()
    try:
        publish(folder, f"hashed-{writer}-{Digest.of(data).short}.log", chunks=[data], expect_size=len(data))
    except FileExistsError:
        pass  # the same entries, kept before


def load_ledger(folder: Folder) -> Ledger:
    """All that is on record. A list whose bytes do not match its name is left out. OSError passes."""
    marks: list[bytes] = []
    digests: list[bytes] = []
    for name in folder.names():
        if not (name.startswith("hashed-") and name.endswith(".log")):
            continue
        try:
            data = folder.read_bytes(name, limit_bytes=_MAX_BYTES)
        except SpoolUnreadable:
            continue
        if not name.endswith(f"-{Digest.of(data).short}.log"):
            continue
        lines = data.split(b"\n")[:-1]
        digests += [line[:_HEX_DIGITS] for line in lines]
        marks += [line[_HEX_DIGITS + 1 :] for line in lines]
    return Ledger(marks=marks, digests=digests)
