"""The whole probe against an endpoint in memory: what it concludes, whatever the endpoint does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from durastore.clock import ManualClock
from durastore.errors import (
    BucketMissing,
    ConfigError,
    CredentialsRefused,
    EndpointUnreachable,
    PermissionRefused,
    UnknownAnswer,
)
from durastore.model import EvidenceLevel
from durastore.objectstore.probe import multipart
from durastore.objectstore.probe.interview import REQUEST_LIMIT
from durastore.objectstore.probe.port import Answer, ExpiryRule
from durastore.objectstore.probe.result import ChecksumKind, Outcome, ProbeResult
from durastore.objectstore.probe.run import PROBE_FOLDER, run_probe
from tests.unit.probe_fakes import CRC, DENIED, MD5, REFUSED, FakeEndpoint, Guard, Ways

ATTESTED, READ_BACK = EvidenceLevel.ATTESTED, EvidenceLevel.READ_BACK
LOSSES = (
    Answer(status=None, code="ConnectionClosedError"),
    Answer(status=503, code="SlowDown"),
    Answer(status=400, code="BadDigest"),
    Answer(status=404),
    Answer(status=200),
)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "FIRST_PART_BYTES", 2000)


def probe(
    ways: Ways | None = None, *, meddle: Callable[[int, str], Answer | None] | None = None, seed: int = 0
) -> tuple[ProbeResult, FakeEndpoint]:
    clock = ManualClock()
    endpoint = FakeEndpoint(ways, meddle=meddle, now_s=lambda: clock.now_ns() / 1e9, seed=seed)
    result = run_probe(endpoint, "team/run", clock=clock)
    assert result.request_count == len(endpoint.requests) <= REQUEST_LIMIT < 60
    assert all(key.startswith(f"team/run/{PROBE_FOLDER}/") for _, key in endpoint.requests if key)
    assert ProbeResult.parse(result.render()) == result
    return result, endpoint


def outcome(result: ProbeResult, name: str) -> Outcome:
    check = result.check(name)
    assert check is not None, name
    return check.outcome


def test_it_says_who_asked_and_which_stops_they_had_seen() -> None:
    own, _ = probe()
    assert (own.is_by_person, own.answers_stops) == (False, ())
    endpoint = FakeEndpoint(None, meddle=None, now_s=lambda: 1.0, seed=0)
    asked = run_probe(endpoint, "team/run", clock=ManualClock(), answering=["0123456789abcdef"])
    assert (asked.is_by_person, asked.answers_stops) == (True, ("0123456789abcdef",))


def test_an_honest_endpoint_attests_both_paths() -> None:
    result, endpoint = probe()
    assert (result.level, result.level_single, result.level_multipart) == (ATTESTED, ATTESTED, ATTESTED)
    assert result.checksum_single is result.checksum_multipart is ChecksumKind.CRC64NVME
    assert result.absent_is_404 is result.is_create_only_enforced is result.is_if_match_enforced is True
    assert result.is_versioned is False
    assert result.expiring_rule is None
    assert not result.is_blocking
    assert result.is_conclusive
    assert endpoint.uploads == {}
    assert {c.outcome for c in result.checks} <= {
        Outcome.REFUSED,
        Outcome.RETURNED,
        Outcome.MD5,
        Outcome.HONOURED,
        Outcome.ABSENT,
    }
    for check in result.checks:
        assert check.meaning


GUARDS = (Guard.REFUSE, Guard.IGNORE, Guard.ECHO, Guard.REJECT, Guard.UNKNOWN_HEADER)


@pytest.mark.parametrize("crc,md5", list(itertools.product(GUARDS, GUARDS)), ids=lambda guard: guard.name)
@pytest.mark.parametrize("tells,is_md5", list(itertools.product((True, False), (True, False))))
def test_single_writes_in_every_combination(crc: Guard, md5: Guard, tells: bool, is_md5: bool) -> None:
    result, _ = probe(Ways(put={CRC: crc, MD5: md5}, tells_single=tells, is_etag_md5=is_md5))
    is_echo = Guard.ECHO in (crc, md5)
    by_crc = crc is Guard.REFUSE and tells
    by_md5 = md5 is Guard.REFUSE and is_md5
    expected = ATTESTED if not is_echo and (by_crc or by_md5) else READ_BACK
    assert result.level_single is expected
    # An echo on one path takes the other with it: what such an endpoint tells on HEAD is worth nothing.
    assert result.level_multipart is (READ_BACK if is_echo else ATTESTED)
    if expected is ATTESTED:
        assert result.checksum_single is (ChecksumKind.CRC64NVME if by_crc else ChecksumKind.ETAG_MD5)
    elif crc is not Guard.REFUSE:
        assert result.checksum_single is (ChecksumKind.CONTENT_MD5 if md5 is Guard.REFUSE else None)


@pytest.mark.parametrize("part,whole", list(itertools.product(GUARDS, GUARDS[:4])), ids=lambda guard: guard.name)
@pytest.mark.parametrize("md5,tells", list(itertools.product((Guard.REFUSE, Guard.IGNORE), (True, False))))
def test_multipart_writes_in_every_combination(part: Guard, whole: Guard, md5: Guard, tells: bool) -> None:
    result, endpoint = probe(Ways(part={CRC: part, MD5: md5}, complete=whole, tells_multipart=tells))
    is_reached = part in (Guard.REFUSE, Guard.IGNORE, Guard.ECHO)
    is_echo = whole is Guard.ECHO and is_reached
    by_crc = part is whole is Guard.REFUSE and tells
    is_attested = not is_echo and (by_crc or md5 is Guard.REFUSE)
    assert result.level_multipart is (ATTESTED if is_attested else READ_BACK)
    assert result.level_single is (READ_BACK if is_echo else ATTESTED)
    assert result.level is max(result.level_single, result.level_multipart)
    assert endpoint.uploads == {}


def test_md5_attests_multipart_only_where_the_etag_is_one() -> None:
    opaque, _ = probe(Ways(part={CRC: Guard.IGNORE}, is_multipart_etag_md5=False))
    assert opaque.level_multipart is READ_BACK
    assert opaque.checksum_multipart is ChecksumKind.CONTENT_MD5
    shown, _ = probe(Ways(part={CRC: Guard.IGNORE}))
    assert shown.level_multipart is ATTESTED
    assert shown.checksum_multipart is ChecksumKind.ETAG_MD5


@pytest.mark.parametrize("number", range(2, REQUEST_LIMIT + 1))
def test_one_lost_answer_never_makes_a_lying_endpoint_attest(number: int) -> None:
    liars = (
        Ways(put={CRC: Guard.IGNORE, MD5: Guard.IGNORE}, part={CRC: Guard.IGNORE, MD5: Guard.IGNORE}),
        Ways(put={CRC: Guard.ECHO}, part={CRC: Guard.IGNORE, MD5: Guard.IGNORE}, complete=Guard.ECHO),
        Ways(put={CRC: Guard.REJECT, MD5: Guard.REJECT}, part={CRC: Guard.REJECT, MD5: Guard.REJECT}),
    )
    for ways, loss in itertools.product(liars, LOSSES):
        result, _ = probe(ways, meddle=lambda n, _, loss=loss: loss if n == number else None)  # type: ignore[misc]
        assert result.level_single is result.level_multipart is READ_BACK, (ways, loss)


@pytest.mark.parametrize("number", range(2, REQUEST_LIMIT + 1))
def test_one_lost_answer_of_an_honest_endpoint_costs_at_most_the_level(number: int) -> None:
    for loss in LOSSES:
        result, endpoint = probe(meddle=lambda n, _, loss=loss: loss if n == number else None)  # type: ignore[misc]
        lost = endpoint.requests[number - 1][0] if number <= len(endpoint.requests) else ""
        if result.level is READ_BACK:
            assert any(c.outcome not in (Outcome.REFUSED, Outcome.RETURNED) for c in result.checks), lost
            assert lost not in ("list", "versioning", "lifecycle", "abort_upload", "put_truncated"), lost


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_flaky_endpoint_gets_the_safer_level_and_never_an_error(share: float) -> None:
    import random

    for seed in range(20):
        coin = random.Random(seed)
        result, _ = probe(
            Ways(put={CRC: Guard.IGNORE, MD5: Guard.IGNORE}),
            meddle=lambda n, _, coin=coin: Answer(status=500) if n > 1 and coin.random() < share else None,  # type: ignore[misc]
        )
        assert result.level_single is READ_BACK
        assert result.level is READ_BACK


def test_who_refuses_lies_at_random_is_caught_nearly_always() -> None:
    coins = Ways(
        put={CRC: Guard.COIN, MD5: Guard.COIN},
        part={CRC: Guard.COIN, MD5: Guard.COIN},
        complete=Guard.COIN,
    )
    results = [probe(coins, seed=seed)[0] for seed in range(200)]
    passed = sum(r.level_single is ATTESTED for r in results), sum(r.level_multipart is ATTESTED for r in results)
    assert passed[0] <= 12, passed  # 1 in 32 expected, and the audit is there for the rest
    assert passed[1] <= 12, passed
    assert sum(r.level is ATTESTED for r in results) <= 2
    assert any(c.outcome is Outcome.INCONSISTENT for r in results for c in r.checks)


def test_who_refuses_everything_gets_the_safer_level() -> None:
    result, _ = probe(meddle=lambda n, operation: REFUSED)
    assert result.level_single is result.level_multipart is READ_BACK
    assert result.checksum_single is result.checksum_multipart is None
    assert not any(
        c.outcome in (Outcome.REFUSED, Outcome.HONOURED, Outcome.RETURNED) for c in result.checks if c.name != "clock"
    )


@pytest.mark.parametrize(
    "first,error",
    [
        (Answer(status=None, code="EndpointConnectionError"), EndpointUnreachable),
        (Answer(status=403, code="SignatureDoesNotMatch"), CredentialsRefused),
        (DENIED, PermissionRefused),
        (Answer(status=404, code="NoSuchBucket"), BucketMissing),
        (Answer(status=301, code="PermanentRedirect"), ConfigError),
        (Answer(status=404), UnknownAnswer),
    ],
)
def test_where_nothing_can_be_asked_an_error_says_so(first: Answer, error: type[Exception]) -> None:
    asked: list[int] = []

    def meddle(number: int, _: str) -> Answer:
        asked.append(number)
        return first

    with pytest.raises(error):
        run_probe(FakeEndpoint(meddle=meddle), "p", clock=ManualClock())
    assert asked == [1]


def test_an_endpoint_that_dies_is_not_asked_on() -> None:
    result, endpoint = probe(meddle=lambda n, _: Answer(status=None, code="ReadTimeoutError") if n > 20 else None)
    assert len(endpoint.requests) <= 20 + 3 + 4  # and the uploads are given up
    assert result.level is READ_BACK
    assert not result.is_conclusive


@pytest.mark.parametrize(
    "ways,name,expected",
    [
        (Ways(stores_torn=True), "put.truncated", Outcome.WRONG),
        (Ways(stores_refused=True), "put.crc64nvme", Outcome.INCONSISTENT),
        (Ways(range_answer="whole"), "get.range", Outcome.NOT_ENFORCED),
        (Ways(range_answer="200"), "get.range", Outcome.NOT_ENFORCED),
        (Ways(range_answer="shifted"), "get.range", Outcome.WRONG),
        (Ways(create_only="replace"), "get.range", Outcome.UNKNOWN),
        (Ways(damages=True), "get.whole", Outcome.BLOCKING),
        (Ways(may_head=False), "put.returned", Outcome.UNKNOWN),
        (Ways(put={ChecksumKind.CRC32: Guard.ECHO}), "put.crc32", Outcome.ECHOED),
        (Ways(put={ChecksumKind.SHA256: Guard.ECHO}), "put.sha256", Outcome.ECHOED),
    ],
)
def test_who_is_caught_in_one_thing_attests_nothing(ways: Ways, name: str, expected: Outcome) -> None:
    result, _ = probe(ways)
    assert outcome(result, name) is expected
    assert result.level_single is result.level_multipart is READ_BACK
    assert outcome(result, "trust") is Outcome.WRONG


@pytest.mark.parametrize(
    "ways,name,expected",
    [
        (Ways(create_only="ignore"), "put.create-only", Outcome.NOT_ENFORCED),
        (Ways(create_only="unsupported"), "put.create-only", Outcome.UNSUPPORTED),
        (Ways(create_only="always-412"), "put.create-only", Outcome.UNSUPPORTED),
        (Ways(if_match="ignore"), "get.if-match", Outcome.NOT_ENFORCED),
        (Ways(if_match="unsupported"), "put.if-match", Outcome.UNSUPPORTED),
        (Ways(is_size_checked=False), "complete.size", Outcome.IGNORED),
        (Ways(put={ChecksumKind.CRC32: Guard.IGNORE}), "put.crc32", Outcome.IGNORED),
        (Ways(part={ChecksumKind.SHA256: Guard.REJECT}), "part.sha256", Outcome.UNSUPPORTED),
        (Ways(lists="unordered"), "list.order", Outcome.WRONG),
        (Ways(lists="omit"), "list.pages", Outcome.WRONG),
        (Ways(lists="endless"), "list.pages", Outcome.WRONG),
        (Ways(folds_case=True), "list.pages", Outcome.WRONG),
        (Ways(may_list=False), "list.pages", Outcome.UNKNOWN),
        (Ways(may_list=False), "absent", Outcome.NOT_ENFORCED),
        (Ways(versioning="Enabled"), "versioning", Outcome.PRESENT),
        (Ways(versioning=None), "versioning", Outcome.UNKNOWN),
        (Ways(rules=None), "lifecycle", Outcome.UNKNOWN),
        (Ways(skew_s=300), "clock", Outcome.WRONG),
    ],
)
def test_what_does_not_touch_the_proof_is_told_and_costs_no_level(ways: Ways, name: str, expected: Outcome) -> None:
    result, _ = probe(ways)
    assert outcome(result, name) is expected
    assert result.level_single is result.level_multipart is ATTESTED
    assert not result.is_blocking


def test_facts_for_the_verifier_follow_from_the_checks() -> None:
    facts, _ = probe(Ways(create_only="ignore", if_match="ignore", may_list=False, versioning="Enabled", skew_s=-7200))
    assert facts.is_create_only_enforced is facts.is_if_match_enforced is facts.absent_is_404 is False
    assert facts.is_versioned is True
    assert facts.clock_skew_s == pytest.approx(-7200, abs=2)


def test_an_upload_that_ends_with_its_first_refusal_still_attests() -> None:
    result, endpoint = probe(Ways(ends_upload_on_refusal=True))
    assert result.level_multipart is ATTESTED
    assert outcome(result, "complete.crc64nvme") is Outcome.REFUSED
    assert endpoint.uploads == {}


def _rule(**facts: object) -> ExpiryRule:
    values = {"name": "r", "prefix": "", "is_expiring": True, "is_tagged": False, "what": "Days 1", **facts}
    return ExpiryRule(**values)  # type: ignore[arg-type]  # the defaults above are of the right types


@pytest.mark.parametrize(
    "rule,is_blocking",
    [
        (_rule(), True),
        (_rule(prefix="team/"), True),
        (_rule(prefix="team/run/"), True),
        (_rule(prefix="team/run/packs/"), True),
        (_rule(prefix="team/ru"), True),
        (_rule(prefix="team/run2/"), False),
        (_rule(prefix="other/"), False),
        (_rule(is_tagged=True), False),
        (_rule(is_expiring=False), False),
    ],
)
def test_a_rule_that_expires_the_prefix_blocks(rule: ExpiryRule, is_blocking: bool) -> None:
    result, _ = probe(Ways(rules=(_rule(prefix="elsewhere"), rule)))
    assert result.is_blocking is is_blocking
    assert (result.expiring_rule is not None) is is_blocking


def test_an_announced_expiry_blocks_even_where_rules_cannot_be_read() -> None:
    result, _ = probe(Ways(rules=None, expiration='expiry-date="Fri, 23 Dec 2029 00:00:00 GMT", rule-id="x"'))
    assert result.is_blocking
    assert result.expiring_rule is not None
