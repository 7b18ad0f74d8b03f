"""What a spool's journal still claims when it is opened: doubt voids it, and only two looks make a loss."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from durastore.errors import ConfigError, PermissionRefused
from durastore.formats.keys import pack_key
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import fetch_view
from durastore.model import Digest, PackKind, PackState, Tombstone, WriterId
from durastore.spool.records import PackFile
from durastore.store import settling
from durastore.store.settling import Settling
from durastore.testing.faulty import Fault, FaultRule
from tests.unit.reclaim_lab import STORE_ID, ReclaimLab, lab, services_of
from tests.unit.spool_lab import PREFIX, content, sample

__all__ = ["lab"]

URL = "memory://lab/data"
OTHER = WriterId("00000000000000bb")


def settle(lab: ReclaimLab, *, url: str = URL, store_id: str = STORE_ID) -> None:
    Settling(services_of(lab), url=url, store_id=store_id).settle(lab.spool)


def test_a_bucket_made_anew_voids_every_proof(lab: ReclaimLab) -> None:
    # case B164
    records = [*lab.manifested("a"), lab.uploaded("b"), lab.verify(lab.uploaded("c"))]
    settle(lab)
    assert lab.state(records[0]) is PackState.MANIFESTED
    settle(lab, store_id="cd" * 16)
    for record in records:
        now = lab.spool.journal.pack(record.pack_id)
        assert (now.state, now.evidence, now.manifested_in) == (PackState.SEALED, None, None)
        assert lab.is_here(record)
    assert lab.spool.journal.get_fact("store_id") == "cd" * 16


def test_a_spool_that_is_still_full_is_not_turned_to_another_bucket(lab: ReclaimLab) -> None:
    (record,) = lab.manifested("a")
    settle(lab)
    with pytest.raises(ConfigError, match="still holds 1 packs"):
        settle(lab, url="memory://other/data", store_id="cd" * 16)
    assert lab.state(record) is PackState.MANIFESTED


def test_a_root_that_was_copied_proves_nothing(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its marker was made anew, as the refusal of a copy says; the one it was copied from may go on."""
    records = [*lab.manifested("a"), lab.uploaded("b"), lab.verify(lab.uploaded("c"))]
    settle(lab)
    settle(lab)
    assert lab.state(records[0]) is PackState.MANIFESTED
    copied = replace(lab.spool.root.identity, root_id="ef" * 16)
    monkeypatch.setattr(lab.spool.root, "identity", copied)
    settle(lab)
    for record in records:
        now = lab.spool.journal.pack(record.pack_id)
        assert (now.state, now.evidence, now.manifested_in) == (PackState.SEALED, None, None)
        assert lab.is_here(record)
    assert lab.spool.journal.get_fact("root_id") == "ef" * 16


