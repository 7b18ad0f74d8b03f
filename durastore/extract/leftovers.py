"""What workers that were lost may have left on their machines.

Duty: remember the spools of workers that did not end well, have each machine that is still there bring its own to the
bucket, and name what stays. Must never call a spool empty that its machine did not look into.
"""

from __future__ import annotations

from dataclasses import dataclass

from durastore.clock import Clock
from durastore.extract.cluster import Actor, Answer, Cluster, Hello, Lost, Refused
from durastore.extract.job import ExtractRequest
from durastore.extract.remote_worker import Drained
from durastore.extract.report import LeftSpool
from durastore.extract.switch import StopSwitch
from durastore.observe.events import LOGGER

__all__ = ["Leftovers"]

_POLL_S = 0.2
_PATIENCE_S = 600.0
"""For one machine to bring what it has. It goes on by itself when durastore is started there again."""


@dataclass(frozen=True, slots=True)
class _Place:
    host: str
    node: str


class Leftovers:
    """Of one command. Used by one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._spools: dict[_Place, dict[str, str]] = {}
        """Machine -> path of a spool -> why it is there."""

    def note(self, hello: Hello | None, spool: str | None) -> None:
        """A worker ended there without having brought all it stored to the bucket. One that had no spool left none."""
        if hello is not None and spool is not None:
            place = _Place(hello.host, hello.node)
            self._spools.setdefault(place, {})[spool] = "its worker did not bring it to the bucket"

    def left(self) -> tuple[LeftSpool, ...]:
        return tuple(
            LeftSpool(host=place.host, spool=spool, reason=reason)
            for place, spools in self._spools.items()
            for spool, reason in sorted(spools.items())
        )

    def drain(self, request: ExtractRequest, *, switch: StopSwitch, clock: Clock) -> None:
        """Have every machine with such a spool drain it; those that are gone, or cannot, stay named."""
        visits = {self._cluster.visit(place.node): place for place in self._spools}
        asked: dict[Actor, bool] = {}
        for actor in visits:
            actor.hello()
            asked[actor] = False
        give_up_s = clock.monotonic() + _PATIENCE_S
        while asked and switch.signal is None and clock.monotonic() < give_up_s:
            for actor, answer in self._cluster.answers(list(asked), _POLL_S):
                if isinstance(answer, Hello) and not asked[actor]:
                    asked[actor] = True
                    actor.drain(request, timeout_s=_PATIENCE_S)
                    continue
                del asked[actor]
                self._settle(visits[actor], answer)
        for actor in visits:
            self._cluster.release(actor)

    def _settle(self, place: _Place, answer: Answer) -> None:
        if isinstance(answer, Drained):
            reason = answer.error or "a process that still lives holds it"
            stay = {*answer.left, *answer.locked}
            known = self._spools[place]
            if answer.error and not stay:
                stay = set(known)  # nothing was looked into
            self._spools[place] = dict.fromkeys({*known, *answer.left} & stay, reason)
        elif isinstance(answer, Lost | Refused):
            LOGGER.warning("%s cannot be asked to drain its spools: %s", place.host, answer.reason)
            self._spools[place] = dict.fromkeys(self._spools[place], "its machine cannot be reached")
        if not self._spools[place]:
            del self._spools[place]
