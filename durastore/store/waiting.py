"""What a wait that took too long was waiting for, in one line.

Duty: words for the message of a timeout, and of a put that waits. Pure besides reading journals.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from durastore.clock import Stamp
from durastore.config import StoreOptions
from durastore.store.lane import Lane
from durastore.verify.guards import settle_age_s

__all__ = ["PipelineWords", "describe_settling", "describe_wait"]


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


def describe_settling(lanes: Sequence[Lane], *, settle_s: float, now: Stamp) -> str | None:
    """How long the youngest proven pack still waits before its file may go, and until when; None where none waits."""
    packs = [record for lane in lanes for record in lane.unreclaimed()]
    ages = [settle_age_s(record, record.evidence, now=now) or 0.0 for record in packs]
    left_s = settle_s - min(ages, default=settle_s)
    if left_s < 1:
        return None
    until = datetime.fromtimestamp(now.wall_ns / 1e9 + left_s, tz=UTC).isoformat(timespec="seconds")
    return (
        f"{len(packs)} proven packs wait to be freed, each at least settle_s={settle_s:g} s after its upload: "
        f"the last one {left_s:.0f} s from now, at {until}; they are safe in the bucket, so this may be interrupted"
    )


class PipelineWords:
    """What a put that waits for room is told about the lanes (`Pipeline`)."""

    def __init__(self, lanes: Sequence[Lane], options: StoreOptions) -> None:
        self._lanes = lanes
        self._options = options

    def describe(self) -> str:
        failures = [error for lane in self._lanes for error in lane.failures()]
        never = '; reclaim="never" frees nothing' if self._options.reclaim == "never" else ""
        failed = f"; {len(failures)} packs cannot get on: {failures[-1].message}" if failures else ""
        return describe_wait(self._lanes, draining=not never, settle_s=self._options.settle_s) + never + failed

    def is_settling(self) -> bool:
        """Whether proven packs wait for no more than `settle_s`."""
        return self._options.reclaim != "never" and any(lane.unreclaimed() for lane in self._lanes)
