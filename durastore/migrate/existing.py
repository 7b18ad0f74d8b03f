"""A file whose name DST has already: from an earlier run, another tool, or somebody else.

Duty: say whether it is the same by every byte (or by a record of that), and leave it as it is if not. The one thing
that is moved out of the way is what this command made itself and the source has outgrown.
"""

from __future__ import annotations

import os
import secrets

from durastore.errors import DiskFailed, SpoolUnreadable
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity, identify
from durastore.fsio.relocate import relocate
from durastore.fsio.sys import SYS
from durastore.migrate.outcome import Item, Outcome, StopCopying
from durastore.migrate.places import Target
from durastore.migrate.reading import SourceChanged, SourceRead, read_copy
from durastore.migrate.tools import CopyTools, judged
from durastore.model import Digest
from durastore.verify.copied import CopiedFile

__all__ = ["set_superseded", "settle_existing"]

_MAX_BYTES = 200
"""Of the old name in that of a file set aside; a directory entry holds 255."""


def settle_existing(tools: CopyTools, item: Item, *, folders: tuple[Folder, Folder], outcome: Outcome) -> bool:
    """True if the file is settled (proven, or failed), False if its place was made free and it is to be copied.

    OSError where one of the two cannot be looked at.
    """
    path, name = item.file.path, item.file.path.rpartition("/")[2]
    source, target = folders
    try:
        there = target.identity(name)
    except FileNotFoundError:
        return False
    except SpoolUnreadable:
        outcome.fail(path, "the destination has something of this name that is no regular file")
        return True
    ours = item.file.identity
    if there.is_same_inode(ours):
        outcome.fail(path, "the destination's file is the source itself, by another name")  # cases B09, B11
        return True
    known = tools.known.get(path)
    proven = known.of_now(ours, there) if known is not None and tools.leaves_trace(ours, there) else None
    if proven is not None:
        outcome.find(proven)
        return True
    is_recorded = known is not None and there.is_same_remounted(known.copied.target)
    is_made_by_us = item.may_copy and (item.is_ours or is_recorded)
    return _compare(tools, item, folders=(source, target), outcome=outcome, is_made_by_us=is_made_by_us)


def set_superseded(target: Target, folder: Folder, *, name: str, path: str, outcome: Outcome) -> None:
    """Move what DST has under `name` aside: an earlier state that this command made. Nothing is dropped."""
    aside = f"{secrets.token_hex(4)}-{_last_part(name)}"
    try:
        relocate(folder, name, target=target.superseded, new_name=aside)
    except DiskFailed as exc:
        raise StopCopying.of(exc) from exc
    outcome.supersede(path, aside)


def _compare(
    tools: CopyTools, item: Item, *, folders: tuple[Folder, Folder], outcome: Outcome, is_made_by_us: bool
) -> bool:
    """By every byte: both are read in full, the destination's from its device (case B101)."""
    path, name = item.file.path, item.file.path.rpartition("/")[2]
    source, target = folders
    try:
        read = _read_here(tools, item, folder=source, name=name)
    except SourceChanged as exc:
        outcome.fail(path, str(exc))
        return True
    there, digest = _read_there(target, name)
    if digest == read.digest:
        _sync_there(target)
        copied = CopiedFile(
            path=path,
            source=item.file.identity,
            target=there,
            digest=digest,
            is_quiet=read.is_quiet,
            is_read_back=True,
        )
        proven = judged(copied, read, item=item, tools=tools)
        tools.log.add([proven])
        outcome.find(proven)
        return True
    if is_made_by_us:
        set_superseded(tools.target, target, name=name, path=path, outcome=outcome)
        return False
    outcome.fail(path, "the destination has another file of this name, which was left as it is")  # case B41
    return True


def _read_here(tools: CopyTools, item: Item, *, folder: Folder, name: str) -> SourceRead:
    fd = folder.open_read(name)
    try:
        return tools.reader.read(fd, item.file, take=_drop)
    finally:
        os.close(fd)


def _read_there(folder: Folder, name: str) -> tuple[FileIdentity, Digest | None]:
    """None for bytes that change while they are read."""
    fd = folder.open_read(name)
    try:
        SYS.fsync(fd)  # whoever wrote it: only what is on the device is read from there
        there = identify(fd)
        digest = read_copy(fd, there.size_bytes)
        return there, digest if identify(fd) == there else None
    finally:
        os.close(fd)


def _sync_there(folder: Folder) -> None:
    try:
        folder.sync()
    except OSError as exc:
        raise StopCopying.of(exc) from exc


def _last_part(name: str) -> str:
    """The end of a name, short enough for another one before it. Bytes that are cut apart become surrogates."""
    return os.fsdecode(os.fsencode(name)[-_MAX_BYTES:])


def _drop(block: memoryview) -> None:
    """A source that is only hashed."""
    del block