def test_a_copy_of_a_root_buries_nothing(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # its file was cut off in the copying; the original, which may yet send it, would list it in vain
    (record,) = lab.manifested("a")
    assert record.key is not None
    settle(lab)
    copied = replace(lab.spool.root.identity, root_id="ef" * 16)
    monkeypatch.setattr(lab.spool.root, "identity", copied)
    lab.path(record).unlink()
    lab.objects.lose(record.key)
    buried: list[Tombstone] = []
    monkeypatch.setattr(settling, "bury", lambda *_, stones: buried.extend(stones))
    for _ in range(2):
        settle(lab)
        assert lab.state(record) is PackState.LOST
        assert buried == []


@pytest.mark.parametrize("state", [PackState.CONFLICT, PackState.LOST])
def test_a_spool_with_a_pack_that_the_bucket_must_still_settle_is_not_turned_to_another(
    lab: ReclaimLab, state: PackState
) -> None:
    (record,) = lab.manifested("a")
    settle(lab)
    assert record.key is not None
    lab.objects.lose(record.key)
    lab.path(record).rename(lab.spool.path / "taken")
    lab.spool.journal.move_back(record.pack_id, state, reason="found within a session")
    with pytest.raises(ConfigError, match="still holds 1 packs"):
        settle(lab, url="memory://other/data", store_id="cd" * 16)
    assert lab.observer.count("manifest.buried") == 0
    settle(lab)
    assert lab.observer.count("manifest.buried") == 1
    settle(lab, url="memory://other/data", store_id="cd" * 16)  # nothing in it is for the first bucket any more


@pytest.mark.parametrize("is_gone", [True, False])
def test_the_earlier_row_of_a_lost_sample_goes_if_its_object_is_gone(
    lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    (record,) = lab.manifested("a")
    assert record.key is not None
    data = bytearray(lab.path(record).read_bytes())
    data[-1] ^= 1
    lab.path(record).write_bytes(data)
    lab.spool.salvage(record.pack_id, reason="damaged")
    if is_gone:
        lab.objects.lose(record.key)
    saved = lab.spool.journal.pack(record.pack_id)
    lab.path(saved).rename(lab.spool.path / "taken")
    buried: list[Tombstone] = []
    monkeypatch.setattr(settling, "bury", lambda *_, stones: buried.extend(stones))
    settle(lab)
    assert lab.state(record) is PackState.LOST
    assert [stone.key for stone in buried] == [saved.key, record.key][: 1 + is_gone]


def test_a_copy_of_the_bucket_with_its_marker_proves_nothing_by_itself(lab: ReclaimLab) -> None:
    records = [*lab.manifested("a"), lab.verify(lab.uploaded("b"))]
    settle(lab)
    assert [lab.state(record) for record in records] == [PackState.MANIFESTED, PackState.VERIFIED]
    settle(lab, url="memory://copied/data")
    for record in records:
        now = lab.spool.journal.pack(record.pack_id)
        assert (now.state, now.evidence, now.manifested_in) == (PackState.UPLOADED, None, None)
        assert lab.is_here(record)


def test_another_endpoint_is_another_place(lab: ReclaimLab, monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = lab.manifested("a")
    for endpoint, state in (("host:a", PackState.MANIFESTED), ("host:a", PackState.MANIFESTED), ("host:b", None)):
        monkeypatch.setattr(type(lab.objects), "failure_domain", endpoint)
        settle(lab)
        assert lab.state(record) is (state or PackState.UPLOADED)


def note_writer(lab: ReclaimLab, *, pack_seq: int) -> None:
    with lab.spool.journal._db.writing() as conn:
        conn.execute("INSERT INTO writers (writer, last_pack_seq) VALUES (?, ?)", (OTHER.hex, pack_seq))


@pytest.mark.parametrize("known", [1, 2])
def test_a_journal_older_than_the_bucket_is_trusted_in_nothing(lab: ReclaimLab, known: int) -> None:
    (record,) = lab.manifested("a")
    note_writer(lab, pack_seq=known)
    key = pack_key(PREFIX, OTHER, seq=2, digest=Digest.of(b"pack"), kind=PackKind.TAR)
    lab.objects.put(key, b"pack", crc64nvme=None, metadata={})
    settle(lab)
    assert lab.state(record) is (PackState.SEALED if known == 1 else PackState.MANIFESTED)
    assert lab.is_here(record)


def test_a_journal_older_than_its_files_is_trusted_in_nothing(lab: ReclaimLab) -> None:
    lab.spool.recover()
    (record,) = lab.manifested("a")
    assert record.manifested_in is not None
    lab.objects.lose(record.manifested_in)  # the lab's own segments are no real ones
    strange = PackFile(writer=OTHER, seq=1, kind=PackKind.SAFETENSORS)
    (lab.spool.packs_folder.path / strange.name).write_bytes(content(sample("b", size=50_000)))
    settle(lab)
    assert lab.state(record) is PackState.SEALED
    assert lab.is_here(record)
    assert [r.sample_count for r in lab.spool.journal.packs(PackState.SEALED) if r.name == strange.name] == [1]
    lab.manifest(lab.verify(lab.send(record)))
    settle(lab)
    assert lab.state(record) is PackState.MANIFESTED, "once is enough"


def test_openings_that_wrote_nothing_cost_no_listing(lab: ReclaimLab) -> None:
    note_writer(lab, pack_seq=0)
    listed = lab.objects.count("list")
    settle(lab)
    assert lab.objects.count("list") == listed


def test_one_look_that_finds_nothing_is_no_loss(lab: ReclaimLab, tmp_path: Path) -> None:
    (record,) = lab.manifested("a")
    lab.path(record).rename(tmp_path / "taken")
    lab.objects.add(FaultRule(op="head", fault=Fault.ABSENT, key_part=str(record.key)))
    settle(lab)
    assert lab.state(record) is PackState.RECLAIMED


def test_a_pack_without_file_whose_segment_is_forgotten_is_listed_again(lab: ReclaimLab, tmp_path: Path) -> None:
    (record,) = lab.manifested("a")
    lab.path(record).rename(tmp_path / "taken")
    assert record.manifested_in is not None
    lab.objects.lose(record.manifested_in)
    settle(lab)
    now = lab.spool.journal.pack(record.pack_id)
    assert (now.state, now.manifested_in) == (PackState.VERIFIED, None)
    assert [entry.sample_id.text for entry in lab.spool.journal.entries(record.pack_id)] == ["a"]


def test_what_two_looks_do_not_find_is_lost_and_leaves_the_view(lab: ReclaimLab, tmp_path: Path) -> None:
    (record,) = lab.manifested("a")
    lab.path(record).rename(tmp_path / "taken")
    assert record.key is not None
    assert record.manifested_in is not None
    lab.objects.lose(record.key)
    looks = lab.objects.count("head")
    settle(lab)
    assert lab.objects.count("head") == looks + 2
    assert lab.state(record) is PackState.LOST
    assert lab.observer.count("manifest.buried") == 1
    lab.objects.lose(record.manifested_in)  # the lab's own segments are no real ones
    kept = fetch_snapshot(lab.objects, PREFIX)
    assert len(kept.segments) == 1
    assert fetch_view(lab.objects, kept).ids() == []
    assert os.listdir(lab.spool.packs_folder.path) == []


def test_a_loss_is_told_before_the_bucket_is_asked_for_anything(
    lab: ReclaimLab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next opening finds it settled, and has nothing to say."""
    (record,) = lab.manifested("a")
    lab.path(record).rename(tmp_path / "taken")
    assert record.key is not None
    lab.objects.lose(record.key)
    lab.objects.add(FaultRule(op="put", fault=Fault.FORBIDDEN, count=None))  # its burial cannot be written
    with pytest.raises(PermissionRefused):
        settle(lab)
    assert lab.state(record) is PackState.LOST
    assert "1 of 1 samples are LOST: a" in caplog.text
