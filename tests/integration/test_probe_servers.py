"""The probe against real S3 servers: it tells them apart as they were measured, and nobody tells it their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from durastore.demo.seaweed import SeaweedServer
from durastore.model import EvidenceLevel
from durastore.objectstore.location import BucketUrl, S3Options
from durastore.objectstore.probe.opening import opened_probe_port
from durastore.objectstore.probe.result import ChecksumKind, Outcome, ProbeResult
from durastore.objectstore.probe.run import PROBE_FOLDER, run_probe
from durastore_cli.main import run
from tests.integration.probe_servers import RunningServer, juicefs, moto, rclone

ATTESTED, READ_BACK = EvidenceLevel.ATTESTED, EvidenceLevel.READ_BACK
# What every one of them does as it should.
SOUND = {
    "get.whole": Outcome.HONOURED,
    "put.truncated": Outcome.REFUSED,
    "put.etag": Outcome.MD5,
    "absent": Outcome.HONOURED,
    "keys.odd": Outcome.HONOURED,
    "keys.twins": Outcome.HONOURED,
    "list.pages": Outcome.HONOURED,
    "list.start-after": Outcome.HONOURED,
    "clock": Outcome.HONOURED,
}
SEAWEED = SOUND | {
    "put.crc64nvme": Outcome.REFUSED,
    "put.crc32": Outcome.REFUSED,
    "put.sha256": Outcome.REFUSED,
    "put.returned": Outcome.RETURNED,
    "put.content-md5": Outcome.REFUSED,
    "part.crc64nvme": Outcome.REFUSED,
    "part.crc32": Outcome.REFUSED,
    "part.sha256": Outcome.REFUSED,
    "part.content-md5": Outcome.REFUSED,
    "complete.crc64nvme": Outcome.REFUSED,
    "complete.size": Outcome.IGNORED,
    "complete.returned": Outcome.RETURNED,
    "complete.etag": Outcome.MD5,
    "put.create-only": Outcome.HONOURED,
    "get.if-match": Outcome.HONOURED,
    "get.range": Outcome.HONOURED,
    "trust": Outcome.HONOURED,
}
JUICEFS = SOUND | {
    "put.crc64nvme": Outcome.IGNORED,
    "put.crc32": Outcome.IGNORED,
    "put.sha256": Outcome.IGNORED,
    "put.returned": Outcome.NOT_RETURNED,
    "put.content-md5": Outcome.REFUSED,
    "part.crc64nvme": Outcome.IGNORED,
    "part.content-md5": Outcome.REFUSED,
    "complete.crc64nvme": Outcome.IGNORED,
    "complete.returned": Outcome.NOT_RETURNED,
    "complete.etag": Outcome.MD5,
    "put.create-only": Outcome.NOT_ENFORCED,
    "get.range": Outcome.HONOURED,
    "lifecycle": Outcome.UNKNOWN,
    "trust": Outcome.HONOURED,
}
RCLONE = SOUND | {
    "put.crc64nvme": Outcome.ECHOED,
    "put.crc32": Outcome.ECHOED,
    "put.sha256": Outcome.ECHOED,
    "put.content-md5": Outcome.REFUSED,
    "part.content-md5": Outcome.REFUSED,
    "complete.returned": Outcome.WRONG,
    "complete.etag": Outcome.OPAQUE,
    "put.create-only": Outcome.NOT_ENFORCED,
    "get.if-match": Outcome.NOT_ENFORCED,
    "get.range": Outcome.NOT_ENFORCED,
    "trust": Outcome.WRONG,
}
MOTO = SOUND | {
    "put.crc64nvme": Outcome.IGNORED,
    "put.crc32": Outcome.IGNORED,
    "put.sha256": Outcome.IGNORED,
    "put.content-md5": Outcome.IGNORED,
    "part.crc64nvme": Outcome.IGNORED,
    "part.content-md5": Outcome.IGNORED,
    "complete.crc64nvme": Outcome.IGNORED,
    "complete.returned": Outcome.RETURNED,
    "complete.etag": Outcome.MD5,
    "put.create-only": Outcome.HONOURED,
    "get.range": Outcome.HONOURED,
}


def _probe(bucket: str, endpoint_url: str) -> ProbeResult:
    url = BucketUrl.parse(f"s3://{bucket}/some/prefix")
    with opened_probe_port(url, s3=S3Options(endpoint_url=endpoint_url)) as port:
        result = run_probe(port, url.prefix)
    assert result.request_count < 60
    assert result.is_conclusive
    assert not result.is_blocking
    assert abs(result.clock_skew_s or 0.0) < 5
    assert not [c for c in result.checks if c.name == "uploads"]
    return result


def _outcomes(result: ProbeResult, expected: dict[str, Outcome]) -> dict[str, Outcome]:
    return {c.name: c.outcome for c in result.checks if c.name in expected}


def test_a_server_that_checks_everything(seaweed: SeaweedServer, bucket: str, aws_env: dict[str, str]) -> None:
    result = _probe(bucket, seaweed.endpoint_url)
    assert _outcomes(result, SEAWEED) == SEAWEED
    assert result.level_single is result.level_multipart is ATTESTED
    assert result.checksum_single is result.checksum_multipart is ChecksumKind.CRC64NVME


@pytest.mark.parametrize(
    "start,expected,levels,checksums",
    [
        (juicefs, JUICEFS, (ATTESTED, ATTESTED), (ChecksumKind.ETAG_MD5, ChecksumKind.ETAG_MD5)),
        (rclone, RCLONE, (READ_BACK, READ_BACK), (ChecksumKind.CONTENT_MD5, ChecksumKind.CONTENT_MD5)),
        (lambda _: moto(), MOTO, (READ_BACK, READ_BACK), (None, None)),
    ],
    ids=["juicefs", "rclone", "moto"],
)
def test_servers_that_do_not(
    start: Callable[[Path], AbstractContextManager[RunningServer]],
    expected: dict[str, Outcome],
    levels: tuple[EvidenceLevel, EvidenceLevel],
    checksums: tuple[ChecksumKind | None, ChecksumKind | None],
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # case B162
    with start(tmp_path) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        result = _probe(server.make_bucket(), server.endpoint_url)
    assert _outcomes(result, expected) == expected
    assert (result.level_single, result.level_multipart) == levels
    assert (result.checksum_single, result.checksum_multipart) == checksums


def test_only_keys_of_its_own_are_touched(
    seaweed: SeaweedServer, bucket: str, s3_client: Any, aws_env: dict[str, str]
) -> None:
    s3_client.put_object(Bucket=bucket, Key="some/prefix/durastore.json", Body=b"mine")
    s3_client.put_object(Bucket=bucket, Key="elsewhere", Body=b"mine too")
    _probe(bucket, seaweed.endpoint_url)
    keys = [row["Key"] for row in s3_client.list_objects_v2(Bucket=bucket)["Contents"]]
    foreign = [key for key in keys if not key.startswith(f"some/prefix/{PROBE_FOLDER}/")]
    assert foreign == ["elsewhere", "some/prefix/durastore.json"]
    assert s3_client.get_object(Bucket=bucket, Key="elsewhere")["Body"].read() == b"mine too"
    assert s3_client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []


def test_the_command_tells_each_check_and_no_secret(
    seaweed: SeaweedServer, bucket: str, aws_env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["probe", "--bucket", f"s3://{bucket}/p", "--endpoint-url", seaweed.endpoint_url]
    assert run([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["level"], found["levels"]) == ("ATTESTED", {"single": "ATTESTED", "multipart": "ATTESTED"})
    assert found["requests"] < 60
    assert {c["name"]: c["outcome"] for c in found["checks"]}["put.crc64nvme"] == "refused"
    assert run(arguments) == 0
    table = capsys.readouterr().out
    for check in found["checks"]:
        assert check["meaning"] in table
    assert seaweed.secret_key not in out + err + table


def test_a_mistyped_bucket_is_told_and_not_made(
    seaweed: SeaweedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """This server makes a bucket at the first write to it: a probe would go well there."""
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    assert run(["probe", "--bucket", "s3://mistyped/p", "--endpoint-url", seaweed.endpoint_url]) == 10
    assert "hint: check bucket name" in capsys.readouterr().err
    assert "mistyped" not in [bucket["Name"] for bucket in seaweed.client().list_buckets()["Buckets"]]
