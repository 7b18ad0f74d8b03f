"""Findings: what a look at bucket, manifest and disk turned up.

Duty: the words of DESIGN section 1 as a type. A finding is data, never raised and never acted upon by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from durastore.model import ObjectKey

__all__ = ["Finding", "FindingKind"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found, with the object it is about and a sentence for the operator."""

    kind: FindingKind
    key: ObjectKey
    detail: str
    size_bytes: int | None = None
