"""The rules that turn answers into outcomes and outcomes into levels, over all their inputs."""

from __future__ import annotations

import base64
import itertools

import pytest

from durastore.model import EvidenceLevel
from durastore.objectstore.probe.judge import find_distrust, judge
from durastore.objectstore.probe.lies import LIE_COUNT, lie_about, multipart_etag_md5, true_checksum
from durastore.objectstore.probe.meanings import meaning_of
from durastore.objectstore.probe.port import Answer
from durastore.objectstore.probe.result import ChecksumKind, Outcome, WritePath
from durastore.objectstore.probe.weigh import weigh_condition, weigh_lies

TRUSTED = {
    "put.crc64nvme": Outcome.IGNORED,
    "put.crc32": Outcome.IGNORED,
    "put.sha256": Outcome.IGNORED,
    "put.content-md5": Outcome.IGNORED,
    "complete.crc64nvme": Outcome.IGNORED,
    "get.whole": Outcome.HONOURED,
    "get.range": Outcome.HONOURED,
}
SINGLE = ("put.crc64nvme", "put.returned", "put.content-md5", "put.etag")
MULTIPART = ("part.crc64nvme", "complete.crc64nvme", "complete.returned", "part.content-md5", "complete.etag")
LYING = {Outcome.ECHOED, Outcome.INCONSISTENT, Outcome.WRONG, Outcome.BLOCKING}


def test_every_combination_on_single_writes() -> None:
    for found in itertools.product(Outcome, repeat=4):
        outcomes = TRUSTED | dict(zip(SINGLE, found, strict=True))
        is_clean = not LYING & set(found) and Outcome.UNKNOWN not in (found[0], found[2])
        by_crc = found[:2] == (Outcome.REFUSED, Outcome.RETURNED)
        by_md5 = found[2:] == (Outcome.REFUSED, Outcome.MD5)
        verdict = judge(WritePath.SINGLE, outcomes)
        is_attested = verdict.level is EvidenceLevel.ATTESTED
        assert is_attested is (is_clean and (by_crc or by_md5)), outcomes
        assert is_attested or verdict.level is EvidenceLevel.READ_BACK


@pytest.mark.parametrize("part", Outcome)
def test_every_combination_on_multipart_writes(part: Outcome) -> None:
    some = (Outcome.REFUSED, Outcome.IGNORED, Outcome.ECHOED, Outcome.UNKNOWN, Outcome.UNSUPPORTED)
    told = (Outcome.RETURNED, Outcome.NOT_RETURNED, Outcome.WRONG, Outcome.MD5, Outcome.OPAQUE, Outcome.UNKNOWN)
    for found in itertools.product((part,), some, told, some, told):
        outcomes = TRUSTED | dict(zip(MULTIPART, found, strict=True))
        is_clean = not LYING & set(found) and found[1] is not Outcome.UNKNOWN
        by_crc = found[:3] == (Outcome.REFUSED, Outcome.REFUSED, Outcome.RETURNED)
        by_md5 = found[3:] == (Outcome.REFUSED, Outcome.MD5)
        verdict = judge(WritePath.MULTIPART, outcomes)
        assert (verdict.level is EvidenceLevel.ATTESTED) is (is_clean and (by_crc or by_md5)), outcomes


def test_nothing_known_is_read_back() -> None:
    for path in WritePath:
        assert judge(path, {}).level is EvidenceLevel.READ_BACK
        assert judge(path, {}).checksum is None


@pytest.mark.parametrize("name", sorted(TRUSTED))
def test_each_thing_that_trust_needs_is_needed(name: str) -> None:
    assert find_distrust(TRUSTED) == []
    assert find_distrust({k: v for k, v in TRUSTED.items() if k != name}) != []
    assert find_distrust(TRUSTED | {name: Outcome.UNKNOWN}) != []
    assert find_distrust(TRUSTED | {name: Outcome.WRONG}) != []


