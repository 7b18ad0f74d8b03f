"""Back-pressure: how long a `put` waits for room, and what becomes of one that meets a full disk.

Duty: let a put through only where it fits, and take one that met ENOSPC or EDQUOT up again once there is room (ADR
0006). Must never let a byte go itself: it only asks the lanes for room, and gives up the ballast.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from durastore.clock import Clock
from durastore.errors import DiskFailed, SpoolFull
from durastore.spool.spool import Spool
from durastore.spool.watermarks import Watermarks
from durastore.store.board import Board
from durastore.store.wait_news import WaitNews

__all__ = ["Pipeline", "Room", "RoomLimits"]

T = TypeVar("T")
_LOOK_EVERY_S = 1.0
_FULL_PAUSE_S = 0.5
_STRIDE_SHARE = 16
_FULL_PAUSE_CAP_S = 30.0
_HINT = "check the endpoint, free disk space, or change high_watermark_bytes or reserve_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomLimits:
    """`stall_s`: how long nothing may progress; `settle_s`: how long a proven pack waits before it can be freed."""

    watermarks: Watermarks
    stall_s: float
    settle_s: float


class Pipeline(Protocol):
    """What a waiting put asks about the work on packs."""

    def describe(self) -> str:
        """What the pipeline is doing and what its last trouble was, for people."""
        ...

    def is_settling(self) -> bool:
        """Whether proven packs wait for no more than their time."""
        ...


class Room:
    """Blocks while the spool is above its high watermark, the disk below its reserve or full, or the ballast gone."""

    def __init__(self, spool: Spool, limits: RoomLimits, *, board: Board, news: WaitNews, clock: Clock) -> None:
        self._spool = spool
        self._limits = limits
        self._board = board
        self._news = news
        self._clock = clock
        self._lock = threading.Lock()
        self._full: str | None = None
        """What the disk said when it was full; None once a put got through."""
        self._fulls = 0
        self._not_before = 0.0
        self._has_admitted = False

    def admit(self, needed_bytes: int, write: Callable[[], T], *, pipeline: Pipeline) -> T:
        """Call `write`, which needs so much disk, once there is room; again, after waiting, if it met a full disk.

        `SpoolFull` when no pack progressed for `stall_s`, or at once where nothing of ours could ever make room; a
        fatal error of the store, and what else `write` raises, pass.
        """
        since = self._clock.monotonic()
        while True:
            self._wait(needed_bytes, since=since, pipeline=pipeline)
            try:
                result = write()
            except DiskFailed as exc:
                if not exc.is_full:
                    raise
                self._note_full(exc)
            else:
                self._note_admitted(needed_bytes)
                return result

    def _note_full(self, exc: DiskFailed) -> None:
        """Reclaim gets the ballast for its records; whether the disk takes it back tells puts when there is room."""
        with self._lock:
            self._full = exc.message
            pause_s = min(_FULL_PAUSE_CAP_S, _FULL_PAUSE_S * 2 ** min(self._fulls, 10))
            self._fulls += 1
            # statvfs knows no quota, and what it shows as free may be kept for others: no hot loop of torn files
            self._not_before = self._clock.monotonic() + pause_s
        self._spool.ballast.release()

    def _note_admitted(self, needed_bytes: int) -> None:
        self._news.note_put(needed_bytes)
        self._has_admitted = True
        if self._full is not None:
            with self._lock:
                self._full, self._fulls = None, 0

    def _wait(self, needed_bytes: int, *, since: float, pipeline: Pipeline) -> None:
        """Return once there is room. Says why it waits, and how long it did."""
        if self._cause(needed_bytes) is None:
            return
        self._news.begin()
        is_admitted = False
        try:
            while (cause := self._cause(needed_bytes)) is not None:
                self._refuse_stalled(needed_bytes, cause, since=since, pipeline=pipeline)
                self._board.ask_for_room(self._short_bytes(needed_bytes))
                self._news.tell(cause, lambda: self._text(cause, pipeline))
                with self._board.changed:
                    self._clock.wait(self._board.changed, _LOOK_EVERY_S)
            is_admitted = True
        finally:
            self._board.ask_for_room(0)
            self._news.end(is_admitted=is_admitted)

    def _cause(self, needed_bytes: int) -> str | None:
        """Why a put has to wait now; None if it may try. The ballast comes back, durably, before any of them does."""
        if self._board.fatal is not None:
            raise self._board.fatal
        marks, ballast = self._limits.watermarks, self._spool.ballast
        used, free = self._spool.used_bytes(), self._spool.free_bytes()
        if used + needed_bytes > marks.high_bytes:
            return "spool full"
        if marks.must_block(used + needed_bytes, free - needed_bytes - ballast.missing_bytes):
            return "disk reserve" if self._full is None else "disk full"
        if self._full is not None and self._clock.monotonic() < self._not_before:
            return "disk full"
        return None if not ballast.is_wanted or ballast.ensure() else "disk full"

    def _short_bytes(self, needed_bytes: int) -> int:
        """How much to free: on a short disk some more than is needed now, or every put would wait for one pack."""
        marks, missing = self._limits.watermarks, self._spool.ballast.missing_bytes
        over = self._spool.used_bytes() + needed_bytes - marks.high_bytes
        short = marks.reserve_bytes + needed_bytes + missing - self._spool.free_bytes()
        stride = self._spool.disk_bytes() // _STRIDE_SHARE if max(short, missing) > 0 else 0
        return max(over, short, missing, 1) + stride

    def _refuse_stalled(self, needed_bytes: int, cause: str, *, since: float, pipeline: Pipeline) -> None:
        marks, now = self._limits.watermarks, self._clock.monotonic()
        usable = self._spool.disk_bytes() - marks.reserve_bytes
        # others may free a disk that they filled, but one that had no room from the start is a wrong option
        is_hopeless = self._spool.used_bytes() == 0 and not self._has_admitted and cause == "disk reserve"
        if is_hopeless or needed_bytes > min(marks.high_bytes, usable):
            raise SpoolFull(
                f"there is never room for {needed_bytes / 1e9:.3f} GB: {self._text(cause, pipeline)}", hint=_HINT
            )
        stalled_s = min(self._board.idle_s(), now - since)
        if stalled_s >= self._limits.stall_s + (self._limits.settle_s if pipeline.is_settling() else 0.0):
            raise SpoolFull(f"no pack progressed for {stalled_s:.0f} s: {self._text(cause, pipeline)}", hint=_HINT)

    def _text(self, cause: str, pipeline: Pipeline) -> str:
        spool, marks = self._spool, self._limits.watermarks
        used, free = spool.used_bytes(), spool.free_bytes()
        said = f" ({self._full})" if self._full is not None else ""
        missing = spool.ballast.missing_bytes
        ballast = f", and {missing / 1e9:.2f} GB for the ballast" if missing else ""
        return (
            f"{cause}{said}: spool {spool.path} holds {used / 1e9:.2f} GB (high watermark {marks.high_bytes / 1e9:.2f}"
            f" GB), disk has {free / 1e9:.2f} GB free (reserve {marks.reserve_bytes / 1e9:.2f} GB{ballast});"
            f" {pipeline.describe()}"
        )
