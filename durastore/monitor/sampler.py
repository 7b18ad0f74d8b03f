"""The one thread that looks, once a second, however many people watch.

Duty: keep the newest `View` for whoever renders it, and tell when the looking itself is stuck. Must never end because
of what it finds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.monitor.building import ViewBuilder
from durastore.monitor.looking import RootLook
from durastore.monitor.view import Banner, View
from durastore.observe.events import LOGGER

__all__ = ["Sampler", "look_once"]

_EVERY_S = 1.0
_SHARE = 0.1
_STUCK_S = 10.0


def look_once(roots: Sequence[Path], *, clock: Clock = SYSTEM_CLOCK) -> View:
    """One view, without rates."""
    with Sampler(roots, clock=clock) as sampler:
        return sampler.look()


class Sampler:
    """Close it, or use it as a context manager. `view` may be asked by any thread."""

    def __init__(self, roots: Sequence[Path], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._roots = tuple(root.absolute() for root in roots)
        self._clock = clock
        self._looks = [RootLook(root, clock=clock) for root in self._roots]
        self._builder = ViewBuilder()
        self._view = View(at_ns=clock.now_ns(), roots=tuple(map(str, self._roots)))
        self._looked_s = clock.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="durastore-monitor", daemon=True)

    def start(self) -> None:
        """Look by itself from now on."""
        self._thread.start()

    def look(self) -> View:
        """Look now. Only while the thread does not, or in it."""
        facts = [look.look() for look in self._looks]
        self._looked_s = self._clock.monotonic()
        self._view = self._builder.build(facts, now_s=self._looked_s, now_ns=self._clock.now_ns())
        return self._view

    @property
    def view(self) -> View:
        """The newest. One that is old says so: a root on a hanging disk cannot be looked at either."""
        view, silent_s = self._view, self.silent_s
        if silent_s < _STUCK_S:
            return view
        banner = Banner(
            severity="bad",
            what="monitor",
            title=f"These numbers are {silent_s:.0f} s old",
            detail="the monitor cannot read a root: its disk may hang",
        )
        return replace(view, banners=(banner, *view.banners))

    @property
    def silent_s(self) -> float:
        """Seconds since the last look ended."""
        return self._clock.monotonic() - self._looked_s

    @property
    def is_well(self) -> bool:
        return self.silent_s < _STUCK_S

    def _run(self) -> None:
        while not self._is_over.is_set():
            begun_s = self._clock.monotonic()
            try:
                self.look()
            except Exception:  # noqa: BLE001 - whoever watches is told that the numbers are old
                LOGGER.exception("a look at %s failed", ", ".join(map(str, self._roots)))
            took_s = self._clock.monotonic() - begun_s
            self._is_over.wait(max(_EVERY_S - took_s, took_s / _SHARE - took_s, 0.05))

    def close(self) -> None:
        """Safe to repeat."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        for look in self._looks:
            look.close()

    def __enter__(self) -> Sampler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
