"""The stop switch outlives its session and reaches every store of the root, until a person looked at the endpoint."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durastore.errors import DiskFailed, NotVerified, SpoolUnreadable
from durastore.formats.stop import Place, StopRecord, lift_name, stop_name
from durastore.fsio.folder import Folder
from durastore.model import PackState
from durastore.objectstore.probe.result import ProbeResult
from durastore.spool import stops as stops_module
from durastore.spool.stops import stops_in_force, stops_in_root, throw_stop
from durastore.store.stopping import StopSwitch
from durastore.verify.verifier import Verifier
from tests.unit.reclaim_lab import ReclaimLab, lab, services_of
from tests.unit.verify_lab import policy, probe_result

__all__ = ["lab"]

REASON = "object x holds other bytes"
PLACE = Place(endpoint="http://127.0.0.1:1", bucket="b", prefix="p")


def session(lab: ReclaimLab, *probes: ProbeResult, place: Place | None = PLACE) -> Verifier:
    """A new session at the root: a verifier that knows nothing, and these results about its endpoint on disk."""
    lab.verifier = lab.make_verifier(policy())
    StopSwitch(services_of(lab), spools=[lab.spool]).restore(probes, place=place)
    return lab.verifier


def ids(lab: ReclaimLab) -> tuple[str, ...]:
    return tuple(stop.id for stop in stops_in_root(lab.spool.root.path))


def a_persons(lab: ReclaimLab, *stops: str, **facts: Any) -> ProbeResult:
    """What `durastore probe --local` saves, if it was begun when these stops were in force."""
    return probe_result(taken=lab.clock.stamp().render(), is_by_person=True, answers_stops=stops, **facts)


@pytest.fixture
def stopped(lab: ReclaimLab) -> ReclaimLab:
    """A session found a wrong copy and ended."""
    session(lab).stop_reclaiming(REASON)
    return lab


def test_the_next_session_starts_stopped(lab: ReclaimLab) -> None:
    records = lab.settled("a")
    assert session(lab).distrust is None
    lab.verifier.stop_reclaiming(REASON)
    assert session(lab).distrust == REASON
    with pytest.raises(NotVerified, match="holds other bytes"):
        lab.verifier.open_batch(records)
    assert session(lab, place=None).distrust == REASON
    assert len(ids(lab)) == 1, "a stop that goes on is no new one"


def test_a_persons_probe_that_was_begun_after_it_lifts_it_for_good(stopped: ReclaimLab) -> None:
    probe = a_persons(stopped, *ids(stopped))
    assert session(stopped, probe).distrust is None
    assert ids(stopped) == ()
    assert session(stopped).distrust is None, "also where the probe is not about the key that the next session uses"


def test_also_after_a_reboot_and_whatever_the_clock_says(stopped: ReclaimLab) -> None:
    stopped.clock.reboot()
    stopped.clock.step_wall(-86_400)
    assert session(stopped, a_persons(stopped, *ids(stopped))).distrust is None


def test_a_probe_that_the_store_ran_by_itself_lifts_nothing(stopped: ReclaimLab) -> None:
    stopped.clock.advance(60)
    own = probe_result(taken=stopped.clock.stamp().render())
    assert session(stopped, own).distrust == REASON


def test_a_persons_probe_that_was_begun_before_it_lifts_nothing(stopped: ReclaimLab) -> None:
    # it ended after the stop, by any clock, and knew nothing of it
    stopped.clock.advance(60)
    assert session(stopped, a_persons(stopped)).distrust == REASON
    assert session(stopped, a_persons(stopped, "0" * 16)).distrust == REASON


@pytest.mark.parametrize("other", [{"endpoint": "http://elsewhere"}, {"bucket": "c"}, {"prefix": "p/q"}])
def test_a_probe_of_another_place_lifts_nothing(stopped: ReclaimLab, other: dict[str, str]) -> None:
    probe = a_persons(stopped, *ids(stopped), **other)
    assert session(stopped, probe, place=replace(PLACE, **other)).distrust == REASON


def test_where_only_the_caller_knows_the_place_no_probe_lifts_it(lab: ReclaimLab) -> None:
    session(lab, place=None).stop_reclaiming(REASON)
    assert session(lab, a_persons(lab, *ids(lab))).distrust == REASON


def test_what_recovery_found_is_a_new_stop(stopped: ReclaimLab) -> None:
    probe = a_persons(stopped, *ids(stopped))
    stopped.verifier = stopped.make_verifier(policy())
    stopped.verifier.stop_reclaiming("found by recovery")
    StopSwitch(services_of(stopped), spools=[stopped.spool]).restore([probe], place=PLACE)
    assert session(stopped, probe).distrust == "found by recovery"


def test_a_wrong_copy_found_while_stopped_needs_a_probe_after_it(stopped: ReclaimLab) -> None:
    before = ids(stopped)
    stopped.verifier.stop_reclaiming("another, a moment later")
    assert ids(stopped) == before, "one file a minute is enough"
    stopped.clock.advance(61)
    stopped.verifier.stop_reclaiming("another, while a person's probe is under way")
    assert session(stopped, a_persons(stopped, *before)).distrust == "another, while a person's probe is under way"
    assert session(stopped, a_persons(stopped, *ids(stopped))).distrust is None


def test_a_wrong_copy_found_after_another_session_lifted_the_stop_stops_anew(stopped: ReclaimLab) -> None:
    first = stopped.verifier
    assert session(stopped, a_persons(stopped, *ids(stopped))).distrust is None
    first.stop_reclaiming("and another")
    assert stopped.verifier.heed() == "and another"


# --- other stores at the root -----------------------------------------------------------------------------------------


@pytest.fixture
def other(lab: ReclaimLab) -> StopRecord:
    """What another process at the same root throws, once the test tells it to."""
    return StopRecord(id="5" * 16, thrown=lab.clock.stamp().render(), reason="found by another process", place=PLACE)


def test_a_stop_that_another_store_throws_holds_before_the_next_batch(lab: ReclaimLab, other: StopRecord) -> None:
    records = lab.settled("a", "b")
    session(lab)
    lab.reclaimer._verifier = lab.verifier
    throw_stop(lab.spool.root.folder, other)
    with pytest.raises(NotVerified, match="another process"):
        lab.reclaim(*records)
    assert lab.verifier.distrust == other.reason
    assert lab.unlinked == []
    assert {lab.state(record) for record in records} == {PackState.MANIFESTED}, "no canary failed: nothing is doubted"
    assert ids(lab) == (other.id,), "what was heeded is not thrown again"


def test_a_stop_that_another_store_throws_holds_before_the_next_pack(
    lab: ReclaimLab, other: StopRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = lab.settled("a", "b", "c")
    session(lab)
    lab.reclaimer._verifier = lab.verifier
    plain = lab.spool.journal.record_reclaimed

    def record_reclaimed(pack_id: int) -> None:
        plain(pack_id)
        throw_stop(lab.spool.root.folder, other)

    monkeypatch.setattr(lab.spool.journal, "record_reclaimed", record_reclaimed)
    lab.reclaim(*records)
    assert lab.unlinked == [records[0].name]


def test_where_the_root_cannot_be_read_nothing_goes(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    records = lab.settled("a")
    session(lab)
    lab.reclaimer._verifier = lab.verifier

    def names(folder: Folder) -> list[str]:
        raise OSError(errno.EIO, "input/output error", str(folder.path))

    monkeypatch.setattr(Folder, "names", names)
    with pytest.raises(SpoolUnreadable):
        lab.reclaim(*records)
    assert lab.unlinked == []


# --- what lies in the root --------------------------------------------------------------------------------------------


GARBAGE = {
    "empty": b"",
    "cut": b"{",
    "a list": b"[]",
    "newer": b'{"format":2}',
    "short": b'{"format":1,"id":"x"}',
    "large": b" " * 70_000,
    "another's": StopRecord(id="9" * 16, thrown="", reason="", place=PLACE).render(),
    "a folder": None,
}


def leave(path: Path, data: bytes | None) -> None:
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_a_lift_that_cannot_be_read_lifts_nothing(stopped: ReclaimLab, data: bytes | None) -> None:
    (stop_id,) = ids(stopped)
    leave(stopped.spool.root.path / lift_name(stop_id), data)
    assert session(stopped).distrust == REASON


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_a_stop_that_cannot_be_read_stops_until_it_is_taken_away_by_hand(lab: ReclaimLab, data: bytes | None) -> None:
    path = lab.spool.root.path / stop_name("6" * 16)
    leave(path, data)
    assert ids(lab) == ("6" * 16,)
    assert path.name in str(session(lab, a_persons(lab, "6" * 16)).distrust)
    path.rename(path.with_suffix(".read"))
    assert session(lab).distrust is None


def test_a_lift_of_another_stop_lifts_nothing(stopped: ReclaimLab) -> None:
    (stop_id,) = ids(stopped)
    lifted = f'{{"format":1,"stop":"{"7" * 16}","probe":"{"8" * 16}","lifted":""}}'
    (stopped.spool.root.path / lift_name(stop_id)).write_text(lifted)
    assert ids(stopped) == (stop_id,)


def test_on_a_full_disk_the_journal_keeps_it(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    session(lab)

    def full(*_: Any, **__: Any) -> None:
        raise DiskFailed("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(stops_module, "publish", full)
        lab.verifier.stop_reclaiming(REASON)
        assert ids(lab) == ()
        assert session(lab).distrust == REASON, "while the disk is full"
    assert session(lab).distrust == REASON
    assert len(ids(lab)) == 1, "and other stores learn of it as soon as there is room"
    with monkeypatch.context() as patched:
        patched.setattr(stops_module, "publish", full)
        assert session(lab, a_persons(lab, *ids(lab))).distrust == REASON, "a lift that is not kept is none"


def test_a_fact_in_a_journal_that_cannot_be_read_stops(lab: ReclaimLab) -> None:
    lab.spool.journal.set_fact("reclaim_stopped", "1:2:boot object x")
    assert session(lab).distrust == "1:2:boot object x"
    assert session(lab).distrust == "1:2:boot object x"
    assert len(ids(lab)) == 1


def test_a_record_survives_its_form() -> None:
    for place in (PLACE, None):
        record = StopRecord(id="a" * 16, thrown="1:2:x", reason="é", place=place)
        assert StopRecord.parse(record.render()) == record


def test_stops_are_found_only_under_their_names(tmp_path: Path) -> None:
    for name in ("reclaim-stop-1.json", "reclaim-stop-" + "1" * 16, "x-reclaim-stop-" + "1" * 16 + ".json"):
        (tmp_path / name).write_bytes(b"")
    with Folder.open(tmp_path) as folder:
        assert stops_in_force(folder) == []
