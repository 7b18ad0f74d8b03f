"""A result as a value, as JSON, and on disk."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from durastore.clock import ManualClock, Stamp
from durastore.errors import FormatUnsupported, IntegrityError, InvalidInput, StoreMissing
from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.fsio.folder import Folder
from durastore.model import EvidenceLevel
from durastore.objectstore.probe.result import ChecksumKind, Outcome, ProbeCheck, ProbeResult, WritePath
from durastore.objectstore.probe.saved import INCONCLUSIVE_AGE_S, MAX_AGE_S, is_fresh, load_probe, save_probe, target_of
from durastore.spool.opened import save_probe_in_root

TARGET = target_of(endpoint="https://objects.example", bucket="b", prefix="p", account="0" * 32)


def result_of(stamp: Stamp | None = None, **facts: Any) -> ProbeResult:
    values: dict[str, Any] = {
        "id": "0123456789abcdef",
        "target": TARGET,
        "taken": (stamp or ManualClock().stamp()).render(),
        "endpoint": "https://objects.example",
        "bucket": "b",
        "prefix": "p",
        "checks": (
            ProbeCheck(name="put.crc64nvme", outcome=Outcome.REFUSED, detail="400", meaning="é"),
            ProbeCheck(name="list.pages", outcome=Outcome.UNKNOWN, detail="403", meaning=""),
        ),
        "level_single": EvidenceLevel.ATTESTED,
        "level_multipart": EvidenceLevel.READ_BACK,
        "checksum_single": ChecksumKind.CRC64NVME,
        "checksum_multipart": None,
        "absent_is_404": True,
        "is_create_only_enforced": False,
        "is_if_match_enforced": None,
        "is_versioned": None,
        "clock_skew_s": -0.25,
        "expiring_rule": None,
        "request_count": 57,
    }
    return ProbeResult(**(values | facts))


def test_json_and_pickle_carry_everything() -> None:
    result = result_of()
    assert ProbeResult.parse(result.render()) == result
    assert ProbeResult.parse(result.render()).render() == result.render()
    assert pickle.loads(pickle.dumps(result)) == result
    assert {f.name for f in fields(ProbeResult)} <= set(json.loads(result.render()))


def test_the_level_is_that_of_the_weaker_path() -> None:
    assert result_of().level is EvidenceLevel.READ_BACK
    both = result_of(level_multipart=EvidenceLevel.ATTESTED, checksum_multipart=ChecksumKind.ETAG_MD5)
    assert both.level is EvidenceLevel.ATTESTED
    assert both.checksum_of(WritePath.MULTIPART) is ChecksumKind.ETAG_MD5


@pytest.mark.parametrize("checksum", [None, *(k for k in ChecksumKind)])
def test_attested_cannot_be_said_without_what_attests(checksum: ChecksumKind | None) -> None:
    if checksum in (ChecksumKind.CRC64NVME, ChecksumKind.ETAG_MD5):
        assert result_of(checksum_single=checksum).level_single is EvidenceLevel.ATTESTED
        return
    with pytest.raises(InvalidInput):
        result_of(checksum_single=checksum)
    facts = json.loads(result_of().render())
    facts["checksum_single"] = None if checksum is None else checksum.value
    with pytest.raises(IntegrityError):
        ProbeResult.parse(json.dumps(facts).encode())


@pytest.mark.parametrize(
    "name,value",
    [
        ("level_single", "LISTED"),
        ("level_single", "NONE"),
        ("level_multipart", 3),
        ("checksum_single", "md5"),
        ("checksum_multipart", 1),
        ("checks", {}),
        ("checks", ["x"]),
        ("checks", [{"name": "a", "outcome": "fine", "detail": "", "meaning": ""}]),
        ("checks", [{"name": "a", "outcome": "refused", "detail": ""}]),
        ("id", "xyz"),
        ("target", "0"),
        ("taken", "yesterday"),
        ("request_count", True),
        ("request_count", -1),
        ("request_count", "57"),
        ("clock_skew_s", "0"),
        ("absent_is_404", 1),
        ("expiring_rule", 0),
        ("is_by_person", 1),
        ("answers_stops", "0123456789abcdef"),
        ("answers_stops", [1]),
        ("answers_stops", ["x"]),
        ("answers_stops", ["0123456789abcdef"]),  # a store by itself answers none
        ("format", "1"),
    ],
)
def test_what_is_odd_is_refused(name: str, value: object) -> None:
    facts = json.loads(result_of().render())
    facts[name] = value
    with pytest.raises(IntegrityError):
        ProbeResult.parse(json.dumps(facts).encode())
    del facts[name]
    if name not in ("checksum_single", "checksum_multipart", "is_by_person", "answers_stops"):
        with pytest.raises(IntegrityError):
            ProbeResult.parse(json.dumps(facts).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"null", b"{}", b" " * (2 << 20)])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        ProbeResult.parse(data)


def test_newer_formats_are_refused_and_unknown_fields_ignored() -> None:
    facts = json.loads(result_of().render())
    assert ProbeResult.parse(json.dumps(facts | {"new": 1}).encode()) == result_of()
    with pytest.raises(FormatUnsupported):
        ProbeResult.parse(json.dumps(facts | {"format": 2}).encode())


def test_a_result_that_does_not_tell_who_asked_is_no_persons() -> None:
    asked = result_of(is_by_person=True, answers_stops=("0123456789abcdef",))
    assert ProbeResult.parse(asked.render()) == asked
    facts = json.loads(result_of().render())
    del facts["is_by_person"], facts["answers_stops"]
    assert ProbeResult.parse(json.dumps(facts).encode()) == result_of()
    assert not result_of().is_by_person
    with pytest.raises(InvalidInput):
        result_of(answers_stops=("0123456789abcdef",))


def test_what_blocks() -> None:
    assert not result_of().is_blocking
    assert result_of(expiring_rule="rule x").is_blocking
    check = ProbeCheck(name="get.whole", outcome=Outcome.BLOCKING, detail="other bytes", meaning="")
    assert result_of(checks=(check,)).blocking == ("get.whole: other bytes",)


def test_the_newest_result_about_the_target_is_loaded(tmp_path: Path) -> None:
    clock = ManualClock()
    other = target_of(endpoint="https://objects.example", bucket="b", prefix="q", account="0" * 32)
    with Folder.open(tmp_path) as folder:
        assert load_probe(folder, target=TARGET) is None
        old = result_of(clock.stamp(), id="1" * 16)
        save_probe(folder, old)
        save_probe(folder, old)
        clock.advance(10)
        new = result_of(clock.stamp(), id="0" * 16)
        save_probe(folder, new)
        clock.advance(10)
        save_probe(folder, result_of(clock.stamp(), id="2" * 16, target=other))
        (tmp_path / "probe-3333333333333333.json").write_bytes(b"{")
        (tmp_path / "probe-4444444444444444.json").mkdir()
        (tmp_path / "other.json").write_bytes(old.render())
        assert load_probe(folder, target=TARGET) == new
        assert sorted(folder.names())[1:4] == [f"probe-{digit * 16}.json" for digit in "012"]
    assert (tmp_path / f"probe-{'0' * 16}.json").stat().st_mode & 0o777 == 0o600


def test_a_result_is_kept_only_in_a_spool_root(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StoreMissing):
            save_probe_in_root(place, result_of())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ROOT_MARKER_NAME).write_bytes(b"{}")
    save_probe_in_root(tmp_path, result_of())
    with Folder.open(tmp_path) as folder:
        assert load_probe(folder, target=TARGET) == result_of()


def test_targets_differ_by_everything_that_matters() -> None:
    parts = {"endpoint": "https://e", "bucket": "b", "prefix": "p", "account": "a"}
    targets = {target_of(**parts)} | {target_of(**(parts | {name: "other"})) for name in parts}
    assert len(targets) == 5
    assert target_of(**parts) == target_of(**(parts | {"endpoint": "https://e/"}))


def test_a_result_is_used_for_a_week_or_for_less_if_asked() -> None:
    clock = ManualClock()
    result = result_of(clock.stamp())
    clock.advance(MAX_AGE_S - 1)
    assert is_fresh(result, now=clock.stamp())
    assert not is_fresh(result, now=clock.stamp(), max_age_s=60)
    clock.advance(2)
    assert not is_fresh(result, now=clock.stamp())


def test_an_age_that_cannot_be_told_is_too_old() -> None:
    clock = ManualClock()
    result = result_of(clock.stamp())
    clock.step_wall(-5)
    assert not is_fresh(result, now=clock.stamp())
    clock.step_wall(10)
    assert is_fresh(result, now=clock.stamp())
    clock.reboot()
    assert not is_fresh(result, now=clock.stamp())


def test_a_result_with_an_open_question_ages_within_the_hour() -> None:
    clock = ManualClock()
    check = ProbeCheck(name="put.crc64nvme", outcome=Outcome.UNKNOWN, detail="503", meaning="")
    result = replace(
        result_of(clock.stamp(), checks=(check,)), level_single=EvidenceLevel.READ_BACK, checksum_single=None
    )
    assert not result.is_conclusive
    clock.advance(INCONCLUSIVE_AGE_S - 1)
    assert is_fresh(result, now=clock.stamp())
    clock.advance(2)
    assert not is_fresh(result, now=clock.stamp())
