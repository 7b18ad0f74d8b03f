"""The record of a multipart upload: nothing odd is taken for one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from durastore.errors import IntegrityError
from durastore.formats.upload_session import PartRecord, UploadSession

PART = PartRecord(number=1, etag='"e"', size_bytes=5, crc64nvme="AAAAAAAAAAA=")
SESSION = UploadSession(upload_id="u", part_bytes=5, parts=(PART, replace(PART, number=2)))


@pytest.mark.parametrize("change", [{"number": 0}, {"number": 10_001}, {"etag": ""}, {"size_bytes": -1}])
def test_an_odd_part_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        replace(PART, **change)


@pytest.mark.parametrize(
    "change",
    [{"upload_id": ""}, {"part_bytes": 0}, {"parts": (replace(PART, number=2), PART)}, {"parts": (PART, PART)}],
    ids=["id", "size", "order", "twice"],
)
def test_an_odd_session_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        replace(SESSION, **change)
