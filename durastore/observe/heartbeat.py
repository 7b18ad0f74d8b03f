"""Once a second, a record of how things stand goes into a status file, from a thread of its own.

Duty: call, write, wait. Must never hold up or fail the work that it tells of, nor take more than a small share of its
time: a look that takes long is taken less often. What goes wrong here is logged once and goes on.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from durastore.clock import Clock
from durastore.observe.events import LOGGER
from durastore.observe.status import Teller

__all__ = ["Heartbeat"]

_EVERY_S = 1.0
_SHARE = 0.05
_LONGEST_S = 5.0
_LAST_WORDS_S = 2.0


class RecordFile(Protocol):
    """Takes a record's bytes; False if they went nowhere."""

    def write(self, slot: bytes) -> bool: ...


class Heartbeat:
    """Start with `start`, end with `stop`; the last record says that this was the end."""

    def __init__(
        self, render: Callable[[Teller, int], bytes], file: RecordFile, *, clock: Clock, after_pid: int | None
    ):
        """`render`: the slot for a teller and the number of the record. `after_pid`: see `Teller`."""
        self._render = render
        self._file = file
        self._clock = clock
        self._after_pid = after_pid
        self._begun = clock.stamp()
        self._host = socket.gethostname()
        self._number = self._begun.wall_ns  # greater than those of an earlier process
        self._is_over = threading.Event()
        self._has_failed = self._is_slowed = False
        self._thread = threading.Thread(target=self._run, name="durastore-status", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Say goodbye, unless the disk holds even that up. Safe to repeat."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_WORDS_S)

    def _run(self) -> None:
        while True:
            is_over = self._is_over.is_set()
            begun_s = self._clock.monotonic()
            self._beat(is_ended=is_over)
            if is_over:
                return
            # Real time on purpose: a clock that a test owns would make this a loop without a pause.
            took_s = self._clock.monotonic() - begun_s
            pause_s = min(_LONGEST_S, max(_EVERY_S, took_s / _SHARE))
            self._is_slowed = pause_s > _EVERY_S
            self._is_over.wait(pause_s)

    def _beat(self, *, is_ended: bool) -> None:
        now = self._clock.stamp()
        teller = Teller(
            pid=os.getpid(),
            host=self._host,
            boot_id=now.boot_id,
            started_ns=self._begun.wall_ns,
            written_ns=now.wall_ns,
            written_boottime_ns=now.boottime_ns,
            is_ended=is_ended,
            after_pid=self._after_pid,
            is_slowed=self._is_slowed,
        )
        self._number += 1
        try:
            self._file.write(self._render(teller, self._number))
        except Exception as exc:  # noqa: BLE001 - a number that could not be told must cost nothing else
            if not self._has_failed:
                self._has_failed = True
                LOGGER.debug("status is not told, which is logged once: %r", exc)
