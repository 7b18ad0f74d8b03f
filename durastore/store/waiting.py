"""What a wait that took too long was waiting for, in one line.

Duty: words for the message of a timeout. Pure besides reading journals.
"""

from __future__ import annotations

from collections.abc import Sequence

from durastore.store.lane import Lane

__all__ = ["describe_wait"]


def describe_wait(lanes: Sequence[Lane], *, draining: bool, settle_s: float) -> str:
    """For example: "3 packs are not in the manifest yet; last trouble: ...; local files are kept"."""
    parts = []
    unmanifested = sum(len(lane.unmanifested()) for lane in lanes)
    if unmanifested:
        parts.append(f"{unmanifested} packs are not in the manifest yet")
    unreclaimed = sum(len(lane.unreclaimed()) for lane in lanes) if draining else 0
    if unreclaimed:
        parts.append(f"{unreclaimed} proven packs wait to be freed, each at least settle_s={settle_s:g} s")
    troubles = [lane.last_trouble for lane in lanes if lane.last_trouble is not None]
    if troubles and unmanifested:
        parts.append(f"last trouble: {troubles[-1]}")
    return "; ".join([*parts, "local files are kept"])
