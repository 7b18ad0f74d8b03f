"""Findings: what a look at bucket, manifest and disk turned up.

Duty: the words of DESIGN section 1 as a type. A finding is data, never raised and never acted upon by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from durastore.model import ObjectKey

__all__ = ["Action", "Finding", "FindingKind", "FindingSet", "Side"]


class FindingKind(Enum):
    """What is wrong, in the project's words."""

    ORPHAN = "orphan"
    """An object without a manifest entry."""
    DANGLING = "dangling"
    """An entry without its object."""
    DIVERGENT = "divergent"
    """Both are there and unequal."""
    TRUNCATED = "truncated"
    """Fewer bytes than there have to be."""
    UNTRACKED = "untracked"
    """Something no durastore wrote."""
    IN_FLIGHT = "in-flight"
    """Still being written by someone."""
    ONLY_LOCAL = "only-local"
    """Here and not in the bucket."""
    QUARANTINED = "quarantined"
    """Put aside earlier, and still here."""
    UNHASHED = "unhashed"
    """Like what is recorded by name and size, and not compared by content."""
    UNREADABLE = "unreadable"
    """Could not be looked at: there is no plan for it."""


class Side(Enum):
    """Where a finding was made."""

    LOCAL = "local"
    JOURNAL = "journal"
    MANIFEST = "manifest"
    BUCKET = "bucket"


class Action(Enum):
    """What `--apply` does about a finding."""

    NOTHING = "nothing: look at it yourself"
    HASH = "hash it, and compare (so does --deep)"
    UPLOAD = "upload it, read the copy back, list it in the manifest"
    SEND_AGAIN = "look at the object in full, and send the local file again"
    QUARANTINE = "move it to quarantine; what still matches of a pack is salvaged"
    TAKE_BACK = "move it back to where it was, or to quarantine where its place is taken or unknown"
    RECOVER = "read it back into the journal, or move it to quarantine"
    SETTLE = "look at the object in full; LOST only where two looks find nothing"
    REBUILD = "read the object in full and add its rows to the manifest"
    LIST_ANEW = "list the packs that are on record here again, read those that no row names, and fill the gap"
    BURY = "look again, a minute apart; where it is gone, take its rows out: the next run makes its samples again"
    MAKE_AGAIN = "nothing: run the extraction again, or fetch the object and put its samples; a row taken out stays out"
    ASK_TO_BURY = "nothing without --bury, which takes its rows out for good"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingSet:
    """All findings of one kind, on one side, with one meaning. Columns, because there may be millions."""

    kind: FindingKind
    side: Side
    meaning: str
    action: Action
    names: Sequence[str]
    """Paths or keys; a name that is no text is shown with escapes."""
    sizes: Sequence[int] = ()
    details: Sequence[str] = ()
    """Empty, or one for each name."""
    is_note: bool = False
    """Told, and no reason for another exit code than 0."""

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def size_bytes(self) -> int:
        return sum(size for size in self.sizes if size > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found, with the object it is about and a sentence for the operator."""

    kind: FindingKind
    key: ObjectKey
    detail: str
    size_bytes: int | None = None
