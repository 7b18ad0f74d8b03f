"""The stop switch beyond one session and one process.

Duty: a stop that this store throws is kept in the spool root, for every store there, and in the journals of its spools,
which have room where a full disk has none; one that another store threw is heeded. Must never lift one by itself: a
person does, with a probe that was begun after it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from durastore.errors import DiskFailed, SpoolUnreadable
from durastore.formats.stop import MAX_REASON, LiftRecord, Place, StopRecord
from durastore.objectstore.probe.result import ProbeResult
from durastore.observe.events import LOGGER
from durastore.spool.spool import Spool
from durastore.spool.stops import FACT_STOPPED, find_answer, lift_stop, stops_in_force, throw_stop
from durastore.store.services import Services

__all__ = ["StopSwitch"]

_AGAIN_S = 60.0


class StopSwitch:
    """For one open store."""

    def __init__(self, services: Services, *, spools: Sequence[Spool]) -> None:
        self._services = services
        self._spools = spools
        self._folder = spools[0].root.folder
        self._place: Place | None = None
        self._last: tuple[StopRecord, float] | None = None

    def restore(self, probes: Sequence[ProbeResult], *, place: Place | None) -> None:
        """Start stopped if anybody at this root found a wrong copy and no person has lifted that since, with one of
        `probes`; from now on a stop is kept, and others' are heeded. `SpoolUnreadable` if the root cannot be read.
        """
        self._place = place
        verifier = self._services.verifier
        kept = [StopRecord.of_text(text) for text in self._facts() if text is not None]
        for record in kept:
            self._publish(record)  # its root had no room for it, or the spool came here from another
        in_force = [stop for stop in stops_in_force(self._folder, also=kept) if not self._lift(stop, probes)]
        self._forget_lifted({stop.id for stop in in_force})
        if verifier.distrust is not None:
            self._throw(verifier.distrust)  # recovery found it just now: no probe can have been begun after it
        elif in_force:
            verifier.stop_reclaiming(in_force[0].reason)
        verifier.on_distrust(self._throw, again=self._throw_again, look=self._look)

    def _lift(self, stop: StopRecord, probes: Sequence[ProbeResult]) -> bool:
        answer = find_answer(stop, probes)
        if answer is None:
            return False
        lifted = LiftRecord(stop=stop.id, probe=answer.id, lifted=self._services.clock.stamp().render())
        try:
            lift_stop(self._folder, lifted)
        except DiskFailed as exc:
            LOGGER.error("probe %s lifts a stop of reclaiming, but that cannot be kept: %s", answer.id, exc)
            return False
        LOGGER.warning("reclaiming goes on after probe %s; it was stopped because: %s", answer.id, stop.reason)
        return True

    def _facts(self) -> list[str | None]:
        return [spool.journal.get_fact(FACT_STOPPED) for spool in self._spools]

    def _forget_lifted(self, in_force: set[str]) -> None:
        for spool, text in zip(self._spools, self._facts(), strict=True):
            if text is not None and StopRecord.of_text(text).id not in in_force:
                spool.journal.set_fact(FACT_STOPPED, None)

    def _throw(self, reason: str) -> None:
        LOGGER.error("reclaiming is stopped, local files are kept: %s", reason)
        clock = self._services.clock
        record = StopRecord(
            id=secrets.token_hex(8), thrown=clock.stamp().render(), reason=reason[:MAX_REASON], place=self._place
        )
        self._last = (record, clock.monotonic())
        self._publish(record)
        for spool in self._spools:
            # in place of an older one: this asks for more
            spool.journal.set_fact(FACT_STOPPED, record.render().decode())

    def _throw_again(self, reason: str) -> None:
        """Another wrong copy, in a session that is stopped: a probe that was begun before it must not lift this one
        too. Bounded, because every pack of a broken endpoint may come here.
        """
        if self._last is not None and self._services.clock.monotonic() - self._last[1] < _AGAIN_S:
            try:
                if self._last[0] in stops_in_force(self._folder, also=[self._last[0]]):
                    return
            except SpoolUnreadable:
                pass  # not knowing: one file too many does no harm
        self._throw(reason)

    def _look(self) -> str | None:
        """Why another store at this root stopped, or None."""
        stops = stops_in_force(self._folder)
        return stops[0].reason if stops else None

    def _publish(self, record: StopRecord) -> None:
        try:
            throw_stop(self._folder, record)
        except DiskFailed as exc:
            LOGGER.error("other stores at %s do not learn that reclaiming is stopped: %s", self._folder.path, exc)