OK, NO = Answer(status=200), Answer(status=400, code="BadDigest")


@pytest.mark.parametrize(
    "lies,control,expected",
    [
        ([NO, NO, NO], OK, Outcome.REFUSED),
        ([NO, NO, NO], NO, Outcome.UNSUPPORTED),
        ([NO, NO, NO], Answer(status=501), Outcome.UNSUPPORTED),
        ([NO, NO, NO], Answer(status=503), Outcome.UNKNOWN),
        ([NO, NO, NO], Answer(status=None), Outcome.UNKNOWN),
        ([NO, NO, NO], None, Outcome.UNKNOWN),
        ([OK], OK, Outcome.IGNORED),
        ([OK], None, Outcome.IGNORED),
        ([NO, OK], OK, Outcome.INCONSISTENT),
        ([NO, Answer(status=500)], OK, Outcome.UNKNOWN),
        ([NO, Answer(status=404)], OK, Outcome.UNKNOWN),
        ([Answer(status=403, code="AccessDenied")], OK, Outcome.UNKNOWN),
        ([Answer(status=400, code="RequestTimeout")], OK, Outcome.UNKNOWN),
        ([Answer(status=400, code="ExpiredToken")], OK, Outcome.UNKNOWN),
        ([Answer(status=412)], OK, Outcome.UNKNOWN),
        ([Answer(status=None)], OK, Outcome.UNKNOWN),
        ([Answer(status=501, code="NotImplemented")], None, Outcome.UNSUPPORTED),
        ([], OK, Outcome.UNKNOWN),
    ],
)
def test_lies_are_weighed(lies: list[Answer], control: Answer | None, expected: Outcome) -> None:
    assert weigh_lies(lies, control=control) is expected


@pytest.mark.parametrize(
    "met,unmet,expected",
    [
        (OK, Answer(status=412), Outcome.HONOURED),
        (Answer(status=412), Answer(status=412), Outcome.UNSUPPORTED),
        (Answer(status=501), Answer(status=412), Outcome.UNSUPPORTED),
        (Answer(status=500), Answer(status=412), Outcome.UNKNOWN),
        (OK, OK, Outcome.NOT_ENFORCED),
        (OK, Answer(status=501), Outcome.UNSUPPORTED),
        (OK, Answer(status=400), Outcome.UNKNOWN),
        (OK, Answer(status=None), Outcome.UNKNOWN),
    ],
)
def test_conditions_are_weighed(met: Answer, unmet: Answer, expected: Outcome) -> None:
    assert weigh_condition(met, unmet) is expected


@pytest.mark.parametrize("kind", [k for k in ChecksumKind if k is not ChecksumKind.ETAG_MD5])
def test_lies_are_well_formed_wrong_and_different(kind: ChecksumKind) -> None:
    body = bytes(range(256)) * 3
    lies = [lie_about(kind, body, number=number) for number in range(LIE_COUNT)]
    right = true_checksum(kind, body)
    assert len({*lies, right}) == LIE_COUNT + 1
    assert {len(base64.b64decode(lie, validate=True)) for lie in lies} == {len(base64.b64decode(right))}


def test_known_checksums() -> None:
    body = b"123456789"
    assert base64.b64decode(true_checksum(ChecksumKind.CRC64NVME, body)).hex() == "ae8b14860a799888"
    assert base64.b64decode(true_checksum(ChecksumKind.CRC32, body)).hex() == "cbf43926"
    assert base64.b64decode(true_checksum(ChecksumKind.CONTENT_MD5, body)).hex() == "25f9e794323b453885f5181f1b624d0b"
    assert multipart_etag_md5([b"a", b"b"]).endswith("-2")


def test_every_outcome_of_every_check_means_something() -> None:
    for name in (*TRUSTED, *SINGLE, *MULTIPART, "lifecycle", "absent", "clock", "keys.odd", "list.pages", "trust"):
        for outcome in Outcome:
            assert meaning_of(name, outcome)
