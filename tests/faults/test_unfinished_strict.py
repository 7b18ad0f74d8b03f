"""Unfinished uploads on a server of its own: ages by its clock, every page, and nothing of anybody else's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool
from durastore.store.opening import open_store
from durastore.testing.strict_s3 import StrictS3
from durastore.testing.strict_s3.rules import Lie, Rule
from tests.faults.trial import wait_until
from tests.unit.spool_lab import record_upload

BEGUN_EARLIER = Rule(lie=Lie.CLOCK_SKEW, op="create_upload", amount=-600)
"""Within what a signature may be off; the age limit below is less."""
AGE_S = 300.0


def test_only_the_own_forgotten_and_old_ones_go(
    tmp_path: Path, strict_s3: StrictS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B31
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)
    bucket, s3 = strict_s3.make_bucket(), strict_s3.client()
    options: dict[str, Any] = {
        "local": tmp_path / "spool",
        "endpoint_url": strict_s3.endpoint_url,
        "addressing_style": "path",
        "is_any_filesystem_allowed": True,
        "reserve_bytes": 1,
        "probe": "never",
    }
    with open_store(f"s3://{bucket}/p", **options) as store:
        store.put("a", {"x": np.arange(8)})
    (key,) = [key for key in strict_s3.keys(bucket) if "/packs/" in key]

    def begin(at: str) -> str:
        return str(s3.create_multipart_upload(Bucket=bucket, Key=at)["UploadId"])

    def left() -> set[str]:
        return {each["UploadId"] for each in s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])}

    with closing(SpoolRoot.open(tmp_path / "spool", is_any_filesystem_allowed=True)) as root:
        sibling = Spool.claim(root, clock=SYSTEM_CLOCK)
        strict_s3.script(BEGUN_EARLIER)
        forgotten = {begin(key), begin(key), begin(key)}
        others = {begin(key.replace(key.split("/")[2], "00000000000000bb")), begin(f"{key}.more"), begin("q/" + key)}
        living = begin(f"p/packs/{sibling.writer}/000000000001-0011223344556677.tar")
        record_upload(sibling, living)
        strict_s3.script()
        young = begin(key)
        assert left() == {*forgotten, *others, living, young}
        strict_s3.script(Rule(lie=Lie.PAGE_SIZE, op="list_uploads", amount=1))
        with open_store(f"s3://{bucket}/p", orphan_age_s=AGE_S, **options):
            strict_s3.script(Rule(lie=Lie.PAGE_SIZE, op="list_uploads", amount=2))
            wait_until(lambda: not _listed(s3, bucket) & forgotten)
        strict_s3.script()
        assert left() == {*others, living, young}
        assert key in strict_s3.keys(bucket)
        sibling.close()


def _listed(s3: Any, bucket: str) -> set[str]:
    pages = s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket)
    return {each["UploadId"] for page in pages for each in page.get("Uploads", [])}
