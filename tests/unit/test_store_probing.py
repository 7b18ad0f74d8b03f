"""What a session makes of saved probes, before and after its own has ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import pytest

from durastore.errors import EndpointUnreachable, NotVerified
from durastore.formats.stop import Place
from durastore.objectstore.probe.result import Outcome, ProbeCheck, ProbeResult
from durastore.objectstore.probe.saved import MAX_AGE_S, save_probe
from durastore.store.lane import Lane
from durastore.store.probing import Probing
from tests.unit.reclaim_lab import ReclaimLab, lab, services_of
from tests.unit.verify_lab import policy, probe_result

__all__ = ["lab"]

TARGET = "0" * 32
PLACE = Place(endpoint="http://127.0.0.1:1", bucket="b", prefix="p")


class Later:
    """A pool whose work ends when the test says so."""

    def __init__(self) -> None:
        self.future: Future[ProbeResult] = Future()

    def submit(self, work: Callable[[], ProbeResult]) -> Future[ProbeResult]:
        del work
        return self.future


def lifecycle(outcome: Outcome) -> tuple[ProbeCheck, ...]:
    return (ProbeCheck(name="lifecycle", outcome=outcome, detail="rule tidy", meaning=""),)


def saved(lab: ReclaimLab, outcome: Outcome, *, number: int, is_by_person: bool = False) -> ProbeResult:
    """A result of this moment on disk, of which this is what it found out about the lifecycle."""
    rule = "tidy" if outcome is Outcome.BLOCKING else None
    facts: dict[str, Any] = {"checks": lifecycle(outcome), "expiring_rule": rule, "id": f"{number:016x}"}
    facts["is_by_person"] = is_by_person
    result = probe_result(taken=lab.clock.stamp().render(), **facts)
    save_probe(lab.spool.root.folder, result)
    return result


def session(lab: ReclaimLab, *, is_probed: bool = True) -> tuple[Lane, Future[ProbeResult]]:
    """A new session: a verifier that knows nothing, its probe under way, and a lane that may try to reclaim."""
    lab.verifier = lab.make_verifier(policy())
    pool = Later()
    services = services_of(lab, reclaim="eager", settle_s=0.0, evidence_ttl_s=1e9)
    probing = Probing(replace(services, pool=cast(Any, pool)), policy(), spools=[lab.spool])
    probing.begin(TARGET, pool.future.result if is_probed else None, place=PLACE)
    return Lane(0, lab.spool, services=services, membership=cast(Any, None)), pool.future


def frees(lab: ReclaimLab, lane: Lane) -> bool:
    lab.clock.advance(60)
    lane._start_reclaim()
    lane._take_outcomes()
    return bool(lab.unlinked)


def test_nothing_goes_before_the_probe_has_ended(lab: ReclaimLab) -> None:
    records = lab.settled("a")
    lane, probe = session(lab)
    assert not frees(lab, lane)
    with pytest.raises(NotVerified, match="probe"):
        lab.verifier.open_batch(records)
    assert lab.observer.count("reclaim.refused") == 0, "the lane did not even ask"
    assert lab.verifier.distrust is None, "a drain waits for the probe, and does not give up"
    probe.set_result(probe_result(taken=lab.clock.stamp().render()))
    assert frees(lab, lane)


def test_a_probe_that_fails_leaves_reading_back(lab: ReclaimLab) -> None:
    lab.settled("a")
    lane, probe = session(lab)
    probe.set_exception(EndpointUnreachable("for the test"))
    assert frees(lab, lane)


@pytest.mark.parametrize("ending", ["fails", "is late", "does not see", "is not run"])
def test_a_lifecycle_rule_once_seen_blocks_until_a_probe_sees_that_it_is_gone(lab: ReclaimLab, ending: str) -> None:
    lab.settled("a")
    seen = saved(lab, Outcome.BLOCKING, number=1)
    lab.clock.advance(MAX_AGE_S + 1 if ending != "is not run" else 1)
    lane, probe = session(lab, is_probed=ending != "is not run")
    if ending == "fails":
        probe.set_exception(EndpointUnreachable("for the test"))
    elif ending == "does not see":
        unknown = probe_result(taken=lab.clock.stamp().render(), checks=lifecycle(Outcome.UNKNOWN), id="2" * 16)
        probe.set_result(unknown)
    assert not frees(lab, lane)
    if ending != "is late":
        assert seen.blocking[0] in str(lab.verifier.distrust)
    saved(lab, Outcome.ABSENT, number=3)
    lane, _ = session(lab, is_probed=ending != "is not run")
    assert lab.verifier.distrust is None
    assert frees(lab, lane)


def test_an_older_good_word_does_not_stand_against_a_newer_block(lab: ReclaimLab) -> None:
    lab.settled("a")
    saved(lab, Outcome.ABSENT, number=1)
    lab.clock.advance(100)
    lab.clock.step_wall(-50_000)  # the newer result has the older date
    saved(lab, Outcome.BLOCKING, number=2)
    lane, _ = session(lab)
    assert not frees(lab, lane)
    assert lab.verifier.distrust is not None


def test_where_the_rules_cannot_be_read_a_persons_probe_ends_a_block(lab: ReclaimLab) -> None:
    lab.settled("a")
    saved(lab, Outcome.BLOCKING, number=1)
    for number, is_by_person in ((2, False), (3, True)):
        lab.clock.advance(1)
        saved(lab, Outcome.UNKNOWN, number=number, is_by_person=is_by_person)
        lane, _ = session(lab)
        assert frees(lab, lane) is is_by_person
    lab.clock.advance(1)
    saved(lab, Outcome.BLOCKING, number=4, is_by_person=True)
    session(lab)
    assert lab.verifier.distrust is not None
