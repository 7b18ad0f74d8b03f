"""HTTP answers of S3 endpoints, good and odd, as the probe reads them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from durastore.objectstore.probe.port import Answer, ExpiryRule, ListedPage
from durastore.objectstore.probe.result import ChecksumKind
from durastore.objectstore.probe.s3_answers import (
    Reply,
    parse_completed,
    parse_created,
    parse_lifecycle,
    parse_page,
    parse_plain,
    parse_versioning,
)

SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
GARBAGE = (b"", b"<", b"\xff\xfe", b"<html><body>Welcome</body></html>", b"OK", b"<a>" * 1000)


def reply(body: str | bytes = b"", *, status: int = 200, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, headers=named, body=body.encode() if isinstance(body, str) else body)


def error(code: str) -> str:
    return f"{HEAD}<Error><Code>{code}</Code><Message>m</Message></Error>"


def test_headers_are_read() -> None:
    answer = parse_plain(
        reply(
            b"abc",
            etag='"e"',
            content_length="3",
            date="Sun, 06 Nov 1994 08:49:37 GMT",
            x_amz_version_id="v1",
            x_amz_expiration='expiry-date="x"',
            x_amz_checksum_crc64nvme="AAAAAAAAAAA=",
            x_amz_checksum_type="COMPOSITE",
        )
    )
    assert (answer.etag, answer.size_bytes, answer.version_id, answer.body) == ('"e"', 3, "v1", b"abc")
    assert answer.server_time_s == 784111777.0
    assert answer.expiration == 'expiry-date="x"'
    assert answer.checksums == {ChecksumKind.CRC64NVME: "AAAAAAAAAAA="}
    assert not answer.is_whole_object


@pytest.mark.parametrize(
    "text", ["", "yesterday", "Sun, 99 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 99999999 08:49:37 GMT"]
)
def test_odd_dates_are_none(text: str) -> None:
    assert parse_plain(reply(date=text)).server_time_s is None


@pytest.mark.parametrize("text", ["", "-1", "1e3", "٣", "9" * 30])
def test_odd_lengths_are_unknown(text: str) -> None:
    assert parse_plain(reply(content_length=text)).size_bytes is None


def test_only_a_400_about_what_was_sent_is_a_refusal() -> None:
    refused = parse_plain(reply(error("BadDigest"), status=400))
    assert (refused.code, refused.is_refusal, refused.is_success) == ("BadDigest", True, False)
    assert not parse_plain(reply(error("RequestTimeout"), status=400)).is_refusal
    assert not parse_plain(reply(error("AccessDenied"), status=403)).is_refusal
    assert not parse_plain(reply(error("InternalError"), status=500)).is_refusal
    assert parse_plain(reply(error("a\nb" * 100), status=400)).code == ""
    for body in GARBAGE:
        assert parse_plain(reply(body, status=400)).code == ""


def test_an_upload_id_comes_of_a_good_answer_only() -> None:
    body = f"{HEAD}<InitiateMultipartUploadResult {SPACE}><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
    assert parse_created(reply(body)).upload_id == "u1"
    assert parse_created(reply(body, status=400)).upload_id is None
    for garbage in (*GARBAGE, error("X").encode()):
        assert parse_created(reply(garbage)).upload_id is None


def test_white_space_before_the_document_of_complete_is_passed_over() -> None:
    body = f"<CompleteMultipartUploadResult {SPACE}><ETag>&quot;e-2&quot;</ETag></CompleteMultipartUploadResult>"
    done = parse_completed(reply("  \n  " + HEAD + body))
    assert (done.is_success, done.etag) == (True, '"e-2"')


@pytest.mark.parametrize(
    "body,expected",
    [
        (error("BadDigest"), Answer(status=400, code="BadDigest")),
        ("  \n" + error("InvalidPart"), Answer(status=400, code="InvalidPart")),
        (error("InternalError"), Answer(status=500, code="InternalError")),
        (error("SlowDown"), Answer(status=500, code="SlowDown")),
        (error(""), Answer(status=None, code="OddAnswer")),
        ("<CompleteMultipartUploadResult/>", Answer(status=None, code="OddAnswer")),
        ("", Answer(status=None, code="OddAnswer")),
        ("<html/>", Answer(status=None, code="OddAnswer")),
    ],
)
def test_a_200_to_complete_that_is_no_success(body: str, expected: Answer) -> None:
    answer = parse_completed(reply(body))
    assert (answer.status, answer.code) == (expected.status, expected.code)
    assert not answer.is_success


def test_a_page_is_read_whole_or_not_at_all() -> None:
    body = (
        f"{HEAD}<ListBucketResult {SPACE}><IsTruncated>true</IsTruncated><EncodingType>url</EncodingType>"
        "<NextContinuationToken>t+/=</NextContinuationToken>"
        "<Contents><Key>a%2Bb+c%C3%A9</Key></Contents><Contents><Key>z</Key></Contents></ListBucketResult>"
    )
    assert parse_page(reply(body)).page == ListedPage(keys=("a+b cé", "z"), is_truncated=True, next_token="t+/=")
    plain = "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a+%2B</Key></Contents></ListBucketResult>"
    assert parse_page(reply(plain)).page == ListedPage(keys=("a+%2B",), is_truncated=False, next_token=None)
    for odd in (*GARBAGE, b"<ListBucketResult/>", b"<ListBucketResult><IsTruncated>?</IsTruncated></ListBucketResult>"):
        assert parse_page(reply(odd)).page is None


def test_a_word_about_versioning_comes_of_its_document_only() -> None:
    assert parse_versioning(reply(f"<VersioningConfiguration {SPACE}/>")).versioning == ""
    enabled = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    assert parse_versioning(reply(enabled)).versioning == "Enabled"
    assert parse_versioning(reply(error("AccessDenied"), status=403)).versioning is None
    for odd in (*GARBAGE, error("X").encode()):
        assert parse_versioning(reply(odd)).versioning is None


def _rules(*rules: str) -> tuple[ExpiryRule, ...] | None:
    body = f"{HEAD}<LifecycleConfiguration {SPACE}>{''.join(rules)}</LifecycleConfiguration>"
    return parse_lifecycle(reply(body)).rules


def _rule(*parts: str, status: str = "Enabled") -> str:
    return f"<Rule><Status>{status}</Status>{''.join(parts)}</Rule>"


THREE_DAYS = "<Expiration><Days>3</Days></Expiration>"


def test_lifecycle_rules() -> None:
    parts = ("<ID>a</ID>", "<Filter><Prefix>x/</Prefix></Filter>", THREE_DAYS)
    expected = ExpiryRule(name="a", prefix="x/", is_expiring=True, is_tagged=False, what="Days 3")
    assert _rules(_rule(*parts)) == (expected,)
    assert _rules(_rule(*parts, status="Disabled")) == ()
    assert _rules(_rule(*parts, status="odd")) == (expected,)
    old_form = _rule("<Prefix></Prefix>", "<Expiration><Date>2030</Date></Expiration>")
    assert _rules(old_form) == (replace(expected, name="unnamed", prefix="", what="Date 2030"),)
    both = "<Filter><And><Prefix>y</Prefix><Tag><Key>k</Key></Tag></And></Filter>"
    assert _rules(_rule(both, THREE_DAYS)) == (replace(expected, name="unnamed", prefix="y", is_tagged=True),)


def test_rules_that_take_no_current_object_away() -> None:
    found = _rules(
        _rule("<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>"),
        _rule("<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>"),
        _rule("<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>"),
        _rule("<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation>").replace(
            "</Rule>", "</AbortIncompleteMultipartUpload></Rule>"
        ),
    )
    assert found is not None
    assert [(rule.is_expiring, rule.what) for rule in found] == [
        (False, "ExpiredObjectDeleteMarker true"),
        (False, "Days 1, StorageClass GLACIER"),
    ]


def test_lifecycle_that_cannot_be_read_is_not_an_empty_one() -> None:
    assert parse_lifecycle(reply(error("NoSuchLifecycleConfiguration"), status=404)).rules == ()
    assert parse_lifecycle(reply(error("AccessDenied"), status=403)).rules is None
    assert parse_lifecycle(reply(error("NoSuchKey"), status=404)).rules is None
    assert parse_lifecycle(reply(b"", status=404)).rules is None
    for odd in (
        *GARBAGE,
        error("X").encode(),
        b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
    ):
        assert parse_lifecycle(reply(odd)).rules is None
