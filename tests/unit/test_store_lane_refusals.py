"""When a refused pack is set aside, and one without a good file LOST: a lane that was not started, asked for rounds."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import pytest

from durastore.errors import RequestRefused, SpoolUnreadable
from durastore.manifest.index import IdIndex
from durastore.model import PackState, SampleId
from durastore.store.lane import Lane
from durastore.store.membership import Membership
from durastore.testing.faulty import Fault, FaultRule
from durastore.upload.job import UploadJob
from tests.unit.reclaim_lab import ReclaimLab, lab, services_of
from tests.unit.spool_lab import RUN

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
        self.membership = Membership(IdIndex(), run=RUN.digest, rows_of=lambda _: [], is_held=lambda _: True)
        self.lane = Lane(0, lab.spool, services=self.services, membership=self.membership)

    def send(self) -> Future[Any]:
        self.lab.clock.advance(60)
        before = len(self.held.sent)
        self.lane._start_uploads()
        assert len(self.held.sent) == before + 1, "it was not sent again"
        return self.held.sent[-1]

    def refuse(self, sent: Future[Any]) -> None:
        sent.set_exception(RequestRefused("the endpoint answered 400 InvalidArgument"))
        self.lane._take_outcomes()

    def fail_locally(self) -> None:
        """The sending finds no file, or another one than was sealed; then the bucket is asked, at once."""
        self.send().set_exception(SpoolUnreadable("the file cannot be read"))
        self.lane._take_outcomes()

    def store_object(self) -> None:
        """What an earlier try left in the bucket before its answer was lost."""
        assert self.record.key is not None
        self.lab.spool.journal.write_id(self.record.pack_id)
        content = self.lab.content(self.record)
        self.lab.objects.put(self.record.key, content, crc64nvme=self.record.crc64nvme, metadata={})

    def damage(self, harm: str) -> None:
        path = self.lab.path(self.record)
        if harm == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] + b"?")

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


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_a_pack_without_a_good_file_is_looked_for_in_the_bucket(refused: RefusedLane, harm: str) -> None:
    # case B99: the answer to an upload was lost, and then the file; the object is the only copy
    refused.store_object()
    refused.damage(harm)
    refused.fail_locally()
    assert not refused.is_set_aside
    assert refused.lab.state(refused.record) is PackState.VERIFIED
    assert not refused.lab.path(refused.record).exists()
    is_kept = (refused.lab.spool.quarantine_folder.path / refused.record.name).exists()
    assert is_kept is (harm == "damaged")


def test_a_pack_without_a_file_is_lost_only_after_two_looks(refused: RefusedLane) -> None:
    refused.damage("gone")
    before = refused.lab.clock.monotonic()
    looks = refused.lab.objects.calls.copy()
    refused.fail_locally()
    assert refused.is_set_aside
    assert refused.lab.state(refused.record) is PackState.LOST
    assert refused.membership.is_lost(SampleId("a"), lane=0, pack_id=refused.record.pack_id)
    assert len(refused.lab.objects.calls) - len(looks) >= 2
    assert refused.lab.clock.monotonic() > before + 60


def test_a_pack_without_a_file_is_not_lost_while_the_bucket_is_silent(refused: RefusedLane) -> None:
    refused.store_object()
    refused.damage("gone")
    refused.lab.objects.add(FaultRule(op="*", fault=Fault.SERVER_ERROR, count=None))
    for _ in range(5):
        refused.fail_locally()
        assert not refused.is_set_aside
        assert refused.lab.state(refused.record) is PackState.SEALED
    refused.lab.objects.heal()
    refused.fail_locally()
    assert refused.lab.state(refused.record) is PackState.VERIFIED
