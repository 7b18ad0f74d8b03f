"""SIGTERM, SIGUSR1 and SIGINT as a request to stop, with a deadline.

Duty: note the first signal and when it came; leave at once at a SIGINT after it. Handlers take no lock and free
nothing. Must never turn a signal into data loss: what `put` has returned for survives even the second SIGINT.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from durastore.clock import Clock

__all__ = ["StopSwitch"]

_NOTICE = b"\ndurastore: stopping after this batch; Ctrl-C again leaves at once (stored samples are safe)\n"


class StopSwitch:
    """Off until a stop is requested, then on for good."""

    def __init__(self, *, grace_s: float, clock: Clock) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._signal: int | None = None
        self._deadline: float | None = None

    @property
    def signal(self) -> int | None:
        """The signal that asked for the stop; SIGTERM for SIGUSR1, which asks for the same."""
        return signal.SIGTERM if self._signal == signal.SIGUSR1 else self._signal

    @property
    def is_expired(self) -> bool:
        """True once the grace time after the request is over."""
        return self._deadline is not None and self._clock.monotonic() >= self._deadline

    @property
    def is_half_over(self) -> bool:
        """True once half of the grace time is over: the rest is for the flush."""
        return self._deadline is not None and self._clock.monotonic() >= self._deadline - self._grace_s / 2

    def request(self, number: int) -> None:
        """Ask for a stop as if by this signal. A second request changes nothing."""
        if self._signal is None:
            self._deadline = self._clock.monotonic() + self._grace_s
            self._signal = number

    @contextmanager
    def installed(self) -> Iterator[StopSwitch]:
        """Handle SIGTERM, SIGINT and SIGUSR1 (a batch system's word before the time is up) until the block is left.

        Main thread only.
        """
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        previous = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and self._signal is not None:
            os._exit(130)  # no finally, no flush: whoever asks twice does not want to wait for either
        self.request(number)
        os.write(2, _NOTICE)
