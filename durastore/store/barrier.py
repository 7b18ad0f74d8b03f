"""Waiting until packs have got where they go: into the manifest, or off the disk.

Duty: hurry the lanes while somebody waits, and end the wait at a fatal error, a deadline, or the store's close. Must
never call a pack settled of which something may still come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from durastore.errors import PackFailed, StoreClosed
from durastore.model import Evidence, PackState, SampleId
from durastore.observe.events import LOGGER
from durastore.store.lane import Lane
from durastore.store.membership import Membership
from durastore.store.services import Services
from durastore.store.waiting import describe_settling, describe_wait

__all__ = ["Barrier"]

_LOOK_EVERY_S = 0.5


class Barrier:
    """The waits of one store. Thread-safe; each of them is safe to repeat."""

    def __init__(self, services: Services, lanes: Sequence[Lane], *, membership: Membership) -> None:
        self._services = services
        self._lanes = lanes
        self._membership = membership
        self._is_closed = False

    def close(self) -> None:
        """Every wait, now and from now on, ends with `StoreClosed`. Safe to repeat."""
        self._is_closed = True
        self._services.board.wake()

    def flush(self, timeout_s: float | None) -> None:
        """Until what is in the spools now is MANIFESTED or has failed. `TimeoutError`, `StoreClosed`, a fatal error."""
        pending = {(lane, record.pack_id) for lane in self._lanes for record in lane.unmanifested()}
        self._wait_until(lambda: _unsettled(pending) == 0, timeout_s, draining=False, what="flush")

    def drain(self, timeout_s: float | None) -> None:
        """Until every pack that may go is reclaimed; with `reclaim="never"` none may. Raises as `flush`, and
        `PackFailed` where nothing is reclaimed any more.
        """
        if self._services.options.reclaim != "never":
            services = self._services
            settle_s = services.options.settle_s
            settling = describe_settling(self._lanes, settle_s=settle_s, now=services.clock.stamp())
            if settling is not None and services.verifier.distrust is None:
                LOGGER.info("%s", settling)  # minutes in which nothing else is said
            self._wait_until(self._is_drained, timeout_s, draining=True, what="drain")

    def evidence_of(self, lane: Lane, sample_id: SampleId, *, pack_id: int, timeout_s: float | None) -> Evidence:
        """The proof of the sample's pack, once it is MANIFESTED. Raises as `flush`, and what the pack failed with;
        `PackFailed` if the sample is LOST.
        """
        found: list[Evidence] = []

        def is_settled() -> bool:
            if self._membership.is_lost(sample_id, lane=lane.number, pack_id=pack_id):
                raise PackFailed(f"sample {sample_id} was damaged on disk and is LOST", hint="put it again")
            failure = lane.failure_of(pack_id)
            if failure is not None:
                raise failure
            evidence = _evidence_if_done(lane, pack_id)
            found.extend([evidence] if evidence is not None else [])
            return bool(found)

        self._wait_until(is_settled, timeout_s, draining=False, what="wait")
        return found[0]

    def _is_drained(self) -> bool:
        distrust = self._services.verifier.distrust
        if distrust is not None:
            raise PackFailed(f"reclaiming is stopped: {distrust}", hint="local files are kept; look at the endpoint")
        return not any(lane.unreclaimed() or lane.unmanifested() for lane in self._lanes)

    def _wait_until(self, is_done: Callable[[], bool], timeout_s: float | None, *, draining: bool, what: str) -> None:
        services = self._services
        deadline = None if timeout_s is None else services.clock.monotonic() + timeout_s
        services.board.hurry(draining=draining)
        try:
            while not is_done():
                if services.board.fatal is not None:
                    raise services.board.fatal
                if self._is_closed:
                    raise StoreClosed("the store was closed while this waited")
                if deadline is not None and services.clock.monotonic() >= deadline:
                    left = describe_wait(self._lanes, draining=draining, settle_s=services.options.settle_s)
                    raise TimeoutError(f"{what} did not end within {timeout_s:g} s: {left}")
                with services.board.changed:
                    services.clock.wait(services.board.changed, _LOOK_EVERY_S)
        finally:
            services.board.relax(draining=draining)


def _unsettled(pending: set[tuple[Lane, int]]) -> int:
    """How many of these packs are still on their way; settled ones are dropped from the set."""
    for lane, pack_id in list(pending):
        is_settled = lane.failure_of(pack_id) is not None or _is_out(lane, pack_id)
        if is_settled or _evidence_if_done(lane, pack_id) is not None:
            pending.discard((lane, pack_id))
    return len(pending)


def _is_out(lane: Lane, pack_id: int) -> bool:
    """Whether nothing more can come of this pack: its samples were lost or set aside, and reported as such."""
    return lane.spool.journal.pack(pack_id).state in (PackState.LOST, PackState.QUARANTINED)


def _evidence_if_done(lane: Lane, pack_id: int) -> Evidence | None:
    record = lane.spool.journal.pack(pack_id)
    is_done = record.manifested_in is not None and record.state in (PackState.MANIFESTED, PackState.RECLAIMED)
    return record.evidence if is_done else None
