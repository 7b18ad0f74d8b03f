"""When a refused pack is set aside: a lane that was not started, with an uploader that answers what a test says."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import pytest

from durastore.errors import RequestRefused
from durastore.model import PackState
from durastore.store.lane import Lane
from durastore.upload.job import UploadJob
from tests.unit.reclaim_lab import ReclaimLab, lab, services_of

__all__ = ["lab"]


class Held:
    """An uploader whose requests stay on the way until a test lets them be refused."""

    def __init__(self) -> None:
        self.sent: list[Future[Any]] = []

    def submit(self, _: UploadJob) -> Future[Any]:
        self.sent.append(Future())
        return self.sent[-1]


class RefusedLane:
    """One sealed pack, sent again and again."""

    def __init__(self, lab: ReclaimLab) -> None:
        self.lab, self.held = lab, Held()
        self.record = lab.sealed("a")
        self.services = replace(services_of(lab), uploader=cast(Any, self.held))
        self.lane = Lane(0, lab.spool, services=self.services, membership=cast(Any, None))

    def send(self) -> Future[Any]:
        self.lab.clock.advance(60)
        before = len(self.held.sent)
        self.lane._start_uploads()
        assert len(self.held.sent) == before + 1, "it was not sent again"
        return self.held.sent[-1]

    def refuse(self, sent: Future[Any]) -> None:
        sent.set_exception(RequestRefused("the endpoint answered 400 InvalidArgument"))
        self.lane._take_outcomes()

    @property
    def is_set_aside(self) -> bool:
        return bool(self.lane.failures())


@pytest.fixture
def refused(lab: ReclaimLab) -> RefusedLane:
    return RefusedLane(lab)


def test_a_pack_refused_three_times_is_set_aside_and_stays(refused: RefusedLane) -> None:
    for _ in range(2):
        refused.refuse(refused.send())
        assert not refused.is_set_aside
    refused.refuse(refused.send())
    assert refused.is_set_aside
    assert refused.lab.state(refused.record) is PackState.SEALED
    assert refused.lab.is_here(refused.record)


def test_refusals_while_a_probe_looks_for_other_headers_do_not_count(refused: RefusedLane) -> None:
    # case B160
    refused.services.board.is_probing = True
    for _ in range(5):
        refused.refuse(refused.send())
    refused.services.board.is_probing = False
    for _ in range(2):
        refused.refuse(refused.send())
        assert not refused.is_set_aside
    refused.refuse(refused.send())
    assert refused.is_set_aside


def test_what_was_sent_with_the_old_headers_and_refused_after_the_probe_does_not_count(refused: RefusedLane) -> None:
    # case B160: seen on a busy machine; the pack failed, and the very next request would have been taken
    refused.services.board.is_probing = True
    for _ in range(3):
        refused.refuse(refused.send())
    sent = refused.send()
    refused.services.board.is_probing = False
    refused.refuse(sent)
    assert not refused.is_set_aside
    refused.send()


def test_what_was_sent_before_a_probe_began_and_refused_during_it_does_not_count(refused: RefusedLane) -> None:
    for _ in range(2):
        refused.refuse(refused.send())
    sent = refused.send()
    refused.services.board.is_probing = True
    refused.refuse(sent)
    assert not refused.is_set_aside
