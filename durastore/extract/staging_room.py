"""How much of a staging folder's file system is spoken for.

Duty: a reservation for each file before its request is sent, kept until the file is gone; so that a server never meets
a full file system because of what was asked of it. Must never count a file as gone because somebody asked for it to go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["MOST_SHARE", "Reservation", "StagingRoom"]

MOST_SHARE = 0.85
"""Of what is free at the start: others write there too, and a file's last page is never full."""


class Reservation:
    """Room for one file. Thread-safe."""

    __slots__ = ("_is_written", "_room", "size_bytes")

    def __init__(self, room: StagingRoom, size_bytes: int) -> None:
        self._room = room
        self._is_written = False
        self.size_bytes = size_bytes

    def written(self) -> None:
        """The file is there in full: the file system counts it by itself."""
        with self._room.changed:
            if not self._is_written:
                self._is_written = True
                self._room.unwritten_bytes -= self.size_bytes

    def give_back(self) -> None:
        """The file is gone, or will never be. Safe to repeat."""
        with self._room.changed:
            size_bytes, self.size_bytes = self.size_bytes, 0
            self._room.reserved_bytes -= size_bytes
            if not self._is_written:
                self._room.unwritten_bytes -= size_bytes
            self._room.changed.notify_all()


class StagingRoom:
    """The room of one process in one folder."""

    def __init__(
        self, free_bytes: Callable[[], int], *, limit_bytes: int | None = None, share: float = MOST_SHARE
    ) -> None:
        """`free_bytes` asks the file system. `limit_bytes`: of this process; by default a `share` of what is free."""
        self._free_bytes = free_bytes
        self.limit_bytes = int(free_bytes() * share) if limit_bytes is None else limit_bytes
        self.changed = threading.Condition()
        self.reserved_bytes = 0
        self.unwritten_bytes = 0

    def reserve(self, size_bytes: int) -> Reservation | None:
        """Room for a file, or None at the moment. `DiskFailed` if the file system cannot be asked."""
        with self.changed:
            if self.reserved_bytes + size_bytes > self.limit_bytes:
                return None
            if self.unwritten_bytes + size_bytes > self._free_bytes():
                return None  # others have taken what was free at the start
            self.reserved_bytes += size_bytes
            self.unwritten_bytes += size_bytes
            return Reservation(self, size_bytes)

    def fits_ever(self, size_bytes: int) -> bool:
        return size_bytes <= self.limit_bytes
