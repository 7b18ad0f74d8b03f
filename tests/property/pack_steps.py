"""Which step of a pack's life may follow which: the order of DESIGN 1, written down a second time.

Judges rows of the journal as they stand after each commit. Shares no code with the journal that it judges.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from durastore.model import PackState

__all__ = ["PackRow", "journaled_packs", "newest_journal", "step_fault"]

_ORDER = ["open", "sealed", "uploaded", "verified", "manifested", "reclaimed"]
_SIDE = {"unknown", "conflict", "quarantined", "lost"}


@dataclass(frozen=True, slots=True)
class PackRow:
    """What is judged of one pack."""

    name: str
    state: PackState
    sample_count: int
    key: str | None
    digest: str | None
    segment: str | None

    @classmethod
    def load(cls, connection: sqlite3.Connection) -> dict[int, PackRow]:
        sql = "SELECT pack_id, name, state, sample_count, key, digest, manifested_in FROM packs"
        return {row[0]: cls(row[1], PackState(row[2]), *row[3:]) for row in connection.execute(sql)}


def newest_journal(spool: Path) -> Path:
    return max(spool.glob("journal-*.sqlite"), key=lambda path: int(path.stem.rpartition("-")[2]))


def journaled_packs(root: Path) -> list[tuple[PackRow, tuple[str, ...]]]:
    """Every pack that a journal below `root` has, with the ids of its samples, in a fixed order."""
    found = []
    for folder in sorted(path.parent for path in root.glob("w-*/journal-1.sqlite")):
        connection = sqlite3.connect(f"file:{newest_journal(folder)}?mode=ro", uri=True)
        try:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'packs'").fetchone():
                continue  # who made it died before its first commit
            for pack_id, row in PackRow.load(connection).items():
                ids = connection.execute("SELECT sample_id FROM samples WHERE pack_id = ? ORDER BY offset", (pack_id,))
                found.append((row, tuple(sample_id for (sample_id,) in ids)))
        finally:
            connection.close()
    return sorted(found, key=lambda pair: (pair[0].name, pair[0].state.value))


def step_fault(old: PackRow | None, new: PackRow | None, *, has_file: bool) -> str | None:
    """What is wrong with a pack going from `old` to `new` in one commit (None: it was not there); None if nothing is.

    `has_file`: its file is in the packs folder.
    """
    if new is None:
        return "forgotten with samples in it" if old is not None and old.sample_count else None
    if old is None:
        return None if new.state.value in ("open", "sealed", "lost") else "began in the middle of its life"
    before, after = old.state.value, new.state.value
    if new.name != old.name:
        return None if after == "sealed" else "got another file without being sealed anew"
    if before == after or after in _SIDE:
        return None
    if after in ("verified", "reclaimed") and not has_file:
        return None  # found in the bucket, its file gone
    if before in _SIDE:
        return None if after == "sealed" or (before, after) == ("unknown", "uploaded") else "out of doubt by a jump"
    step = _ORDER.index(after) - _ORDER.index(before)
    if step > 1 or after == "open" or (after == "reclaimed" and has_file):
        return "a step too far"
    return None if before != "reclaimed" else "came back from reclaimed"
