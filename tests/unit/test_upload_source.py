"""Reading a pack for upload: only the sealed bytes pass `finish`, whatever is done to the file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durastore.errors import DurastoreError, IntegrityError, SpoolUnreadable
from durastore.model import Digest, ObjectKey
from durastore.objectstore.crc import crc64nvme_b64
from durastore.upload.job import UploadJob
from durastore.upload.source import PackSource, check_body

DATA = bytes(range(256)) * 40


def _job(path: Path, data: bytes = DATA) -> UploadJob:
    return UploadJob(
        open_source=lambda: os.open(path, os.O_RDONLY),
        key=ObjectKey("p/packs/x"),
        size_bytes=len(data),
        digest=Digest.of(data),
        crc64nvme=crc64nvme_b64(data),
        write_id="w",
        session=None,
        on_session=lambda session: None,
        on_part=lambda part: None,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pack"
    path.write_bytes(DATA)
    return path


def test_chunks_are_the_file_in_order_and_finish_agrees(path: Path) -> None:
    source = PackSource(_job(path))
    chunks = [source.read_next(size) for size in (1, 4095, 0, len(DATA) - 4096)]
    assert b"".join(chunk.body for chunk in chunks) == DATA
    assert [chunk.crc64nvme for chunk in chunks] == [crc64nvme_b64(chunk.body) for chunk in chunks]
    source.finish()
    source.rewind()
    assert source.read_next(len(DATA)).body == DATA
    source.finish()
    source.close()


def test_not_all_read_is_not_the_whole_pack(path: Path) -> None:
    source = PackSource(_job(path))
    source.read_next(len(DATA) - 1)
    with pytest.raises(IntegrityError, match="source changed"):
        source.finish()
    source.close()


def _cut(path: Path) -> None:
    os.truncate(path, len(DATA) - 10)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(len(DATA) - 1)
        file.write(b"\x00")


@pytest.mark.parametrize("change", [_cut, _grow, _flip])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_changed_file_is_refused(path: Path, change: Callable[[Path], None], is_before: bool) -> None:
    source = PackSource(_job(path))

    def read_all() -> None:
        if not is_before:
            source.read_next(100)
        change(path)
        source.read_next(len(DATA) if is_before else len(DATA) - 100)
        source.finish()

    with pytest.raises(IntegrityError, match="source changed") as caught:
        read_all()
    assert caught.value.facts["is_source_changed"] is True
    source.close()
    assert path.exists()


@pytest.mark.parametrize("facts", [{"digest": Digest.of(b"other")}, {"crc64nvme": "AAAAAAAAAAA="}])
def test_digest_and_checksum_each_decide(path: Path, facts: dict[str, Any]) -> None:
    source = PackSource(replace(_job(path), **facts))
    source.read_next(len(DATA))
    with pytest.raises(IntegrityError, match="source changed"):
        source.finish()
    source.close()


@pytest.mark.parametrize(
    "facts", [{"digest": Digest.of(b"other")}, {"crc64nvme": "AAAAAAAAAAA="}, {"size_bytes": 3}, {"body": DATA + b"x"}]
)
def test_bytes_in_memory_are_checked_like_those_of_the_file(path: Path, facts: dict[str, Any]) -> None:
    job = replace(_job(path), body=DATA)
    assert bytes(check_body(job)) == DATA
    with pytest.raises(IntegrityError, match="source changed") as caught:
        check_body(replace(job, **facts))
    assert caught.value.facts["is_source_changed"] is True


def test_a_file_unlinked_while_open_is_still_read_whole(path: Path) -> None:
    source = PackSource(_job(path))
    source.read_next(100)
    os.rename(path, path.with_name("elsewhere"))
    assert source.read_next(len(DATA) - 100).body == DATA[100:]
    source.finish()
    source.close()


def test_a_file_that_is_gone_or_unreadable_is_a_disk_error(tmp_path: Path) -> None:
    for target in (tmp_path / "absent", tmp_path):
        source = PackSource(_job(target))
        with pytest.raises((SpoolUnreadable, IntegrityError)):
            source.read_next(len(DATA))
        source.close()


def test_close_waits_for_a_read_and_later_reads_are_refused(path: Path) -> None:
    opened, go_on = threading.Event(), threading.Event()

    def slow_open() -> int:
        opened.set()
        assert go_on.wait(5)
        return os.open(path, os.O_RDONLY)

    job = _job(path)
    source = PackSource(
        UploadJob(
            open_source=slow_open,
            key=job.key,
            size_bytes=job.size_bytes,
            digest=job.digest,
            crc64nvme=job.crc64nvme,
            write_id="w",
            session=None,
            on_session=job.on_session,
            on_part=job.on_part,
        )
    )
    read: list[memoryview] = []
    reader = threading.Thread(target=lambda: read.append(source.read_next(len(DATA)).body))
    reader.start()
    assert opened.wait(5)
    closer = threading.Thread(target=source.close)
    closer.start()
    go_on.set()
    reader.join(5)
    closer.join(5)
    assert read == [DATA]
    with pytest.raises(DurastoreError, match="after its job had ended"):
        source.read_next(1)
