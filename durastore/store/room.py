"""Back-pressure: how long a `put` waits for room, and what it says while it waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from durastore.clock import Clock
from durastore.errors import DurastoreError, SpoolFull
from durastore.observe.events import LOGGER
from durastore.spool.spool import Spool
from durastore.spool.watermarks import Watermarks
from durastore.store.board import Board

__all__ = ["Room"]

_LOOK_EVERY_S = 1.0
_HINT = "check the endpoint, free disk space, or change high_watermark_bytes or reserve_bytes"


class Room:
    """Blocks while the spool is above its high watermark or the disk below its reserve."""

    def __init__(self, spool: Spool, watermarks: Watermarks, *, stall_s: float, board: Board, clock: Clock) -> None:
        self._spool = spool
        self._watermarks = watermarks
        self._stall_s = stall_s
        self._board = board
        self._clock = clock

    def wait(self, needed_bytes: int, *, blockers: Callable[[], Sequence[DurastoreError]]) -> None:
        """Return once `needed_bytes` fit. Says once why it waits; `SpoolFull` when no pack progressed for `stall_s`, or
        at once where nothing of ours could ever make room.

        `blockers` tells why packs fail, for the message. A fatal error of the store is raised at once.
        """
        is_told = False
        since = self._clock.monotonic()
        while True:
            if self._board.fatal is not None:
                raise self._board.fatal
            used, free = self._spool.used_bytes(), self._spool.free_bytes()
            if not self._watermarks.must_block(used + needed_bytes, free - needed_bytes):
                return
            text = self._cause(used, free, blockers=blockers())
            if used == 0 or needed_bytes > self._watermarks.high_bytes:
                raise SpoolFull(f"there is never room for {needed_bytes / 1e9:.3f} GB: {text}", hint=_HINT)
            if not is_told:
                LOGGER.warning("put waits: %s", text)
                is_told = True
            stalled_s = min(self._board.idle_s(), self._clock.monotonic() - since)
            if stalled_s >= self._stall_s:
                raise SpoolFull(f"no pack progressed for {stalled_s:.0f} s: {text}", hint=_HINT)
            with self._board.changed:
                self._clock.wait(self._board.changed, _LOOK_EVERY_S)

    def _cause(self, used: int, free: int, *, blockers: Sequence[DurastoreError]) -> str:
        marks = self._watermarks
        why = f"; last trouble: {blockers[-1].message}" if blockers else ""
        return (
            f"spool {self._spool.path} holds {used / 1e9:.2f} GB (high watermark {marks.high_bytes / 1e9:.2f} GB), "
            f"disk has {free / 1e9:.2f} GB free (reserve {marks.reserve_bytes / 1e9:.2f} GB){why}"
        )
