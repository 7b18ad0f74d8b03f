"""`durastore get` on the strict server: versions that a delete marker hides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import durastore
from durastore.dataset.restore import RestoreRequest, restore_samples
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.testing.strict_s3 import StrictS3


@pytest.fixture(autouse=True)
def credentials(strict_s3: StrictS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("large_bytes", [1, 1 << 30])
def test_a_version_that_a_delete_marker_hides_is_read_all_the_same(
    strict_s3: StrictS3, tmp_path: Path, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B147: whoever deleted the keys of a versioned bucket has not lost the samples
    monkeypatch.setattr("durastore.dataset.restore._LARGE_BYTES", large_bytes)
    bucket = strict_s3.make_bucket(is_versioned=True)
    url, endpoint = f"s3://{bucket}/p", strict_s3.endpoint_url
    with durastore.open(url, local=tmp_path / "spool", endpoint_url=endpoint, probe="never") as store:
        store.put("a", {"x": np.arange(10)})
        store.put("b", {"x": np.arange(20)})
    packs = [key for key in strict_s3.keys(bucket) if "/packs/" in key]
    for key in packs:
        strict_s3.client().delete_object(Bucket=bucket, Key=key)
    opened = open_object_store(BucketUrl.parse(url), s3=S3Options(endpoint_url=endpoint))
    try:
        report = restore_samples(opened, "p", request=RestoreRequest(out=tmp_path / "out", ids=None))
    finally:
        opened.close()
    assert (report.written, report.failed) == (2, ())
