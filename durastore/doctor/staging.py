"""What an extraction server has left in its staging folder.

Duty: the staging stage: entries against the start of the server that is up now, and the kernel's word on who still
writes and whose requests are dead. With `is_applied` files of dead requests go, through the staging door of `reclaim`
and by its rules. Must never follow a link, and never act in a folder without durastore's marker.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from durastore.clock import Clock
from durastore.doctor.request import Examination
from durastore.doctor.stages import Verdict
from durastore.extract.staged_files import StagedFiles
from durastore.extract.staging_room import StagingRoom
from durastore.formats.staging import LOCK_SUFFIX, STAGING_MARKER_NAME, parse_staging, request_in
from durastore.fsio.folder import Folder
from durastore.fsio.lock import holders
from durastore.reclaim.staging import MARKER_LIMIT_BYTES, StagingFolder, has_ended

__all__ = ["StagedEntry", "find_entries", "look_at_staging", "opened_door"]

_SHOWN = 10
_OWN = (STAGING_MARKER_NAME, ".durastore-")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedEntry:
    """One file in it."""

    name: str
    size_bytes: int
    changed_s: float
    """Unix seconds of its last change."""
    is_held: bool
    """A process holds its lock: it is being written or read."""
    is_dead: bool = False
    """Of a request whose process is gone, as the kernel says: nobody will ever read it."""

    def is_stale(self, server_started_s: float | None) -> bool:
        """Of a dead request, or written before the server that is up now began; and nobody holds it."""
        is_older = server_started_s is not None and self.changed_s < server_started_s
        return not self.is_held and (self.is_dead or is_older)


def look_at_staging(seen: Examination) -> Verdict:
    """A note for entries of an older server start; where that is not known, for all."""
    path = seen.request.staging
    if path is None:
        return Verdict.skipped("no staging folder was named (--staging)")
    if not path.is_dir():
        return Verdict.of_faults((), (f"{path} is not there: the server makes it",), summary="no staging folder")
    done = list(_settle(path, clock=seen.clock)) if seen.request.is_applied else []
    entries = list(find_entries(path))
    began = seen.server_started_s
    stale = [entry for entry in entries if entry.is_stale(began)]
    total = sum(entry.size_bytes for entry in entries)
    summary = f"{len(entries)} files, {total} bytes"
    if began is None and not stale:
        summary += "; when their server began is not known"
    else:
        summary += f"; {len(stale)} of an older start, {sum(e.size_bytes for e in stale)} bytes"
    facts = {"path": str(path), "server_started_s": began, "entries": [_facts(entry, began) for entry in entries]}
    shown = stale if began is not None or stale else entries
    return Verdict.of_faults((), [*done, *_notes(shown)], summary=summary, facts=facts)


def opened_door(path: Path, *, clock: Clock) -> StagingFolder | None:
    """The folder with a session of this process; None where it is not there, or has no marker: then nothing in it is
    durastore's to touch. `ConfigError`, `IntegrityError`, OSError.
    """
    try:
        with Folder.open(path) as folder:
            marker = folder.read_bytes(STAGING_MARKER_NAME, limit_bytes=MARKER_LIMIT_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return StagingFolder.open(path, served=parse_staging(marker).served, clock=clock)


def _settle(path: Path, *, clock: Clock) -> Iterator[str]:
    """Let go what ended sessions left, as an engine does when it joins the folder."""
    door = opened_door(path, clock=clock)
    if door is None:
        yield "no staging folder that durastore marked: nothing is taken out of it"
        return
    before = list(find_entries(path))
    files = StagedFiles(door, StagingRoom(door.free_bytes), clock=clock)
    try:
        files.tidy(is_due=True)
    finally:
        files.close()
    left = {entry.name for entry in find_entries(path)}
    gone = [entry for entry in before if entry.name not in left]
    if gone:
        yield f"{len(gone)} files of dead requests went, {sum(entry.size_bytes for entry in gone)} bytes"


def _is_dead(folder: Folder, name: str) -> bool:
    """Whether the kernel says that whoever made the file's request is gone. One that was never here is not known."""
    found = request_in(name)
    return found is not None and has_ended(folder, found[0])


def find_entries(path: Path) -> Iterator[StagedEntry]:
    """The server's regular files right in the folder, by name. OSError where it cannot be read."""
    with Folder.open(path) as folder:
        for name in folder.names():
            try:
                stat = os.lstat(path / name)
            except FileNotFoundError:
                continue  # its reader was faster
            if name.startswith(_OWN) or not stat_module.S_ISREG(stat.st_mode):
                continue
            locked = path / (name if name.endswith(LOCK_SUFFIX) else f"{name}{LOCK_SUFFIX}")
            yield StagedEntry(
                name=name,
                size_bytes=stat.st_size,
                changed_s=stat.st_mtime,
                is_held=bool(holders(locked)) or bool(holders(path / name)),
                is_dead=_is_dead(folder, name),
            )


def _notes(entries: list[StagedEntry]) -> Iterator[str]:
    for entry in entries[:_SHOWN]:
        when = datetime.fromtimestamp(entry.changed_s, tz=UTC).isoformat(timespec="seconds")
        yield f"{entry.name}: {entry.size_bytes} bytes, of {when}" + (", in use" if entry.is_held else "")
    if len(entries) > _SHOWN:
        yield f"... and {len(entries) - _SHOWN} more (--json names all)"


def _facts(entry: StagedEntry, began: float | None) -> dict[str, Any]:
    return {
        "name": entry.name,
        "bytes": entry.size_bytes,
        "changed_s": entry.changed_s,
        "is_held": entry.is_held,
        "is_dead": entry.is_dead,
        "is_stale": entry.is_stale(began) if began is not None or entry.is_dead else None,
    }
