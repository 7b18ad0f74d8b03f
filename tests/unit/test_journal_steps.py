"""The journal's steps: each only from the state it belongs to, doubt only back, and nothing kept that is reclaimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import DurastoreError
from durastore.formats.upload_session import PartRecord, UploadSession
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity
from durastore.model import (
    Digest,
    EvidenceLevel,
    ObjectKey,
    PackKind,
    PackState,
    Run,
    SampleEntry,
    SampleId,
    Tombstone,
    WriterId,
)
from durastore.spool.journal import Journal, PackRecord, SealFacts
from durastore.spool.records import PackFile, Replacement, is_step_back
from tests.unit.spool_lab import Answer, evidence_of

WRITER = WriterId("00000000000000aa")
SEGMENT = ObjectKey("p/manifest/00000000000000aa/000000000001-0123456789abcdef.parquet")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Folder.open(tmp_path) as folder, folder.ensure_child("quarantine") as quarantine:
        opened = Journal(folder, quarantine, writer=WRITER)
        yield opened
        opened.close()


def entry(name: str, offset: int = 512, **changes: object) -> SampleEntry:
    base = SampleEntry(
        sample_id=SampleId(name),
        offset=offset,
        length=100,
        header_length=40,
        header_digest=Digest.of(name.encode()),
        schema='[["x","U8",[4],"raw"]]',
        meta="{}",
        run=Digest.of(b"run"),
        input_digest=None,
        provenance="computed",
        time_ns=17,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # the test names fields of the entry


def facts(seq: int = 1, *, size_bytes: int = 1_000) -> SealFacts:
    digest = Digest.of(f"pack {seq}".encode())
    return SealFacts(
        size_bytes=size_bytes,
        digest=digest,
        crc64nvme="AAAAAAAAAAA=",
        key=ObjectKey(f"p/packs/{WRITER}/{seq:012d}-{digest.short}.tar"),
        identity=FileIdentity(dev=1, inode=1 << 63, size_bytes=size_bytes, mtime_ns=3, ctime_ns=4),
    )


def file_of(seq: int = 1) -> PackFile:
    return PackFile(writer=WRITER, seq=seq, kind=PackKind.TAR)


def sealed(journal: Journal, seq: int = 1, *names: str) -> PackRecord:
    entries = [entry(name, 512 * (i + 1)) for i, name in enumerate(names or (f"s{seq}",))]
    return journal.add_sealed_pack(file_of(seq), facts=facts(seq), entries=entries)


def manifested(journal: Journal, seq: int = 1) -> PackRecord:
    record = sealed(journal, seq)
    journal.record_uploaded(record.pack_id, reply=Answer(), at=SYSTEM_CLOCK.stamp())
    journal.record_verified(record.pack_id, evidence_of(record))
    journal.record_manifested([record.pack_id], SEGMENT, at=SYSTEM_CLOCK.stamp())
    return journal.pack(record.pack_id)


def test_a_pack_goes_through_its_life_and_leaves(journal: Journal) -> None:
    opened = journal.add_open_pack(file_of())
    assert (opened.state, opened.size_bytes, opened.name) == (PackState.OPEN, 0, f"{WRITER}-000000000001.tar")
    rows = [entry("a", input_digest=Digest.of(b"in")), entry("b", 1_024)]
    journal.append_samples(opened.pack_id, rows[:1], size_bytes=700)
    journal.append_samples(opened.pack_id, rows[1:], size_bytes=1_000)
    assert journal.entries(opened.pack_id) == rows
    record = journal.seal(opened.pack_id, facts())
    assert (record.state, record.sample_count, record.identity) == (PackState.SEALED, 2, facts().identity)
    assert record.size_bytes == journal.used_bytes() == 1_000
    write_id = journal.write_id(record.pack_id)
    assert journal.write_id(record.pack_id) == write_id
    stamp = SYSTEM_CLOCK.stamp()
    journal.record_uploaded(record.pack_id, reply=Answer(), at=stamp)
    evidence = evidence_of(record)
    journal.record_verified(record.pack_id, evidence)
    journal.record_segment_started(1, [record.pack_id])
    journal.record_manifested([record.pack_id], SEGMENT, at=stamp)
    done = journal.pack(record.pack_id)
    assert (done.state, done.evidence) == (PackState.MANIFESTED, evidence)
    assert (done.manifested_in, done.manifested_at) == (SEGMENT, stamp)
    assert (done.etag, done.uploaded_at, done.uploaded_server_time_s) == (Answer.etag, stamp, Answer.server_time_s)
    assert (record.part_bytes, done.part_bytes) == (None, Answer.part_bytes)
    journal.record_intent(record.pack_id, "receipt")
    assert [(r.pack_id, text) for r, text in journal.intents()] == [(record.pack_id, "receipt")]
    journal.record_reclaimed(record.pack_id)
    gone = journal.pack(record.pack_id)
    assert (gone.state, gone.evidence, gone.intent) == (PackState.RECLAIMED, evidence, None)
    assert journal.entries(record.pack_id) == []
    assert journal.find_sample(SampleId("a")) == []
    assert journal.used_bytes() == 0
    assert journal.drop_reclaimed() == 1
    assert journal.packs() == []
    assert sealed(journal, 2).pack_id > record.pack_id, "a pack id was given out twice"


def test_every_step_refuses_every_state_it_does_not_belong_to(journal: Journal) -> None:
    pack_id = sealed(journal).pack_id
    refused: list[Callable[[], object]] = [
        lambda: journal.append_samples(pack_id, [entry("late", 9_000)], size_bytes=9_999),
        lambda: journal.seal(pack_id, facts()),
        lambda: journal.record_verified(pack_id, evidence_of(journal.pack(pack_id))),
        lambda: journal.record_manifested([pack_id], SEGMENT, at=SYSTEM_CLOCK.stamp()),
        lambda: journal.record_intent(pack_id, "receipt"),
        lambda: journal.record_reclaimed(pack_id),
        lambda: journal.record_segment_started(1, [pack_id]),
        lambda: journal.record_found_remote(pack_id, evidence_of(journal.pack(pack_id))),
        lambda: journal.drop_empty(pack_id),
        lambda: journal.move_back(pack_id, PackState.OPEN, reason="x"),
        lambda: journal.move_back(pack_id, PackState.UPLOADED, reason="x"),
        lambda: journal.move_back(pack_id, PackState.RECLAIMED, reason="x"),
        lambda: journal.record_part(pack_id, PartRecord(number=1, etag="e", size_bytes=1, crc64nvme="c")),
    ]
    before = journal.packs(), journal.entries(pack_id)
    for step in refused:
        with pytest.raises(DurastoreError):
            step()
        assert (journal.packs(), journal.entries(pack_id)) == before


def test_reclaimed_needs_an_announced_intent(journal: Journal) -> None:
    record = manifested(journal)
    with pytest.raises(DurastoreError, match="no intent"):
        journal.record_reclaimed(record.pack_id)
    assert journal.pack(record.pack_id) == record


def test_evidence_must_be_of_this_object_and_more_than_a_listing(journal: Journal) -> None:
    record = sealed(journal)
    journal.record_uploaded(record.pack_id, reply=Answer(), at=SYSTEM_CLOCK.stamp())
    good = evidence_of(record)
    for bad in (
        replace(good, size_bytes=999),
        replace(good, key=ObjectKey("p/other")),
        replace(good, digest=Digest.of(b"other")),
        replace(good, level=EvidenceLevel.LISTED, digest=None),
    ):
        with pytest.raises(DurastoreError):
            journal.record_verified(record.pack_id, bad)
    assert journal.pack(record.pack_id).state is PackState.UPLOADED


def test_one_pack_that_is_not_verified_keeps_all_from_being_manifested(journal: Journal) -> None:
    good, bad = sealed(journal, 1), sealed(journal, 2)
    journal.record_uploaded(good.pack_id, reply=Answer(), at=SYSTEM_CLOCK.stamp())
    journal.record_verified(good.pack_id, evidence_of(good))
    with pytest.raises(DurastoreError):
        journal.record_manifested([good.pack_id, bad.pack_id], SEGMENT, at=SYSTEM_CLOCK.stamp())
    assert [r.state for r in journal.packs()] == [PackState.VERIFIED, PackState.SEALED]


def test_renewed_evidence_leaves_a_manifested_pack_where_it_is(journal: Journal) -> None:
    record = manifested(journal)
    assert record.evidence is not None
    younger = replace(record.evidence, taken=SYSTEM_CLOCK.stamp().render())
    journal.record_verified(record.pack_id, younger)
    assert journal.pack(record.pack_id) == replace(record, evidence=younger)


@pytest.mark.parametrize("state", [PackState.SEALED, PackState.UPLOADED, PackState.VERIFIED])
def test_a_step_back_takes_back_what_was_claimed_beyond_it(journal: Journal, state: PackState) -> None:
    record = manifested(journal)
    journal.record_intent(record.pack_id, "receipt")
    journal.move_back(record.pack_id, state, reason="doubt")
    now = journal.pack(record.pack_id)
    assert (now.state, now.reason, now.intent, now.manifested_in) == (state, "doubt", None, None)
    assert (now.evidence is None) == (state is not PackState.VERIFIED)
    assert (now.etag is None, now.uploaded_at is None, now.write_id is None) == (
        (True, True, True) if state is PackState.SEALED else (False, False, True)
    )
    assert (now.part_bytes is None) == (state is PackState.SEALED)
    assert (now.digest, now.key, now.sample_count) == (record.digest, record.key, 1)


@pytest.mark.parametrize("state", [PackState.UNKNOWN, PackState.CONFLICT, PackState.QUARANTINED, PackState.LOST])
def test_a_side_state_proves_nothing_and_leads_only_back_to_the_start(journal: Journal, state: PackState) -> None:
    record = manifested(journal)
    journal.move_back(record.pack_id, state, reason="doubt")
    now = journal.pack(record.pack_id)
    assert (now.evidence, now.intent, now.manifested_in) == (None, None, SEGMENT)
    for forward in (PackState.UPLOADED, PackState.VERIFIED, PackState.MANIFESTED, state):
        with pytest.raises(DurastoreError):
            journal.move_back(record.pack_id, forward, reason="no")
    journal.move_back(record.pack_id, PackState.SEALED, reason="proven from the start")
    assert journal.pack(record.pack_id).manifested_in is None


def test_an_open_pack_can_only_be_lost_or_quarantined(journal: Journal) -> None:
    record = journal.add_open_pack(file_of())
    for state in (PackState.SEALED, PackState.UNKNOWN, PackState.CONFLICT):
        with pytest.raises(DurastoreError):
            journal.move_back(record.pack_id, state, reason="x")
    journal.move_back(record.pack_id, PackState.LOST, reason="its file is gone")
    with pytest.raises(DurastoreError):
        journal.move_back(record.pack_id, PackState.SEALED, reason="was never sealed")


def test_no_order_of_steps_back_ever_leads_forward() -> None:
    order = [PackState.OPEN, PackState.SEALED, PackState.UPLOADED, PackState.VERIFIED, PackState.MANIFESTED]
    for i, old in enumerate(order):
        for new in order[i:]:
            assert not is_step_back(old, new)
    assert not any(is_step_back(old, new) for old in PackState for new in (PackState.OPEN, PackState.RECLAIMED))
    assert not any(is_step_back(PackState.RECLAIMED, new) for new in PackState)


def test_a_pack_without_a_file_is_proven_only_by_every_byte_of_its_object(journal: Journal) -> None:
    record = sealed(journal)
    journal.record_uploaded(record.pack_id, reply=Answer(), at=SYSTEM_CLOCK.stamp())
    with pytest.raises(DurastoreError):
        journal.record_verified_without_file(record.pack_id, evidence_of(record, level=EvidenceLevel.ATTESTED))
    with pytest.raises(DurastoreError):  # the level decides, also where a digest is told with it
        journal.record_verified_without_file(record.pack_id, replace(evidence_of(record), level=EvidenceLevel.ATTESTED))
    journal.record_verified_without_file(record.pack_id, evidence_of(record))
    assert journal.pack(record.pack_id).state is PackState.VERIFIED
    journal.record_manifested([record.pack_id], SEGMENT, at=SYSTEM_CLOCK.stamp())
    journal.record_verified_without_file(record.pack_id, evidence_of(record))  # the segment was found to be gone
    assert journal.pack(record.pack_id).manifested_in is None
    with pytest.raises(DurastoreError):
        journal.record_found_remote(record.pack_id, evidence_of(record))
    journal.record_manifested([record.pack_id], SEGMENT, at=SYSTEM_CLOCK.stamp())
    journal.record_found_remote(record.pack_id, evidence_of(record))
    assert journal.pack(record.pack_id).state is PackState.RECLAIMED
    assert journal.find_sample(SampleId("s1")) == []


@pytest.mark.parametrize("state", [PackState.UNKNOWN, PackState.CONFLICT, PackState.LOST])
def test_an_object_that_gives_every_byte_settles_any_doubt(journal: Journal, state: PackState) -> None:
    record = sealed(journal)
    journal.move_back(record.pack_id, state, reason="doubt")
    journal.record_verified_without_file(record.pack_id, evidence_of(record))
    now = journal.pack(record.pack_id)
    assert (now.state, now.etag) == (PackState.VERIFIED, evidence_of(record).etag)


def test_a_new_file_keeps_the_pack_id_and_splits_off_what_was_lost(journal: Journal) -> None:
    old = sealed(journal, 1, "a", "b", "c")
    write_id = journal.write_id(old.pack_id)
    kept = tuple(replace(e, offset=e.offset + 7) for e in journal.entries(old.pack_id) if e.sample_id.text != "b")
    new = Replacement(file=file_of(2), facts=facts(2, size_bytes=600), entries=kept)
    lost_id = journal.replace_file(old.pack_id, new, reason="torn")
    assert lost_id is not None
    now, lost = journal.pack(old.pack_id), journal.pack(lost_id)
    assert (now.name, now.state, now.sample_count, now.write_id) == (file_of(2).name, PackState.SEALED, 2, None)
    assert journal.entries(old.pack_id) == list(kept)
    assert (lost.name, lost.state, lost.sample_count, lost.key) == (old.name, PackState.LOST, 1, old.key)
    assert lost.write_id == write_id, "the lost part may be in the bucket under the old key"
    assert [e.sample_id.text for e in journal.entries(lost_id)] == ["b"]
    assert journal.used_bytes() == 600


def test_packs_are_told_as_of_the_last_step_however_often_they_are_asked_for(journal: Journal) -> None:
    assert journal.packs(PackState.SEALED) == journal.packs() == []
    record = sealed(journal)
    asked = journal.packs(PackState.SEALED)
    assert asked == [record]
    asked.clear()  # the answer is the caller's own
    assert journal.packs(PackState.SEALED) == [record]
    with pytest.raises(DurastoreError):
        journal.record_reclaimed(record.pack_id)
    write_id = journal.write_id(record.pack_id)
    assert [each.write_id for each in journal.packs(PackState.SEALED)] == [write_id]
    journal.move_back(record.pack_id, PackState.QUARANTINED, reason="planned")
    assert journal.packs(PackState.SEALED) == []
    assert [each.state for each in journal.packs(PackState.QUARANTINED)] == [PackState.QUARANTINED]


def test_samples_are_found_in_every_pack_that_has_them(journal: Journal) -> None:
    first, second = sealed(journal, 1, "a", "b"), sealed(journal, 2, "a")
    assert [(r.pack_id, e.offset) for r, e in journal.find_sample(SampleId("a"))] == [
        (first.pack_id, 512),
        (second.pack_id, 512),
    ]
    journal.move_back(second.pack_id, PackState.LOST, reason="gone")
    assert [(r.pack_id, e.sample_id.text) for r, e in journal.unmanifested()] == [
        (first.pack_id, "a"),
        (first.pack_id, "b"),
    ]
    assert journal.count_by_state() == {PackState.SEALED: 1, PackState.LOST: 1}


def test_sessions_keep_their_part_size_and_the_last_word_on_a_part(journal: Journal) -> None:
    pack_id = sealed(journal).pack_id
    parts = tuple(PartRecord(number=n, etag=f"e{n}", size_bytes=8, crc64nvme="AA==") for n in (1, 2))
    journal.record_session(pack_id, UploadSession(upload_id="u", part_bytes=8 << 20, parts=parts[:1]))
    journal.record_part(pack_id, parts[1])
    again = replace(parts[0], etag="e1-again")
    journal.record_part(pack_id, again)
    # case B96: the recorded part size is what a resume goes on with
    assert journal.session(pack_id) == UploadSession(upload_id="u", part_bytes=8 << 20, parts=(again, parts[1]))
    journal.record_session(pack_id, None)
    assert journal.session(pack_id) is None
    journal.record_session(pack_id, UploadSession(upload_id="v", part_bytes=5))
    journal.record_uploaded(pack_id, reply=Answer(), at=SYSTEM_CLOCK.stamp())
    assert journal.session(pack_id) is None


def test_tombstones_go_into_every_segment_until_the_pack_is_reclaimed(journal: Journal) -> None:
    stones = [Tombstone(sample_id=SampleId("a"), key=ObjectKey("p/packs/k"), offset=n, reason="lost") for n in (1, 2)]
    record = journal.add_sealed_pack(file_of(1), facts=facts(1), entries=[entry("a")], tombstones=[*stones, *stones])
    assert journal.tombstones([record.pack_id]) == stones
    journal.record_uploaded(record.pack_id, reply=Answer(), at=SYSTEM_CLOCK.stamp())
    journal.record_verified(record.pack_id, evidence_of(record))
    journal.record_manifested([record.pack_id], SEGMENT, at=SYSTEM_CLOCK.stamp())
    assert journal.tombstones([record.pack_id]) == stones  # should the server forget that segment
    journal.record_intent(record.pack_id, "receipt")
    journal.record_reclaimed(record.pack_id)
    assert journal.tombstones([record.pack_id]) == []


def test_what_a_lost_sample_supersedes_stays_with_it(journal: Journal) -> None:
    stones = [Tombstone(sample_id=SampleId(name), key=ObjectKey("p/packs/k"), offset=1) for name in ("a", "b")]
    record = journal.add_sealed_pack(
        file_of(1), facts=facts(1), entries=[entry("a"), entry("b", 800)], tombstones=stones
    )
    saved = Replacement(file=file_of(2), facts=facts(2), entries=(entry("a"),))
    lost_id = journal.replace_file(record.pack_id, saved, reason="torn")
    assert lost_id is not None
    assert stones[0] in journal.tombstones([record.pack_id])
    assert journal.tombstones([lost_id]) == stones[1:]


def test_rows_under_the_old_key_leave_with_the_segment_that_lists_the_new_file(journal: Journal) -> None:
    old = sealed(journal, 1, "a", "b")
    assert old.key is not None
    saved = Replacement(file=file_of(2), facts=facts(2), entries=(entry("a", 1_024),))
    lost_id = journal.replace_file(old.pack_id, saved, reason="damaged")
    assert lost_id is not None
    moved = Tombstone(sample_id=SampleId("a"), key=old.key, offset=512, reason="moved")
    assert journal.tombstones([old.pack_id]) == [moved]
    assert journal.tombstones([lost_id]) == [], "what is lost may be in the bucket under the old key"


def test_an_open_pack_has_no_rows_to_take_out(journal: Journal) -> None:
    record = journal.add_open_pack(file_of(1))
    journal.append_samples(record.pack_id, [entry("a")], size_bytes=2_000)
    journal.replace_file(record.pack_id, Replacement(file=file_of(2), facts=facts(2), entries=(entry("a"),)), reason="")
    assert journal.tombstones([record.pack_id]) == []


def test_a_superseded_sample_is_superseded_at_its_new_place_as_well(journal: Journal) -> None:
    older = sealed(journal, 1, "a", "b")
    assert older.key is not None
    stone = Tombstone(sample_id=SampleId("a"), key=older.key, offset=512)
    newer_entry = entry("a", header_digest=Digest.of(b"newer"))
    newer = journal.add_sealed_pack(file_of(2), facts=facts(2), entries=[newer_entry], tombstones=[stone])
    saved = Replacement(file=file_of(3), facts=facts(3), entries=(entry("a", 700), entry("b", 900)))
    journal.replace_file(older.pack_id, saved, reason="damaged")
    key = journal.pack(older.pack_id).key
    assert key is not None
    assert set(journal.tombstones([newer.pack_id])) == {stone, replace(stone, key=key, offset=700)}
    journal.record_uploaded(newer.pack_id, reply=Answer(), at=SYSTEM_CLOCK.stamp())
    journal.record_verified(newer.pack_id, evidence_of(newer))
    journal.record_manifested([newer.pack_id], SEGMENT, at=SYSTEM_CLOCK.stamp())
    assert [e.sample_id.text for e in journal.entries(older.pack_id)] == ["b"]


def test_a_sample_that_was_put_again_leaves_a_tombstone_for_a_rebuilt_manifest(journal: Journal) -> None:
    record = sealed(journal, 1, "a", "b")
    assert record.key is not None
    journal.drop_samples(record.pack_id, [SampleId("a")])
    assert [e.sample_id.text for e in journal.entries(record.pack_id)] == ["b"]
    assert journal.tombstones([record.pack_id]) == [Tombstone(sample_id=SampleId("a"), key=record.key, offset=512)]
    journal.drop_samples(record.pack_id, [SampleId("b")])
    journal.drop_empty(record.pack_id)
    assert journal.packs() == []


def test_numbers_are_never_used_twice_and_leave_no_gap(journal: Journal) -> None:
    assert [journal.next_pack_seq(WRITER) for _ in range(3)] == [1, 2, 3]
    sealed(journal, 7)
    assert journal.next_pack_seq(WRITER) == 8
    for seq in (2, 0):
        with pytest.raises(DurastoreError, match="gap"):
            journal.record_segment_started(seq, [])
    for seq in (1, 1, 2, 2):
        journal.record_segment_started(seq, [])
    with pytest.raises(DurastoreError, match="gap"):
        journal.record_segment_started(1, [])
    assert journal.writers() == [(WRITER, 7, 2)]


def test_facts_and_runs_are_kept(journal: Journal) -> None:
    assert journal.get_fact("store_id") is None
    journal.set_fact("store_id", "1")
    journal.set_fact("store_id", "2")
    assert journal.get_fact("store_id") == "2"
    journal.set_fact("store_id", None)
    assert journal.get_fact("store_id") is None
    run = Run.of({"a": 1})
    journal.add_run(run)
    journal.add_run(run)
    assert journal.runs() == {run.digest: run}


def test_an_open_pack_never_shrinks(journal: Journal) -> None:
    record = journal.add_open_pack(file_of())
    journal.append_samples(record.pack_id, [entry("a")], size_bytes=700)
    with pytest.raises(DurastoreError, match="shrink"):
        journal.append_samples(record.pack_id, [entry("b", 800)], size_bytes=699)
    assert journal.entries(record.pack_id) == [entry("a")]
    assert journal.used_bytes() == 700
