"""The probe over the wire, against a strict server that lies as it is told, in a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from durastore.errors import BucketMissing, CredentialsRefused, EndpointUnreachable, PermissionRefused
from durastore.model import EvidenceLevel
from durastore.objectstore.location import BucketUrl, S3Options
from durastore.objectstore.probe import multipart
from durastore.objectstore.probe.opening import opened_probe_port
from durastore.objectstore.probe.result import ChecksumKind, Outcome, ProbeResult
from durastore.objectstore.probe.run import PROBE_FOLDER, run_probe
from durastore.testing.strict_s3 import PROFILES, Lie, Rule, StrictS3
from durastore_cli.main import run

ATTESTED, READ_BACK = EvidenceLevel.ATTESTED, EvidenceLevel.READ_BACK
OWNER = "111122223333"


@pytest.fixture(scope="module")
def strict() -> Iterator[StrictS3]:
    with StrictS3() as server:
        yield server


@pytest.fixture(autouse=True)
def _credentials(strict: StrictS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in strict.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def _small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.function is not test_an_honest_server:
        monkeypatch.setattr(multipart, "FIRST_PART_BYTES", 20_000)


def probe(strict: StrictS3, *rules: Rule, bucket: str | None = None) -> ProbeResult:
    bucket = bucket or strict.make_bucket()
    takes_small = () if multipart.FIRST_PART_BYTES == 5 << 20 else (Rule(lie=Lie.SMALL_PARTS),)
    strict.script(*rules, *takes_small)
    before = sum(strict.counts().values())
    try:
        url = BucketUrl.parse(f"s3://{bucket}/run")
        options = S3Options(endpoint_url=strict.endpoint_url, connect_timeout_s=2, read_timeout_s=2)
        with opened_probe_port(url, s3=options) as port:
            result = run_probe(port, url.prefix)
        asked = sum(strict.counts().values()) - before
        assert result.request_count < 60
        assert asked <= result.request_count
        assert all(key.startswith(f"run/{PROBE_FOLDER}/") for key in strict.keys(bucket))
        return result
    finally:
        strict.script()


def outcome(result: ProbeResult, name: str) -> Outcome:
    check = result.check(name)
    assert check is not None, name
    return check.outcome


def test_an_honest_server(strict: StrictS3) -> None:
    before = strict.counts()
    result = probe(strict)
    asked = {op: n - before.get(op, 0) for op, n in strict.counts().items()}
    assert result.request_count == sum(asked.values())
    assert result.level_single is result.level_multipart is ATTESTED
    assert result.checksum_single is result.checksum_multipart is ChecksumKind.CRC64NVME
    assert outcome(result, "complete.size") is Outcome.REFUSED
    unclear = [c for c in result.checks if c.outcome in (Outcome.UNKNOWN, Outcome.WRONG, Outcome.UNSUPPORTED)]
    assert unclear == []


@pytest.mark.parametrize(
    "profile,level,checksum",
    [
        ("md5-only", ATTESTED, ChecksumKind.ETAG_MD5),
        ("echo", READ_BACK, ChecksumKind.CONTENT_MD5),
        ("checks-nothing", READ_BACK, None),
    ],
)
def test_servers_as_they_are(
    strict: StrictS3, profile: str, level: EvidenceLevel, checksum: ChecksumKind | None
) -> None:
    result = probe(strict, *PROFILES[profile])
    assert (result.level_single, result.level_multipart) == (level, level)
    assert (result.checksum_single, result.checksum_multipart) == (checksum, checksum)


@pytest.mark.parametrize(
    "rules",
    [
        (Rule(lie=Lie.REJECT_CHECKSUM_HEADERS), Rule(lie=Lie.IGNORE_MD5)),
        (Rule(lie=Lie.ECHO_CHECKSUM, op="put"),),
        (Rule(lie=Lie.ECHO_CHECKSUM, op="complete_upload"),),
        (Rule(lie=Lie.ACCEPT_SHORT_BODY, op="put"),),
        (Rule(lie=Lie.IGNORE_RANGE),),
        (Rule(lie=Lie.WRONG_RANGE),),
        (Rule(lie=Lie.WRONG_CHECKSUM, op="head"),),
        (Rule(lie=Lie.FORBIDDEN_HEAD),),
        (Rule(lie=Lie.FLIP_BYTE, op="put"),),
        (Rule(lie=Lie.STORE_SHORT, op="put"),),
        (Rule(lie=Lie.LOSE, op="put"),),
        (Rule(lie=Lie.HIDE_CHECKSUM), Rule(lie=Lie.ETAG_NOT_MD5)),
        (Rule(lie=Lie.HEAD_WITHOUT_LENGTH),),
        (Rule(lie=Lie.ERROR, first=2),),
        (Rule(lie=Lie.SLOW_DOWN, first=2),),
        (Rule(lie=Lie.DROP_RESPONSE, first=2),),
        (Rule(lie=Lie.FORBIDDEN, op="get"),),
    ],
    ids=lambda rules: "+".join(f"{rule.lie.label}{'-' + rule.op if rule.op else ''}" for rule in rules),
)
def test_lies_that_nothing_can_be_attested_through(strict: StrictS3, rules: tuple[Rule, ...]) -> None:
    result = probe(strict, *rules)
    assert result.level_single is result.level_multipart is READ_BACK


def test_lies_on_one_path_leave_the_other(strict: StrictS3) -> None:
    loose_parts = (Rule(lie=Lie.IGNORE_CHECKSUM, op="upload_part"), Rule(lie=Lie.IGNORE_MD5, op="upload_part"))
    result = probe(strict, *loose_parts)
    assert (result.level_single, result.level_multipart) == (ATTESTED, READ_BACK)
    assert result.level is READ_BACK
    loose_puts = (Rule(lie=Lie.IGNORE_CHECKSUM, op="put"), Rule(lie=Lie.IGNORE_MD5, op="put"))
    result = probe(strict, *loose_puts)
    assert (result.level_single, result.level_multipart) == (READ_BACK, ATTESTED)
    assert result.level is READ_BACK


def test_checksum_headers_refused_altogether_leave_md5(strict: StrictS3) -> None:
    # case B160
    result = probe(strict, Rule(lie=Lie.REJECT_CHECKSUM_HEADERS))
    assert outcome(result, "put.crc64nvme") in (Outcome.UNSUPPORTED, Outcome.UNKNOWN)
    assert result.checksum_single is not ChecksumKind.CRC64NVME


@pytest.mark.parametrize(
    "rule,name,expected",
    [
        (Rule(lie=Lie.IGNORE_CONDITIONS, op="put"), "put.create-only", Outcome.NOT_ENFORCED),
        (Rule(lie=Lie.REFUSE_CONDITIONS, op="put"), "put.create-only", Outcome.UNSUPPORTED),
        (Rule(lie=Lie.IGNORE_CONDITIONS, op="get"), "get.if-match", Outcome.NOT_ENFORCED),
        (Rule(lie=Lie.IGNORE_SIZE), "complete.size", Outcome.IGNORED),
        (Rule(lie=Lie.NFC_KEYS), "keys.twins", Outcome.WRONG),
        (Rule(lie=Lie.LIST_OMITS), "list.pages", Outcome.WRONG),
        (Rule(lie=Lie.LIST_UNORDERED), "list.order", Outcome.WRONG),
        (Rule(lie=Lie.LIST_NO_TOKEN), "list.pages", Outcome.WRONG),
        (Rule(lie=Lie.FORBIDDEN, op="list"), "list.pages", Outcome.UNKNOWN),
        (Rule(lie=Lie.FORBIDDEN, op="get_lifecycle"), "lifecycle", Outcome.UNKNOWN),
        (Rule(lie=Lie.NO_DATE), "clock", Outcome.UNKNOWN),
    ],
    ids=lambda value: value.lie.label + "-" + value.op if isinstance(value, Rule) else None,
)
def test_lies_that_proofs_do_not_rest_on(strict: StrictS3, rule: Rule, name: str, expected: Outcome) -> None:
    # case B161
    result = probe(strict, rule)
    assert outcome(result, name) is expected
    assert result.level_single is result.level_multipart is ATTESTED


def test_a_lifecycle_rule_blocks(strict: StrictS3) -> None:
    result = probe(strict, Rule(lie=Lie.LIFECYCLE_RULE))
    assert result.is_blocking
    assert result.expiring_rule


def test_a_versioned_bucket(strict: StrictS3) -> None:
    result = probe(strict, bucket=strict.make_bucket(is_versioned=True))
    assert result.is_versioned is True
    assert result.level is ATTESTED


def test_no_secret_is_logged_or_shown(
    strict: StrictS3, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG, logger="durastore"):
        result = probe(strict)
    shown = caplog.text + result.render().decode() + "".join(capfd.readouterr())
    assert strict.secret_key not in shown
    assert strict.access_key not in shown


def test_where_nothing_can_be_asked(strict: StrictS3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BucketMissing):
        probe(strict, bucket="no-such-bucket")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(CredentialsRefused):
        probe(strict)
    with (
        opened_probe_port(BucketUrl.parse("s3://bucket"), s3=S3Options(endpoint_url="http://127.0.0.1:9")) as port,
        pytest.raises(EndpointUnreachable),
    ):
        run_probe(port, "")


def test_a_probe_sends_no_byte_to_a_bucket_of_another_account(
    strict: StrictS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B170
    bucket = strict.make_bucket(owner=OWNER)
    url = BucketUrl.parse(f"s3://{bucket}/run")
    command = ["probe", "--bucket", url.render(), "--endpoint-url", strict.endpoint_url]
    strict.script(Rule(lie=Lie.SMALL_PARTS))
    monkeypatch.setenv("DURASTORE_BUCKET_OWNER", "999988887777")
    assert run(command) == PermissionRefused.exit_code
    assert strict.keys(bucket) == []
    monkeypatch.setenv("DURASTORE_BUCKET_OWNER", OWNER)
    assert run(command) == 0
    assert strict.keys(bucket)
    strict.script()


def test_the_result_is_about_who_wrote_and_where(strict: StrictS3, monkeypatch: pytest.MonkeyPatch) -> None:
    def account(**options: str) -> str:
        settings = S3Options(endpoint_url=strict.endpoint_url, **options)  # type: ignore[arg-type]  # texts only
        with opened_probe_port(BucketUrl.parse("s3://bucket"), s3=settings) as port:
            return port.account

    first = account()
    assert strict.access_key not in first
    assert account() == first
    assert account(sse="aws:kms") != first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ANOTHER")
    assert account() != first
