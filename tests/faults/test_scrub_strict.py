"""A scrub over the wire: servers that acknowledged, and later do not have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import durastore
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from durastore_cli.main import run


@pytest.fixture
def filled(strict_s3: StrictS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)
    bucket = strict_s3.make_bucket()
    where = {"local": tmp_path / "spool", "endpoint_url": strict_s3.endpoint_url, "probe": "never"}
    with durastore.open(f"s3://{bucket}/p", **where) as store:  # type: ignore[arg-type]  # keywords of one kind each
        for number in range(3):
            store.put(f"s{number}", {"x": np.full(3_000, number)})
            store.flush()
    return bucket


def verify(server: StrictS3, bucket: str, *arguments: str) -> int:
    return run(["verify", "--bucket", f"s3://{bucket}/p", "--endpoint-url", server.endpoint_url, *arguments])


def packs(server: StrictS3, bucket: str) -> list[str]:
    return [key for key in server.keys(bucket) if "/packs/" in key]


def test_a_whole_bucket_is_0(strict_s3: StrictS3, filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(strict_s3, filled, "--deep", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["samples"], report["objects_read"], report["findings"]) == (3, 3, [])
    assert verify(strict_s3, filled, "--sample", "1%") == 0
    assert "objects_read: 1" in capsys.readouterr().out
    assert verify(strict_s3, filled) == 0
    assert "only sizes were compared" in capsys.readouterr().out


def test_an_object_that_is_lost_is_12_by_sizes_alone(
    strict_s3: StrictS3, filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = packs(strict_s3, filled)[1]
    strict_s3.lose(filled, lost)
    assert verify(strict_s3, filled, "--json") == 12
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["kind"], finding["key"]) == ("dangling", lost)
    looks = [r for r in strict_s3.requests() if r.key == lost and r.op == "head" and r.bucket == filled]
    assert len({look.connection for look in looks[-2:]}) == 2  # two looks, on connections of their own


@pytest.mark.parametrize(
    "lie, kind", [(Lie.FLIP_BYTE, "divergent"), (Lie.ZERO_BLOCK, "divergent"), (Lie.HOLLOW, "dangling")]
)
def test_rot_and_hollow_objects_are_12_by_reading(
    strict_s3: StrictS3, filled: str, lie: Lie, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # case B05, case B61, case B79: HEAD and LIST say that all is well
    bad = packs(strict_s3, filled)[2]
    strict_s3.damage(filled, bad, lie=lie)
    assert verify(strict_s3, filled) == 0
    capsys.readouterr()
    code = verify(strict_s3, filled, "--deep", "--json")
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    found = [(f["kind"], f["key"]) for f in report["findings"]]
    assert (code, found) == (12, [(kind, bad)])


def test_keys_that_the_listing_leaves_out_are_looked_for(
    strict_s3: StrictS3, filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # case B141; the first two listings look for the bucket and read the manifest
    strict_s3.script(Rule(lie=Lie.LIST_EMPTY, first=3))
    assert verify(strict_s3, filled, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["findings"] == []
    assert report["objects_listing_lacks"] > 0


def test_a_manifest_that_lists_nothing_is_not_all_in_order(
    strict_s3: StrictS3, filled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # case B18
    strict_s3.script(Rule(lie=Lie.LIST_EMPTY))
    assert verify(strict_s3, filled, "--deep") == 13
    assert "lists no segment" in capsys.readouterr().out


def test_an_archived_object_is_13(strict_s3: StrictS3, filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    key = packs(strict_s3, filled)[0]
    strict_s3.client().copy_object(
        Bucket=filled, Key=key, CopySource={"Bucket": filled, "Key": key}, StorageClass="GLACIER"
    )
    assert verify(strict_s3, filled, "--deep", "--json") == 13
    (unverified,) = json.loads(capsys.readouterr().out)["unverified"]
    assert unverified["key"] == key


def test_refused_credentials_are_21(
    strict_s3: StrictS3, filled: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert verify(strict_s3, filled) == 21
    assert capsys.readouterr().out == ""
