"""What an object under our key is to us, judged by what the endpoint says of it."""

from __future__ import annotations

import pytest

from durastore.model import Digest, ObjectKey
from durastore.objectstore.port import ObjectStat
from durastore.upload.job import UploadJob
from durastore.upload.settle import Holding, judge

JOB = UploadJob(
    open_source=lambda: -1,
    key=ObjectKey("p/packs/x"),
    size_bytes=10,
    digest=Digest("0" * 32),
    crc64nvme="AAAAAAAAAAA=",
    write_id="w1",
    session=None,
    on_session=lambda session: None,
    on_part=lambda part: None,
)
OURS = ("durastore-write-id", "w1")
THEIRS = ("durastore-write-id", "w2")


@pytest.mark.parametrize(
    "size_bytes, metadata, crc, holding",
    [
        (10, (OURS,), None, Holding.OURS),
        (None, (OURS,), None, Holding.OURS),  # a HEAD without a length
        (10, (OURS,), "otherother=", Holding.OURS),  # some endpoints tell a wrong checksum; the verifier looks closer
        (9, (OURS,), "AAAAAAAAAAA=", Holding.DAMAGED),  # our write id, but not our bytes
        (11, (), None, Holding.FOREIGN),
        (10, (THEIRS,), "AAAAAAAAAAA=", Holding.SAME_CONTENT),
        (10, (THEIRS,), "otherother=", Holding.FOREIGN),
        (10, (THEIRS, ("durastore-digest", "0" * 32)), None, Holding.SAME_CONTENT),
        (10, (THEIRS, ("durastore-digest", "1" * 32)), None, Holding.FOREIGN),
        (10, (("Durastore-Digest", "1" * 32),), None, Holding.FOREIGN),
        (10, (), None, Holding.SAME_CONTENT),
    ],
)
def test_what_lies_under_a_key_is_told_by_write_id_digest_and_size(
    size_bytes: int | None, metadata: tuple[tuple[str, str], ...], crc: str | None, holding: Holding
) -> None:
    stat = ObjectStat(key=JOB.key, size_bytes=size_bytes, etag='"e"', metadata=metadata, crc64nvme=crc)
    assert judge(stat, JOB) is holding


def test_the_job_stamps_what_settles_it_later() -> None:
    assert JOB.metadata() == {"durastore-write-id": "w1", "durastore-digest": "0" * 32}
