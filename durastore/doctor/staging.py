"""What an extraction server has left in its staging folder.

Duty: the staging stage: entries against the start of the server that is up now, and the kernel's word on who still
writes. Only lists: files leave a staging folder only through the staging door of `reclaim`. Must never follow a link.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from durastore.doctor.request import Examination
from durastore.doctor.stages import Verdict
from durastore.fsio.lock import holders

__all__ = ["StagedEntry", "find_entries", "look_at_staging"]

_SHOWN = 10
_LOCK_SUFFIX = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedEntry:
    """One file in it."""

    name: str
    size_bytes: int
    changed_s: float
    """Unix seconds of its last change."""
    is_held: bool
    """A process holds its lock: it is being written or read."""

    def is_stale(self, server_started_s: float | None) -> bool:
        """Written before the server that is up now began, and nobody holds it."""
        return server_started_s is not None and not self.is_held and self.changed_s < server_started_s


def look_at_staging(seen: Examination) -> Verdict:
    """A note for entries of an older server start; where that is not known, for all."""
    path = seen.request.staging
    if path is None:
        return Verdict.skipped("no staging folder was named (--staging)")
    if not path.is_dir():
        return Verdict.of_faults((), (f"{path} is not there: the server makes it",), summary="no staging folder")
    entries = list(find_entries(path))
    began = seen.server_started_s
    stale = [entry for entry in entries if entry.is_stale(began)]
    total = sum(entry.size_bytes for entry in entries)
    summary = f"{len(entries)} files, {total} bytes"
    if began is None:
        summary += "; when their server began is not known"
    else:
        summary += f"; {len(stale)} of an older start of the server, {sum(e.size_bytes for e in stale)} bytes"
    facts = {"path": str(path), "server_started_s": began, "entries": [_facts(entry, began) for entry in entries]}
    shown = stale if began is not None else entries
    return Verdict.of_faults((), _notes(shown), summary=summary, facts=facts)


def find_entries(path: Path) -> Iterator[StagedEntry]:
    """The regular files right in the folder, by name. OSError where it cannot be read."""
    for name in sorted(os.listdir(path)):
        stat = os.lstat(path / name)
        if stat_module.S_ISREG(stat.st_mode):
            locked = path / (name if name.endswith(_LOCK_SUFFIX) else f"{name}{_LOCK_SUFFIX}")
            held = bool(holders(locked)) or bool(holders(path / name))
            yield StagedEntry(name=name, size_bytes=stat.st_size, changed_s=stat.st_mtime, is_held=held)


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
        "is_stale": entry.is_stale(began) if began is not None else None,
    }
