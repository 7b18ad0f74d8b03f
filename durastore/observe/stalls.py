"""When nothing moves: at which stage, since when, and why.

Duty: compare what each stage has done with what it had done a moment ago. Told the facts, tells a `Stall` and one event
at its beginning and end. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from durastore.observe.events import LOGGER, Observer
from durastore.observe.status import Stall, clipped

__all__ = ["STALL_AFTER_S", "StageLook", "StallWatch"]

STALL_AFTER_S = 60.0
"""So long a stage with work before it may be silent: longer than any wait that is meant (a segment's batch)."""
_KNOWN_AFTER_S = 5.0
"""And so long if it is known what is in its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLook:
    """One stage as it is now."""

    name: str
    is_waited_for: bool
    """There is work before it."""
    progress: int
    """Grows with whatever the stage gets done."""
    obstacle: str | None = None
    """What is in its way, if that is known."""
    silent: str = "nothing got through, and nobody said why"
    after_s: float = STALL_AFTER_S


class StallWatch:
    """Used by one thread."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._moved: dict[str, tuple[int, int]] = {}
        self._blocked: dict[str, int] = {}
        self._stall: Stall | None = None

    def look(self, stages: Sequence[StageLook], *, now_ns: int) -> Stall | None:
        """The last stalled stage of the pipeline, because what is before it waits for it; of several with one reason
        the first.
        """
        found: Stall | None = None
        for stage in stages:
            stall = self._look_at(stage, now_ns)
            if stall is not None and (found is None or stall.why != found.why):
                found = stall
        self._tell(found, now_ns)
        return found

    def _look_at(self, stage: StageLook, now_ns: int) -> Stall | None:
        progress, since_ns = self._moved.get(stage.name, (-1, now_ns))
        if stage.progress != progress or not stage.is_waited_for or since_ns > now_ns:
            self._moved[stage.name] = (stage.progress, now_ns)
            self._blocked.pop(stage.name, None)
            return None
        if stage.obstacle is None:
            self._blocked.pop(stage.name, None)
            is_stalled = now_ns - since_ns >= stage.after_s * 1e9
            return Stall(stage=stage.name, why=stage.silent, since_ns=since_ns) if is_stalled else None
        blocked_ns = self._blocked.setdefault(stage.name, now_ns)
        if now_ns - blocked_ns < _KNOWN_AFTER_S * 1e9:
            return None
        return Stall(stage=stage.name, why=clipped(stage.obstacle), since_ns=since_ns)

    def _tell(self, found: Stall | None, now_ns: int) -> None:
        before, self._stall = self._stall, found
        if found is not None and (before is None or before.stage != found.stage):
            LOGGER.warning("stalled at %s: %s", found.stage, found.why)
            self._observer.emit("stall.begun", stage=found.stage, why=found.why)
        elif before is not None and found is None:
            lasted_s = (now_ns - before.since_ns) / 1e9
            LOGGER.warning("goes on after a stall of %.0f s at %s", lasted_s, before.stage)
            self._observer.emit("stall.ended", stage=before.stage, lasted_s=lasted_s)
