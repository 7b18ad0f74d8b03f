"""What a folder holds at one moment, and whether it held still for it.

Duty: every file below it with its identity, but for what the operator leaves out; the reasons why no snapshot can be
taken of it now. Must never take a folder of which a part could not be read (INV-6), or that somebody works on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from durastore.adopt.sending import leased_where_it_can_be
from durastore.errors import InvalidInput, InvalidSampleId, NotVerified, SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity
from durastore.fsio.paths import open_local
from durastore.model import SampleId
from durastore.reconcile.columns import names_of
from durastore.reconcile.local import load_local

__all__ = [
    "FileMark",
    "FolderState",
    "find_busy",
    "find_changes",
    "find_unsettled",
    "load_state",
    "load_still",
    "mark_of_identity",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """Tells one content of a file from another one under its name."""

    size_bytes: int
    inode: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderState:
    """All files by path, and what is in the way of a snapshot, with reasons."""

    files: Mapping[SampleId, FileMark]
    troubles: Mapping[str, str]
    left_out: tuple[str, ...]
    """Excluded, or a link: named, never followed."""


def load_state(folder: Folder, *, exclude: Sequence[str] = ()) -> FolderState:
    """Walk it all. `InvalidInput` where a pattern is empty. Raises nothing for what it meets."""
    if not all(exclude):
        raise InvalidInput("an empty pattern leaves nothing out")
    found = load_local(folder)
    files: dict[SampleId, FileMark] = {}
    troubles = {_text(each.path): f"cannot be read: {each.what}" for each in found.unreadable}
    left_out = []
    for each in found.odd:
        path = _text(each.path)
        if _is_excluded(path, exclude) or "link" in each.what:
            left_out.append(path)
        else:
            troubles[path] = f"cannot be kept: {each.what}"
    for spool in found.spools:
        troubles[spool] = "looks like a spool: its packs are no files of others"
    for path, size_bytes, marks in zip(names_of(found.paths), found.sizes, found.identities, strict=True):
        if _is_excluded(path, exclude):
            left_out.append(path)
            continue
        inode, mtime_ns, ctime_ns = (int(number) for number in marks)
        try:
            name = SampleId(path)
        except InvalidSampleId as exc:
            troubles[path] = exc.message
        else:
            files[name] = FileMark(size_bytes=int(size_bytes), inode=inode, mtime_ns=mtime_ns, ctime_ns=ctime_ns)
    return FolderState(files=dict(sorted(files.items())), troubles=troubles, left_out=tuple(sorted(left_out)))


def load_still(folder: Folder, *, exclude: Sequence[str] = ()) -> FolderState:
    """`load_state`, twice: what differs between the two walks is in the way, since it may be half of something."""
    before = load_state(folder, exclude=exclude)
    after = load_state(folder, exclude=exclude)
    return replace(after, troubles={**before.troubles, **after.troubles, **find_changes(before, after)})


def mark_of_identity(identity: FileIdentity) -> FileMark:
    return FileMark(
        size_bytes=identity.size_bytes,
        inode=identity.inode,
        mtime_ns=identity.mtime_ns,
        ctime_ns=identity.ctime_ns,
    )


def find_changes(before: FolderState, after: FolderState) -> dict[str, str]:
    """What is not as it was; path -> what happened."""
    found = {path.text: "went meanwhile" for path in before.files.keys() - after.files.keys()}
    found |= {path.text: "came meanwhile" for path in after.files.keys() - before.files.keys()}
    for path in before.files.keys() & after.files.keys():
        if before.files[path] != after.files[path]:
            found[path.text] = "changed meanwhile"
    return found


def find_busy(folder: Folder, paths: Iterable[SampleId]) -> dict[str, str]:
    """Files that somebody has open for writing: also one that looks as it did may be changed through a mapping."""
    found = {}
    for path in paths:
        try:
            fd = open_local(folder, path.text)
        except FileNotFoundError:
            continue  # it went since; what it held is known
        except (OSError, SpoolUnreadable) as exc:
            found[path.text] = f"cannot be opened: {exc}"
            continue
        try:
            with leased_where_it_can_be(fd, path.text):
                pass
        except NotVerified as exc:
            found[path.text] = exc.message
        finally:
            os.close(fd)
    return found


def find_unsettled(state: FolderState, *, now_ns: int, quiet_s: float) -> dict[str, str]:
    """Files that were written to less than `quiet_s` ago: what belongs to them may not be there yet."""
    limit_ns = now_ns - int(quiet_s * 1e9)
    return {
        path.text: f"was written to less than {quiet_s:.0f} s ago"
        for path, mark in state.files.items()
        if quiet_s > 0 and max(mark.mtime_ns, mark.ctime_ns) > limit_ns
    }


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """A pattern without a slash is for names at any depth, one with a slash for paths."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path if "/" in pattern else name, pattern) for pattern in patterns)
