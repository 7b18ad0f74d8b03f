"""What all spools of a root say of multipart uploads: who wrote here, and which uploads are still gone on with.

Duty: read every journal of the root, also those that other processes have open. Must never take a journal that cannot
be read for one that knows of nothing, and never write.
"""

from __future__ import annotations

from dataclasses import dataclass

from durastore.clock import Stamp
from durastore.errors import IntegrityError, InvalidInput, SpoolUnreadable
from durastore.formats.journal import as_text
from durastore.formats.spool_root import render_spool_name
from durastore.model import WriterId
from durastore.spool.journal_file import reading_current
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import spool_numbers

__all__ = ["FACT_LOOKED", "RootSessions", "load_root_sessions"]

FACT_LOOKED = "unfinished looked for"
"""Fact of a spool: when it last looked for unfinished uploads of its root (stamp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSessions:
    """Read at one moment, journal after journal."""

    writers: frozenset[WriterId]
    """Every writer id that a spool of this root was opened with, as far as its journal goes back."""
    upload_ids: frozenset[str]
    """Multipart uploads on record, of packs in whatever state."""
    looked: tuple[Stamp, ...]


def load_root_sessions(root: SpoolRoot) -> RootSessions:
    """Of every spool in the root. `JournalFailed`, `FormatUnsupported`, `IntegrityError` or `SpoolUnreadable` if one of
    them cannot be read: then nothing is known of what it goes on with.
    """
    writers: set[WriterId] = set()
    upload_ids: set[str] = set()
    looked: list[Stamp] = []
    try:
        for number in spool_numbers(root):
            with root.folder.child(render_spool_name(number)) as folder, reading_current(folder) as conn:
                writers |= {
                    WriterId(as_text(text)) for (text,) in conn.execute("SELECT writer FROM writers").fetchall()
                }
                upload_ids |= {as_text(text) for (text,) in conn.execute("SELECT upload_id FROM uploads").fetchall()}
                facts = conn.execute("SELECT value FROM facts WHERE name = ?", (FACT_LOOKED,)).fetchall()
                looked += [Stamp.parse(as_text(text)) for (text,) in facts]
    except OSError as exc:
        raise SpoolUnreadable(f"the spools of {root.path}: {exc.strerror or exc}") from exc
    except (TypeError, ValueError, InvalidInput) as exc:
        raise IntegrityError(f"a journal of {root.path} cannot be read: {exc}") from exc
    return RootSessions(writers=frozenset(writers), upload_ids=frozenset(upload_ids), looked=tuple(looked))
