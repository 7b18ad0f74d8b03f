"""Every local pack against its journal; what is doubtful goes to quarantine when told, and what matches stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from durastore.clock import ManualClock
from durastore.doctor.disk import look_at_disk
from durastore.doctor.hashed import NOTES_FILE
from durastore.doctor.packs import look_at_packs
from durastore.doctor.request import DoctorRequest, Examination
from durastore.doctor.stages import Status, Verdict
from durastore.model import PackState
from durastore.objectstore.location import BucketUrl
from durastore.reconcile.strangers import strangers_in
from durastore.spool.root import SpoolRoot
from tests.unit.spool_lab import RUN, advance, assert_obtainable, sample, spool_at, writer_of


class Lab:
    """A spool root with five packs of eight samples each, four of them sealed and one open, left by a process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.samples = [sample(f"s/{number}", size=2_000) for number in range(40)]
        with spool_at(root) as spool:
            spool.recover()
            writer = writer_of(spool)
            for number, encoded in enumerate(self.samples):
                writer.append([encoded])
                if number % 8 == 7 and number < 39:
                    writer.seal_open()
            writer.close()
            records = spool.journal.packs()
            self.names = [record.name for record in records]
            assert [record.state for record in records] == [PackState.SEALED] * 4 + [PackState.OPEN]

    def path(self, number: int) -> Path:
        return self.root / "w-00" / "packs" / self.names[number]

    def look(self, *, is_applied: bool = False) -> tuple[Verdict, Examination]:
        with ExitStack() as resources:
            bucket = BucketUrl.parse("memory://doctor")
            request = DoctorRequest(local=self.root, bucket=bucket, is_applied=is_applied)
            seen = Examination(request=request, clock=self.clock, resources=resources)
            look_at_disk(seen)
            return look_at_packs(seen), seen

    def hashed(self) -> int:
        verdict, _ = self.look()
        assert verdict.status is Status.OK
        return sum(spool["hashed_now"] for spool in verdict.facts["spools"])

    def local_ids(self) -> set[str]:
        """What the doctor counts as here, and durable."""
        _, seen = self.look()
        return {name for name, _ in seen.only_local.get(RUN.digest.hex, set())}

    def ids(self, *packs: int) -> set[str]:
        return {self.samples[at].sample_id.text for pack in packs for at in range(8 * pack, 8 * pack + 8)}

    def files(self) -> dict[str, bytes]:
        """All bytes below the root but the doctor's own notes."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and path.name not in (NOTES_FILE, "lock") and not path.name.startswith("journal-")
        }


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "spool")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def _zero_tail(path: Path) -> None:
    size = path.stat().st_size
    edge = size // 4096 * 4096 - 4096  # the pages of a file that never reached the disk
    with path.open("r+b") as file:
        file.seek(edge)
        file.write(bytes(size - edge))


def _flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5_000)
        byte = file.read(1)
        file.seek(5_000)
        file.write(bytes([byte[0] ^ 1]))


def test_whole_packs_pass_and_are_what_is_only_here(lab: Lab) -> None:
    verdict, seen = lab.look()
    assert (verdict.status, verdict.lines) == (Status.OK, ())
    assert verdict.facts["spools"][0]["packs"] == 5
    expected = {(each.sample_id.text, each.input_digest.hex) for each in lab.samples if each.input_digest is not None}
    assert seen.only_local == {RUN.digest.hex: expected}


@pytest.mark.parametrize("number", [1, 4], ids=["sealed", "open"])
@pytest.mark.parametrize(
    "harm, word", [(_cut, "truncated"), (_zero_tail, "zero-tailed"), (_flip, "not those that were written")]
)
def test_damage_is_found_in_sealed_and_open_packs_and_nothing_changes(
    lab: Lab, harm: Callable[[Path], None], word: str, number: int
) -> None:
    # case B88
    harm(lab.path(number))
    before = lab.files()
    verdict, _ = lab.look()
    assert (verdict.status, verdict.exit_code) == (Status.FAILED, 12)
    (damaged,) = verdict.facts["spools"][0]["damaged"]
    assert damaged["pack"] == f"w-00/{lab.names[number]}"
    assert word in damaged["reason"]
    assert damaged["is_only_copy"]
    assert lab.files() == before
    assert lab.local_ids() == lab.ids(0, 1, 2, 3, 4) - lab.ids(number)


@pytest.mark.parametrize("number", [1, 4], ids=["sealed", "open"])
@pytest.mark.parametrize("harm", [_cut, _zero_tail, _flip])
def test_told_to_it_saves_what_matches_and_sets_the_file_aside(
    lab: Lab, harm: Callable[[Path], None], number: int
) -> None:
    # case B25
    harm(lab.path(number))
    bad = lab.path(number).read_bytes()
    verdict, _ = lab.look(is_applied=True)
    assert (verdict.status, verdict.exit_code) == (Status.NOTE, 0), verdict.lines
    aside = lab.root / "w-00" / "quarantine" / lab.names[number]
    assert aside.read_bytes() == bad, "moved, and whole as it was"
    left = lab.local_ids()
    assert left >= lab.ids(*({0, 1, 2, 3, 4} - {number}))
    lost = lab.ids(number) - left
    assert 0 < len(lost) < 8, "what still matches of a damaged pack is kept"
    assert any("LOST" in line for line in verdict.lines)
    with spool_at(lab.root) as spool:
        spool.recover()
        assert_obtainable(spool, [each for each in lab.samples if each.sample_id.text not in lost])
    again, _ = lab.look(is_applied=True)
    assert again.exit_code == 0


def test_damage_that_left_no_trace_in_the_numbers_is_found_and_settled_too(lab: Lab) -> None:
    _flip(lab.path(2))
    with spool_at(lab.root) as spool:  # as if inode, size and times were those on record
        (record,) = [each for each in spool.journal.packs() if each.name == lab.names[2]]
        spool.journal.record_identity(record.pack_id, spool.packs_folder.identity(record.name))
        assert spool.recover().set_aside == []
    assert lab.look()[0].status is Status.FAILED
    assert lab.look(is_applied=True)[0].exit_code == 0
    assert (lab.root / "w-00" / "quarantine" / lab.names[2]).exists()


def test_what_the_bucket_may_hold_is_left_to_the_bucket(lab: Lab) -> None:
    with spool_at(lab.root) as spool:
        (record,) = [each for each in spool.journal.packs() if each.name == lab.names[2]]
        advance(spool, record.pack_id, to=PackState.MANIFESTED)
        _flip(lab.path(2))
        spool.journal.record_identity(record.pack_id, spool.packs_folder.identity(record.name))
    before = lab.files()
    verdict, _ = lab.look(is_applied=True)
    assert (verdict.status, verdict.exit_code) == (Status.FAILED, 12)
    assert any("reconcile --deep --apply" in line for line in verdict.lines)
    assert lab.path(2).read_bytes() == before[f"w-00/packs/{lab.names[2]}"]


def test_a_pack_whose_upload_had_begun_is_not_salvaged_before_the_bucket_was_asked(lab: Lab) -> None:
    with spool_at(lab.root) as spool:
        (record,) = [each for each in spool.journal.packs() if each.name == lab.names[2]]
        spool.journal.write_id(record.pack_id)
        _flip(lab.path(2))
        spool.journal.record_identity(record.pack_id, spool.packs_folder.identity(record.name))
    before = lab.files()
    verdict, _ = lab.look(is_applied=True)
    assert verdict.exit_code == 12
    assert lab.path(2).read_bytes() == before[f"w-00/packs/{lab.names[2]}"]


def test_a_pack_that_is_gone_and_was_never_sent_is_told(lab: Lab) -> None:
    lab.path(0).rename(lab.root.parent / "elsewhere")
    verdict, _ = lab.look()
    assert verdict.exit_code == 12
    assert "its file is gone" in verdict.lines[0]


def test_a_damaged_pack_whose_upload_had_begun_is_set_aside_and_the_bucket_is_asked_later(lab: Lab) -> None:
    with spool_at(lab.root) as spool:
        (record,) = [each for each in spool.journal.packs() if each.name == lab.names[2]]
        advance(spool, record.pack_id, to=PackState.UPLOADED)
    _cut(lab.path(2))
    bad = lab.path(2).read_bytes()
    assert lab.look()[0].exit_code == 12
    verdict, seen = lab.look(is_applied=True)
    assert (verdict.status, verdict.exit_code) == (Status.NOTE, 0)
    assert verdict.facts["spools"][0]["asked_of_the_bucket"] == [f"w-00/{lab.names[2]}"]
    assert (lab.root / "w-00" / "quarantine" / lab.names[2]).read_bytes() == bad
    here = {name for name, _ in seen.only_local[RUN.digest.hex]}
    assert here == lab.ids(0, 1, 3, 4), "what only the bucket may have is not counted as here"


def test_a_spool_at_work_is_not_touched_and_nothing_is_to_be_resumed(lab: Lab) -> None:
    with spool_at(lab.root):
        _cut(lab.path(1))
        before = lab.files()
        verdict, _ = lab.look(is_applied=True)
        assert (verdict.status, verdict.exit_code) == (Status.FAILED, 11)
        assert str(os.getpid()) in verdict.lines[0]
        assert lab.files() == before


def test_a_second_look_hashes_nothing_that_has_not_changed(lab: Lab) -> None:
    assert lab.hashed() == 4
    assert lab.hashed() == 0
    data = lab.path(1).read_bytes()
    os.rename(lab.path(1), lab.root.parent / "old")
    lab.path(1).write_bytes(data)  # another inode
    assert lab.hashed() == 1
    lab.clock.reboot()
    assert lab.hashed() == 4, "what was hashed before a reboot may never have reached the disk"
    assert lab.hashed() == 0
    _flip(lab.path(3))
    assert lab.look()[0].status is Status.FAILED


def test_a_note_that_was_cut_off_or_cannot_be_written_costs_a_hash_and_no_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab.hashed() == 4
    notes = lab.root / NOTES_FILE
    os.truncate(notes, notes.stat().st_size - 5)
    assert lab.hashed() == 1
    assert lab.hashed() == 0
    with SpoolRoot.open(lab.root).folder as folder:
        assert strangers_in(folder) == (), "the notes are durastore's own file"
    lab.clock.reboot()

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("durastore.doctor.hashed.os.write", full)
    assert lab.hashed() == 4
    assert lab.hashed() == 4
