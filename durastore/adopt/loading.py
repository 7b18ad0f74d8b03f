"""One whole file of another tool, read under a lease.

Duty: bytes, digest and contents of a file that nobody writes to. What cannot be had is an answer with its reason, so
that one bad file stops nothing. Must never read a file that is open for writing, and never follow a link.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

from durastore.adopt.foreign_formats.containers import parse_foreign
from durastore.adopt.foreign_formats.contents import ForeignContents, Unparsed
from durastore.adopt.inspect import find_fault, is_data
from durastore.adopt.sending import leased_where_it_can_be, open_local
from durastore.errors import NotVerified, SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import identify
from durastore.fsio.lease import NotLeased, check_leased
from durastore.model import Digest

__all__ = ["LoadedFile", "Trouble", "Unloaded", "load_foreign"]

_BLOCK_BYTES = 8 << 20

Trouble: TypeAlias = Literal["damaged", "refused", "in-flight", "unreadable", "mismatched", "unmatched", "repeated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """A file as it was while nobody could write to it."""

    path: str
    size_bytes: int
    digest: Digest
    contents: ForeignContents


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """Why a file has no part in what was asked."""

    path: str
    trouble: Trouble
    reason: str


def load_foreign(folder: Folder, path: str) -> LoadedFile | Unloaded:
    """Read and parse one file below the held folder. `ConfigError` where torch is missing; nothing else is raised."""
    try:
        data = _read(folder, path)
        contents = parse_foreign(data, path=path)
    except Unparsed as exc:
        return Unloaded(path=path, trouble="damaged" if exc.is_damage else "refused", reason=str(exc))
    except (NotVerified, NotLeased) as exc:
        return Unloaded(path=path, trouble="in-flight", reason=f"is being written: {exc}")
    except (OSError, SpoolUnreadable) as exc:
        return Unloaded(path=path, trouble="unreadable", reason=str(exc))
    return LoadedFile(path=path, size_bytes=len(data), digest=Digest.of(data), contents=contents)


def _read(folder: Folder, path: str) -> bytes:
    fd = open_local(folder, path)
    try:
        with leased_where_it_can_be(fd, path) as is_leased:
            before = identify(fd)
            fault = find_fault(fd, path) if is_data(path) else None
            if fault is not None:
                raise Unparsed(fault.reason, is_damage=fault.is_damage)
            blocks = []
            offset = 0
            while block := os.pread(fd, _BLOCK_BYTES, offset):
                blocks.append(block)
                offset += len(block)
                if is_leased:
                    check_leased(fd)  # who wants to write waits for us: give way
            if identify(fd) != before or offset != before.size_bytes:
                raise NotVerified(f"{path} changes while it is read")
            return b"".join(blocks)
    finally:
        os.close(fd)
