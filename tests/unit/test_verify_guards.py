"""Each guard refuses each fact that is wrong or missing, and only then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from durastore.clock import ManualClock
from durastore.errors import NotVerified
from durastore.model import Digest, EvidenceLevel, ObjectKey, PackState
from durastore.objectstore.port import ObjectStat
from durastore.objectstore.probe.result import ChecksumKind
from durastore.verify.guards import (
    guard_evidence,
    guard_freshness,
    guard_head,
    guard_recorded,
    guard_server_clock,
    guard_settled,
)
from tests.unit.verify_lab import CRC, DATA, DIGEST, KEY, evidence, policy, probe_result, record

POLICY = policy()


def stat(**changes: Any) -> ObjectStat:
    facts: dict[str, Any] = {"key": KEY, "size_bytes": len(DATA), "etag": '"e"', "server_time_s": 1_000.0}
    return ObjectStat(**(facts | changes))


def test_every_guard_lets_a_good_pack_pass() -> None:
    clock = ManualClock()
    good, proof = record(clock), evidence(clock)
    clock.advance(601)
    assert guard_recorded(good) == (good.digest, len(DATA))
    assert guard_evidence(good, proof, policy=POLICY) is proof
    guard_freshness(good, proof, now=clock.stamp(), policy=POLICY)
    guard_settled(good, proof, now=clock.stamp(), policy=POLICY)
    guard_head(good, stat(crc64nvme=CRC), evidence=proof)
    guard_server_clock(good, stat(server_time_s=1_601.0), evidence=proof, now=clock.stamp())


@pytest.mark.parametrize("key", ["p/files/rows/{}-a.pt", "p/files/{}/rows/a.pt"])
def test_a_file_passes_under_either_of_its_keys(key: str) -> None:
    good = record(ManualClock(), name="rows/a.pt", key=ObjectKey(key.format(DIGEST.short)))
    assert guard_recorded(good) == (good.digest, len(DATA))


@pytest.mark.parametrize(
    "changes",
    [
        {"state": PackState.VERIFIED},
        {"state": PackState.UPLOADED},
        {"manifested_in": None},
        {"digest": None},
        {"size_bytes": None},
        {"key": None},
        {"identity": None},
        {"key": ObjectKey("p/packs/00112233445566aa/000000000001-0000000000000000.tar")},
        {"key": ObjectKey(f"p/packs/00112233445566aa/000000000001-{DIGEST.short}.zip")},
        {"key": ObjectKey(f"p/files/rows/{DIGEST.short}-b.pt"), "name": "rows/a.pt"},
        {"key": ObjectKey(f"p/files/rows/{'0' * 16}-a.pt"), "name": "rows/a.pt"},
        {"key": ObjectKey(f"p/files/{'0' * 16}/rows/{DIGEST.short}-a.pt"), "name": "rows/a.pt"},
        {"digest": Digest("0" * 32)},
    ],
)
def test_a_pack_that_was_not_recorded_in_full_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(NotVerified):
        guard_recorded(record(ManualClock(), **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"level": EvidenceLevel.LISTED},
        {"level": EvidenceLevel.ATTESTED},  # below what the policy asks for here
        {"key": ObjectKey("p/other")},
        {"size_bytes": len(DATA) - 1},
        {"digest": Digest("0" * 32)},
        {"digest": None},
    ],
)
def test_evidence_of_less_or_of_another_object_is_refused(changes: dict[str, Any]) -> None:
    # case B52
    clock = ManualClock()
    with pytest.raises(NotVerified):
        guard_evidence(record(clock), evidence(clock, **changes), policy=POLICY)


def test_no_evidence_is_refused() -> None:
    with pytest.raises(NotVerified):
        guard_evidence(record(ManualClock()), None, policy=POLICY)


def test_listed_never_passes_whatever_the_probe_says() -> None:
    clock = ManualClock()
    lax = policy(probe=probe_result(ChecksumKind.CRC64NVME, ChecksumKind.CRC64NVME))
    with pytest.raises(NotVerified):
        guard_evidence(record(clock), evidence(clock, level=EvidenceLevel.LISTED), policy=lax)


def test_attested_passes_only_under_the_probe_that_justified_it_and_on_its_write_path() -> None:
    clock = ManualClock()
    probe = probe_result(ChecksumKind.CRC64NVME)
    attested = evidence(clock, level=EvidenceLevel.ATTESTED, digest=None, probe=probe.id)
    assert guard_evidence(record(clock), attested, policy=policy(probe=probe)) is attested
    refusing = [
        policy(),  # nothing was probed
        policy(probe=probe_result(ChecksumKind.CRC64NVME, id="ff112233445566ff")),  # another probe
        policy(probe=probe_result(None, ChecksumKind.CRC64NVME)),  # only multipart writes are guarded
    ]
    for one in refusing:
        with pytest.raises(NotVerified):
            guard_evidence(record(clock), attested, policy=one)
    for sent in (7, None):  # this pack went in parts, or nobody knows
        with pytest.raises(NotVerified):
            guard_evidence(record(clock, part_bytes=sent), attested, policy=policy(probe=probe))
    with pytest.raises(NotVerified):
        guard_evidence(record(clock), evidence(clock, level=EvidenceLevel.ATTESTED), policy=policy(probe=probe))


def test_evidence_expires_by_age_by_reboot_and_by_a_stepped_clock() -> None:
    clock = ManualClock()
    good, proof = record(clock), evidence(clock)
    clock.advance(1_000)
    guard_freshness(good, proof, now=clock.stamp(), policy=POLICY)
    clock.advance(1)
    with pytest.raises(NotVerified):
        guard_freshness(good, proof, now=clock.stamp(), policy=POLICY)
    back = ManualClock()
    proof = evidence(back)
    back.step_wall(-5)
    with pytest.raises(NotVerified):
        guard_freshness(good, proof, now=back.stamp(), policy=POLICY)
    rebooted = ManualClock()
    proof = evidence(rebooted)
    rebooted.reboot()
    with pytest.raises(NotVerified):
        guard_freshness(good, proof, now=rebooted.stamp(), policy=POLICY)


def test_a_wall_clock_that_jumps_ahead_does_not_hide_age() -> None:
    clock = ManualClock()
    good, proof = record(clock), evidence(clock)
    clock.step_wall(2_000)
    with pytest.raises(NotVerified):
        guard_freshness(good, proof, now=clock.stamp(), policy=POLICY)


def test_the_settle_time_lies_between_upload_and_look() -> None:  # case B62
    clock = ManualClock()
    good, proof = record(clock), evidence(clock)
    clock.advance(599)
    with pytest.raises(NotVerified):
        guard_settled(good, proof, now=clock.stamp(), policy=POLICY)
    clock.advance(1)
    guard_settled(good, proof, now=clock.stamp(), policy=POLICY)


def test_the_settle_time_lies_between_segment_and_look_as_well() -> None:  # case B62
    clock = ManualClock()
    good, proof = record(clock), evidence(clock)
    clock.advance(500)
    late = replace(good, manifested_at=clock.stamp())
    clock.advance(100)
    guard_settled(good, proof, now=clock.stamp(), policy=POLICY)
    for listed in (late, replace(good, manifested_at=None)):
        with pytest.raises(NotVerified):
            guard_settled(listed, proof, now=clock.stamp(), policy=POLICY)
    clock.advance(500)
    guard_settled(late, proof, now=clock.stamp(), policy=POLICY)


def test_a_wall_clock_set_forward_is_no_time_passed() -> None:  # case B62
    clock = ManualClock()
    good, proof = record(clock), evidence(clock)
    clock.step_wall(3_600)
    with pytest.raises(NotVerified):
        guard_settled(good, proof, now=clock.stamp(), policy=POLICY)
    clock.advance(600)
    guard_settled(good, proof, now=clock.stamp(), policy=POLICY)


def test_an_object_written_again_by_others_settles_from_the_look_at_it() -> None:
    clock = ManualClock()
    good = record(clock)
    clock.advance(500)
    theirs = replace(evidence(clock), etag='"another"')
    clock.advance(500)
    with pytest.raises(NotVerified):
        guard_settled(good, theirs, now=clock.stamp(), policy=POLICY)
    clock.advance(100)
    guard_settled(good, theirs, now=clock.stamp(), policy=POLICY)


def test_a_later_look_does_not_begin_the_settle_time_anew() -> None:
    clock = ManualClock()
    good = record(clock)
    clock.advance(500)
    proof = evidence(clock)
    clock.advance(100)
    guard_settled(good, proof, now=clock.stamp(), policy=POLICY)
    with pytest.raises(NotVerified):
        guard_settled(record(clock, uploaded_at=None), proof, now=clock.stamp(), policy=POLICY)


def test_after_a_reboot_the_settle_time_counts_from_the_first_look_in_this_boot() -> None:
    clock = ManualClock()
    good = record(clock)
    clock.advance(5_000)
    clock.reboot()
    proof = evidence(clock)
    with pytest.raises(NotVerified):
        guard_settled(good, proof, now=clock.stamp(), policy=POLICY)
    clock.advance(600)
    guard_settled(good, proof, now=clock.stamp(), policy=POLICY)


@pytest.mark.parametrize(
    "changes",
    [
        {"size_bytes": None},  # case B64: an unknown size is never equal
        {"size_bytes": 0},
        {"size_bytes": len(DATA) + 1},
        {"etag": '"other"'},
        {"etag": ""},
        {"crc64nvme": "BBBBBBBBBBA="},
        {"is_readable": False, "storage_class": "GLACIER"},
    ],
)
def test_a_head_that_shows_another_object_is_refused(changes: dict[str, Any]) -> None:
    clock = ManualClock()
    with pytest.raises(NotVerified):
        guard_head(record(clock), stat(**changes), evidence=evidence(clock))


def test_an_empty_etag_on_both_sides_proves_nothing() -> None:
    clock = ManualClock()
    with pytest.raises(NotVerified):
        guard_head(record(clock), stat(etag=""), evidence=evidence(clock, etag=""))


def test_another_version_is_refused() -> None:
    clock = ManualClock()
    proof = evidence(clock, version_id="v1")
    guard_head(record(clock), stat(version_id="v1"), evidence=proof)
    for version in ("v2", None):
        with pytest.raises(NotVerified):
            guard_head(record(clock), stat(version_id=version), evidence=proof)


def test_a_server_clock_that_drifts_or_falls_silent_is_refused() -> None:
    # case B31
    clock = ManualClock()
    good, proof = record(clock), evidence(clock)
    clock.advance(100)
    for told in (1_039.0, 1_161.0, None):
        with pytest.raises(NotVerified):
            guard_server_clock(good, stat(server_time_s=told), evidence=proof, now=clock.stamp())
    for told in (1_040.0, 1_160.0):
        guard_server_clock(good, stat(server_time_s=told), evidence=proof, now=clock.stamp())
    guard_server_clock(good, stat(server_time_s=None), evidence=evidence(clock, server_time_s=None), now=clock.stamp())
