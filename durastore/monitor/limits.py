"""Which stage of the pipeline sets the pace: what piles up before a stage, and who behind it has nothing to do.

Duty: a verdict from the queues of the last quarter of a minute, because one moment's queue says little: packs come in
bursts. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from durastore.monitor import words
from durastore.monitor.view import Banner, Limit
from durastore.observe.status import STAGES, Amount, Stage

__all__ = ["NAMES", "LimitWatch", "Work", "stalled_limit"]

NAMES = {
    "extracted": "extraction",
    "encoded": "encoding",
    "spooled": "the spool",
    "uploaded": "upload",
    "verified": "verification",
    "manifested": "the manifest",
    "reclaimed": "reclaim",
}
_LOOKS = 15
_PRESSED = 0.8
_BATCH_PACKS = 64
"""Verified packs of a store wait for company, up to so many: that is no queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Who makes samples."""

    is_waiting: bool
    """A put waits for room."""
    is_extracting: bool
    """A model is at work, or the caller's program puts."""
    stores: int
    """Open ones."""


class LimitWatch:
    """Used by one thread, about once a second."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, tuple[Stage, ...]]] = deque(maxlen=_LOOKS)
        self._work = Work(is_waiting=False, is_extracting=False, stores=0)

    def look(self, stages: Sequence[Stage], work: Work, *, now_s: float) -> Limit:
        """Monotonic seconds, and how things stand with those who make samples."""
        self._work, is_waiting = work, work.is_waiting
        self._looks.append((now_s, tuple(stages)))
        by_name = {stage.name: stage for stage in stages}
        pressed = [name for name in ("uploaded", "verified", "manifested") if self._is_pressed(name)]
        pressed = [name for name in pressed if by_name[name].waiting.packs]  # not any more once it is empty
        name = max(pressed, key=lambda each: by_name[each].waiting.size_bytes, default=None)
        if name is not None:
            return self._told(name, by_name, is_waiting=is_waiting)
        if is_waiting:
            return self._told("reclaimed", by_name, is_waiting=True)
        if self._is_pressed("spooled"):
            return self._told("spooled", by_name, is_waiting=False)
        if work.is_extracting:
            starved = tuple(each for each in _behind("extracted") if each in by_name and _is_idle(by_name[each]))
            return Limit(
                stage="extracted",
                starved=starved,
                text="Extraction sets the pace: every stage behind it keeps up and waits for it.",
            )
        return Limit(stage=None, text="Nothing is under way.")

    def _is_pressed(self, name: str) -> bool:
        depths = [
            max(stage.waiting.packs, stage.waiting.samples if name == "spooled" else 0)
            for _, stages in self._looks
            for stage in stages
            if stage.name == name
        ]
        least = _BATCH_PACKS * max(1, self._work.stores) if name == "manifested" else 1
        return len(depths) >= 3 and sum(depth >= least for depth in depths) >= _PRESSED * len(depths)

    def _told(self, name: str, by_name: dict[str, Stage], *, is_waiting: bool) -> Limit:
        waiting = by_name[name].waiting if name in by_name else None
        starved = tuple(each for each in _behind(name) if each in by_name and _is_idle(by_name[each]))
        held_up = STAGES[: STAGES.index(name)] if is_waiting else ()
        parts = [f"{NAMES[name].capitalize()} sets the pace"]
        if waiting is not None:
            parts.append(f": {self._queue_text(name, waiting)}")
        if starved:
            parts.append(f"; {', '.join(NAMES[each] for each in starved)} wait for more of it")
        if held_up:
            parts.append("; extraction is held up")
        return Limit(stage=name, starved=starved, held_up=held_up, text="".join(parts) + ".")

    def _queue_text(self, name: str, waiting: Amount) -> str:
        number, what = (waiting.packs, "packs") if waiting.packs else (waiting.samples, "samples")
        text = f"{words.count(number)} {what} ({words.size(waiting.size_bytes)}) wait for it"
        speed = self._speed(name)
        if speed is None:
            return text
        return f"{text}, {words.duration(waiting.size_bytes / speed)} at {words.rate(speed, of_bytes=True)}"

    def _speed(self, name: str) -> float | None:
        (since_s, first), (now_s, last) = self._looks[0], self._looks[-1]
        before = next((s.done.size_bytes for s in first if s.name == name), 0)
        after = next((s.done.size_bytes for s in last if s.name == name), 0)
        return (after - before) / (now_s - since_s) if now_s > since_s and after > before else None


def stalled_limit(stages: Sequence[Stage], stall: Banner) -> Limit:
    """Nothing gets through a stage: that is all there is to say."""
    stage = stall.stage or STAGES[0]
    behind = _behind(stage)
    starved = tuple(each.name for each in stages if each.name in behind and _is_idle(each))
    return Limit(stage=stage, starved=starved, text=f"{stall.title}.")


def _is_idle(stage: Stage) -> bool:
    return not stage.waiting.packs and not stage.waiting.samples


def _behind(name: str) -> tuple[str, ...]:
    return STAGES[STAGES.index(name) + 1 :]
