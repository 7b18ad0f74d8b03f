"""The stop switch for files of others: a wrong copy stops reclaiming in this folder until a person looked (DESIGN 6).

Duty: keep a stop in the folder's private root, in the form that spool roots have, heed those that are there, and lift
one only for a probe that a person ran after it (`durastore probe --local DIR`). Must never lift one by itself.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from durastore.clock import Clock
from durastore.errors import NotVerified
from durastore.formats.stop import MAX_REASON, LiftRecord, Place, StopRecord
from durastore.fsio.folder import Folder
from durastore.objectstore.location import BucketUrl, S3Options
from durastore.objectstore.probe.opening import probed_place
from durastore.objectstore.probe.saved import load_probes
from durastore.observe.events import LOGGER
from durastore.spool.stops import find_answer, lift_stop, stops_in_force, throw_stop
from durastore.verify.verifier import Verifier

__all__ = ["StopWatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWatch:
    """Of one folder and one bucket."""

    root: Folder
    """The private root."""
    place: Place | None
    """None: an adapter of the caller's own, of which no probe can speak; such a stop is taken away by hand."""
    target: str = ""
    command: str = ""
    """What a person is to run."""
    clock: Clock

    @classmethod
    def of(cls, root: Folder, url: BucketUrl | None, *, s3: S3Options, clock: Clock) -> StopWatch:
        """For a root in a folder. `url` None: an adapter of the caller's own. Sends nothing."""
        if url is None:
            return cls(root=root, place=None, clock=clock)
        place, target = probed_place(url, s3=s3)
        endpoint = f" --endpoint-url {s3.endpoint_url}" if s3.endpoint_url else ""
        command = f"durastore probe --bucket {url.render()}{endpoint} --local {root.path.parent}"
        return cls(root=root, place=place, target=target, command=command, clock=clock)

    def heed(self, verifier: Verifier) -> None:
        """From now on the verifier keeps its stops here and heeds those that are in force. `NotVerified` where one is;
        `SpoolUnreadable`, `DiskFailed` and OSError where that cannot be told or kept.
        """
        self._lift_answered()
        verifier.on_distrust(self._throw, look=self._look)
        reason = verifier.heed()
        if reason is not None:
            raise NotVerified(f"reclaiming is stopped here, every file stays: {reason}", hint=self._hint())

    def _hint(self) -> str:
        if self.place is None:
            return f"look at the endpoint; then take reclaim-stop-*.json out of {self.root.path}"
        return f"look at the endpoint; then run `{self.command}`, which lifts the stop, and the same command again"

    def _lift_answered(self) -> None:
        probes = load_probes(self.root, target=self.target) if self.place is not None else []
        for stop in stops_in_force(self.root):
            answer = find_answer(stop, probes)
            if answer is not None:
                lifted = self.clock.stamp().render()
                lift_stop(self.root, LiftRecord(stop=stop.id, probe=answer.id, lifted=lifted))
                LOGGER.warning("reclaiming goes on after probe %s; it was stopped because: %s", answer.id, stop.reason)

    def _throw(self, reason: str) -> None:
        LOGGER.error("reclaiming is stopped, local files are kept: %s. %s", reason, self._hint())
        record = StopRecord(
            id=secrets.token_hex(8),
            thrown=self.clock.stamp().render(),
            reason=reason[:MAX_REASON],
            place=self.place,
        )
        throw_stop(self.root, record)

    def _look(self) -> str | None:
        stops = stops_in_force(self.root)
        return stops[0].reason if stops else None
