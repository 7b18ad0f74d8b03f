"""The status file: whole records or none, on a disk that does what it wants."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from durastore.formats.status import SLOT_BYTES, parse_status, render_slot
from durastore.fsio.folder import Folder
from durastore.fsio.status_file import StatusFile, load_status_bytes
from durastore.observe.status import (
    Amount,
    AtRisk,
    Happening,
    PackAtRisk,
    Room,
    Stage,
    Stall,
    StoreRecord,
    Teller,
    WorkerRecord,
)

TELLER = Teller(pid=7, host="h", boot_id="b", started_ns=1, written_ns=2, written_boottime_ns=3)
RECORD = StoreRecord(
    teller=TELLER,
    spool="w-00",
    stages=(Stage(name="uploaded", done=Amount(samples=3, packs=1, size_bytes=9), waiting=Amount()),),
    room=Room(used_bytes=5, high_bytes=10),
    at_risk=AtRisk(
        total=Amount(samples=2),
        shown=(PackAtRisk(name="p", state="sealed", samples=2, size_bytes=4, since_ns=None),),
    ),
    stall=Stall(stage="uploaded", why="the endpoint does not answer", since_ns=5),
)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.open(tmp_path)


def written(folder: Folder, *records: StoreRecord) -> bytes:
    file = StatusFile(folder, "store.status", slot_bytes=SLOT_BYTES)
    for number, record in enumerate(records):
        assert file.write(render_slot(record, number=number))
    file.close()
    return load_status_bytes(folder, "store.status", slot_bytes=SLOT_BYTES)


def test_the_last_record_comes_back_as_it_was(folder: Folder) -> None:
    data = written(folder, *(replace(RECORD, run=str(n)) for n in range(5)))
    assert parse_status(data, StoreRecord) == replace(RECORD, run="4")
    assert len(data) == 2 * SLOT_BYTES, "all blocks are there from the first write on"


@pytest.mark.parametrize("at", [0, 10, 20, 40, 200])
def test_a_torn_slot_leaves_the_one_before(folder: Folder, at: int) -> None:
    data = bytearray(written(folder, replace(RECORD, run="old"), replace(RECORD, run="new")))
    data[SLOT_BYTES + at] ^= 0xFF
    found = parse_status(bytes(data), StoreRecord)
    assert found is not None
    assert found.run == "old"


@pytest.mark.parametrize("data", [b"", b"\0" * 2 * SLOT_BYTES, b"DSTATUS1" + b"\xff" * 100, b"x" * 70_000])
def test_what_is_no_record_is_none(data: bytes) -> None:
    assert parse_status(data, StoreRecord) is None


def test_a_record_of_another_kind_or_with_odd_values_is_none() -> None:
    data = render_slot(RECORD, number=1)
    assert parse_status(data, WorkerRecord) is None
    odd = replace(RECORD, failure_count="many")  # type: ignore[arg-type]
    assert parse_status(render_slot(odd, number=1), StoreRecord) is None


def test_a_record_that_would_not_fit_gives_up_its_lists_and_keeps_its_numbers() -> None:
    happenings = tuple(Happening(at_ns=n, what="x", text="ü" * 9000) for n in range(12))
    slot = render_slot(replace(RECORD, happenings=happenings[:1] * 12, failures=("f" * 9000,) * 8), number=1)
    assert len(slot) > SLOT_BYTES  # nobody cut the texts: then it is not written, and nothing is torn
    cut = replace(RECORD, happenings=tuple(replace(h, text="ü" * 300) for h in happenings), failures=("ä" * 300,) * 80)
    slot = render_slot(cut, number=1)
    assert len(slot) <= SLOT_BYTES
    found = parse_status(slot, StoreRecord)
    assert found is not None
    assert (found.stages, found.room, len(found.failures)) == (RECORD.stages, RECORD.room, 1)


def test_no_error_of_the_disk_comes_out(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = render_slot(RECORD, number=1)
    file = StatusFile(folder, "store.status", slot_bytes=SLOT_BYTES)
    assert not file.write(slot + b"\0" * SLOT_BYTES)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        assert not file.write(slot)
    assert file.write(slot), "it is tried again"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert not file.write(slot)
    file.close()
    file.close()


def test_a_link_or_folder_in_its_place_is_left_alone(folder: Folder, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    (tmp_path / "store.status").symlink_to(target)
    (tmp_path / "worker.status").mkdir()
    for name in ("store.status", "worker.status"):
        assert not StatusFile(folder, name, slot_bytes=SLOT_BYTES).write(render_slot(RECORD, number=1))
        assert load_status_bytes(folder, name, slot_bytes=SLOT_BYTES) == b""
    assert target.read_bytes() == b"precious"
