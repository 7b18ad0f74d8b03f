"""What a run did, counted."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Applied"]


@dataclass(slots=True)
class Applied:
    """What was done, and what could not be done and why."""

    moved_back: list[str] = field(default_factory=list)
    """Paths that an interrupted run had moved for reclaiming."""
    quarantined: dict[str, str] = field(default_factory=dict)
    """Path -> name in quarantine."""
    uploaded: int = 0
    uploaded_bytes: int = 0
    rows_rebuilt: int = 0
    rows_buried: int = 0
    reclaimed: int = 0
    reclaimed_bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Path or key -> why it was left as it was."""
    refused: dict[str, str] = field(default_factory=dict)
    """What was asked for and not begun -> why."""
    unproven: dict[str, str] = field(default_factory=dict)
    """Path -> why its copy could not be proven, so that its file stays."""
