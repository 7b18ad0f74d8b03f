"""Histories that the model test found, cut down to what it takes. Each lost or hid an acknowledged content once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durastore.errors import DiskFailed, DurastoreError, IntegrityError, JournalFailed
from durastore.model import Digest, ObjectKey, PackState, SampleId
from durastore.spool import spool as spool_module
from durastore.spool.journal import Journal
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool, claim_idle_siblings
from durastore.store import settling
from durastore.store.segmenter import bury
from durastore.store.store import Store
from durastore.testing.faulty import Fault, FaultRule
from tests.property.disk_image import DiskImage, pack_files
from tests.property.store_model import BIG, RUN, Version, input_digest
from tests.property.store_world import Died, World, installed
from tests.unit.reclaim_lab import Chosen

OLD, NEW = Version("s/0", 0, 0), Version("s/0", 1, 1)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with installed(monkeypatch) as worlds:
        worlds.append(World(tmp_path, seed=1))
        yield worlds[0]


def put(store: Store, version: Version) -> None:
    store.put(version.sample_id, version.tensors(), input_digest=input_digest(version.input))


def test_after_both_packs_were_reclaimed_the_superseding_content_is_read(world: World) -> None:
    store = world.open(run=RUN)
    put(store, OLD)
    store.drain(300)
    world.stop(store)
    store = world.open()  # its view of the manifest begins with the old row
    put(store, NEW)
    store.drain(300)
    assert NEW.is_in(store.get("s/0"))
    world.stop(store)


def test_an_older_pack_that_outlives_the_newer_one_is_not_read(world: World) -> None:
    store = world.open(run=RUN)
    put(store, OLD)
    store.flush(300)
    put(store, NEW)
    store.flush(300)
    old, new = sorted(world.objects())
    newer = next(path for path in pack_files(world.local) if path.read_bytes() == world.objects()[new])
    newer.unlink()  # as if reclaimed; the older one is still here
    assert NEW.is_in(store.get("s/0"))
    world.stop(store)
    store = world.open()
    assert NEW.is_in(store.get("s/0"))
    assert not store.contains("s/0", input_digest=input_digest(OLD.input))
    assert old != new
    world.stop(store)


def test_a_superseded_input_is_not_done(world: World) -> None:
    store = world.open(run=RUN)
    put(store, OLD)
    store.flush(300)
    put(store, NEW)
    for is_flushed in (False, True):
        if is_flushed:
            store.flush(300)
        assert store.contains("s/0", input_digest=input_digest(NEW.input))
        assert not store.contains("s/0", input_digest=input_digest(OLD.input))
    world.stop(store)


def test_a_proven_sample_without_its_file_can_be_read_before_it_is_manifested(world: World) -> None:
    store = world.open(run=RUN)
    put(store, OLD)
    world.bucket.add(FaultRule(op="put", fault=Fault.SERVER_ERROR, count=None, key_part="manifest/"))
    with pytest.raises(TimeoutError):
        store.flush(60)
    for path in pack_files(world.local):
        path.unlink()
    assert OLD.is_in(store.get("s/0"))
    world.stop(store)
    store = world.open()
    assert OLD.is_in(store.get("s/0"))
    world.stop(store)


def test_a_sibling_that_cannot_be_opened_leaves_no_other_one_locked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [world.open(run=RUN) for _ in range(3)]
    for number, store in enumerate(stores):
        put(store, Version(f"s/{number}", 0, None))
    for store in stores:
        world.stop(store)
    plain = spool_module._try_claim

    def broken(root: SpoolRoot, number: int, **facts: object) -> Spool | None:
        if number == 2:
            raise JournalFailed("this one cannot be read")
        return plain(root, number, **facts)  # type: ignore[arg-type]  # passed on as they came

    root = SpoolRoot.open(world.local)
    monkeypatch.setattr(spool_module, "_try_claim", broken)
    with pytest.raises(JournalFailed):
        claim_idle_siblings(root, clock=world.clock)
    monkeypatch.setattr(spool_module, "_try_claim", plain)
    claimed = claim_idle_siblings(root, clock=world.clock)
    assert [spool.path.name for spool in claimed] == ["w-00", "w-01", "w-02"]
    for spool in claimed:
        spool.close()
    root.close()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_journal_from_before_the_upload_buries_nothing_that_the_bucket_holds(world: World, is_damaged: bool) -> None:
    store = world.open(run=RUN)
    put(store, OLD)
    world.stop(store)
    store = world.open()  # sealed now, and not yet sent
    world.stop(store)
    before = DiskImage(world.local)
    store = world.open()
    if is_damaged:
        store.flush(300)
        for path in pack_files(world.local):
            path.write_bytes(b"\0" * path.stat().st_size)
    else:
        store.drain(300)
    world.stop(store)
    before.restore_journals()
    for _ in range(2):
        store = world.open()
        assert "s/0" in store
        assert OLD.is_in(store.get("s/0"))
        store.flush(300)
        assert world.view().row(SampleId("s/0")) is not None
        world.stop(store)


@pytest.mark.parametrize("is_in_bucket", [True, False])
def test_a_journal_from_an_earlier_session_hides_nothing_of_a_later_one(world: World, is_in_bucket: bool) -> None:
    later = Version("s/1", 0, None)
    store = world.open(run=RUN, reclaim="never")
    put(store, OLD)
    store.flush(300)
    world.stop(store)
    before = DiskImage(world.local)
    store = world.open(reclaim="never")
    put(store, later)
    if is_in_bucket:
        store.flush(300)
    world.stop(store)
    before.restore_journals()
    store = world.open()
    for version in (OLD, later):
        assert version.sample_id in store
        assert version.is_in(store.get(version.sample_id))
    store.drain(300)
    world.stop(store)
    assert sorted(world.view().ids()) == ["s/0", "s/1"]


@pytest.mark.parametrize("content", [0, 1])
@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_put_whose_row_was_cut_off_leaves_one_content(
    world: World, monkeypatch: pytest.MonkeyPatch, content: int, is_flushed: bool
) -> None:
    """Its file does not say what it supersedes, and beside an earlier content it would be a second one."""
    big = Version("s/0", BIG, 1)
    store = world.open(run=RUN, reclaim="never")
    if is_flushed:
        put(store, Version("s/0", content, 0))
        store.flush(300)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add_sealed_pack", cut_off)
        with pytest.raises(Died):
            put(store, big)
    world.stop(store)
    for _ in range(2):
        store = world.open()
        assert ("s/0" in store, store.contains("s/0", input_digest=input_digest(1))) == (True, not is_flushed)
        store.drain(300)
        assert pack_files(world.local, with_quarantine=False) == []
        assert len(store.rows_of("s/0")) == 1
        world.stop(store)
    assert world.holds(big.data())
    store = world.open()
    put(store, big)
    store.drain(300)
    assert big.is_in(store.get("s/0"))
    world.stop(store)
    assert len(world.view().rows_of(SampleId("s/0"))) == 1


def cut_off(*_: object, **__: object) -> None:
    raise Died


@pytest.mark.parametrize("first", [0, 1])
def test_an_older_journal_takes_no_listed_content_out_of_the_view(world: World, first: int) -> None:
    """The earlier content is still in a pack of the older journal, the later one in a file that it does not know."""
    old, new = Version("s/0", first, 0), Version("s/0", 1 - first, 1)
    store = world.open(run=RUN, reclaim="never")
    put(store, old)
    world.stop(store)
    before = DiskImage(world.local)
    store = world.open(reclaim="never")
    put(store, new)
    put(store, Version("s/1", 0, None))  # in the same pack
    store.flush(300)
    world.stop(store)
    before.restore_journals()
    for _ in range(2):
        store = world.open()
        store.drain(300)
        world.stop(store)
        (row,) = world.view().rows_of(SampleId("s/0"))
        assert row.entry.input_digest == Digest(str(input_digest(new.input)))


def damage_trailer(path: Path) -> None:
    """One bit of a tar's end: its samples are whole, and the pack is not what was sealed."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_the_row_of_a_forgotten_object_gives_way_to_that_of_the_saved_copy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.SystemRandom", Chosen)  # the canary is the last pack
    store = world.open(run=RUN, reclaim="lazy")
    put(store, OLD)
    store.flush(300)
    (key,), (path,) = world.objects(), pack_files(world.local)
    put(store, Version("s/1", 0, None))
    store.flush(300)
    assert len(store.rows_of("s/0")) == 1  # the view in hand has the old row from here on
    world.bucket.lose(ObjectKey(key))
    damage_trailer(path)
    world.clock.advance(100)  # both packs have settled, so that they are one batch
    store.drain(300)
    assert pack_files(world.local, with_quarantine=False) == []
    assert OLD.is_in(store.get("s/0"))
    world.stop(store)
    (row,) = world.view().rows_of(SampleId("s/0"))
    assert row.object.key.text in world.whole_objects()


def test_a_superseded_content_that_was_saved_into_another_file_stays_superseded(world: World) -> None:
    old, new = Version("s/0", 1, 0), Version("s/0", 0, 1)
    store = world.open(run=RUN, reclaim="never")
    put(store, old)
    store.flush(300)
    (path,), (key,) = pack_files(world.local), world.objects()
    world.bucket.add(FaultRule(op="put", fault=Fault.SERVER_ERROR, count=None, key_part="packs/"))
    put(store, new)
    world.stop(store)
    world.bucket.lose(ObjectKey(key))
    damage_trailer(path)
    world.bucket.heal()
    store = world.open(reclaim="never")
    store.flush(300)
    world.stop(store)
    (row,) = world.view().rows_of(SampleId("s/0"))
    assert row.entry.input_digest == Digest(str(input_digest(new.input)))


def lose_both(world: World, taken: Path) -> Path:
    """The one pack's object is forgotten, and its file moved out of the spool; returns where it was."""
    (path,), (key,) = pack_files(world.local, with_quarantine=False), world.whole_objects()
    world.bucket.lose(ObjectKey(key))
    path.rename(taken)
    return path


def lost_and_buried(world: World, taken: Path, *, version: Version = OLD) -> Path:
    store = world.open(run=RUN, reclaim="never")
    put(store, version)
    store.flush(300)
    world.stop(store)
    path = lose_both(world, taken)
    store = world.open(reclaim="never")
    assert "s/0" not in store
    world.stop(store)
    return path


def check_drained(world: World) -> None:
    """What a drain leaves is read by this machine and by one that has only the bucket."""
    store = world.open()
    store.drain(300)
    assert pack_files(world.local, with_quarantine=False) == []
    assert "s/0" in store
    assert OLD.is_in(store.get("s/0"))
    world.stop(store)
    (row,) = world.view().rows_of(SampleId("s/0"))
    assert row.object.key.text in world.whole_objects()


def test_a_lost_pack_whose_file_is_back_is_listed_anew(world: World, tmp_path: Path) -> None:
    path = lost_and_buried(world, tmp_path / "taken")
    (tmp_path / "taken").rename(path)
    check_drained(world)


def test_a_pack_that_came_back_and_is_lost_again_is_buried_again(world: World, tmp_path: Path) -> None:
    path = lost_and_buried(world, tmp_path / "taken")
    (tmp_path / "taken").rename(path)
    store = world.open(reclaim="never")
    store.flush(300)
    assert "s/0" in store
    lose_both(world, tmp_path / "taken again")
    spool = store._parts.lanes[0].spool
    (record,) = spool.journal.packs(PackState.MANIFESTED)
    spool.record_lost(record.pack_id, reason="found within the session")  # as the lane does, which buries nothing
    world.stop(store)
    store = world.open()
    assert "s/0" not in store
    put(store, OLD)
    world.stop(store)
    check_drained(world)


@pytest.mark.parametrize("is_read_back", [True, False])
def test_a_burial_that_was_cut_short_hides_no_object_that_is_there(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_read_back: bool
) -> None:
    cut_short_burial(world, tmp_path, monkeypatch=monkeypatch, is_read_back=is_read_back)
    store = world.open(reclaim="never")
    assert "s/0" in store
    assert OLD.is_in(store.get("s/0"))
    world.stop(store)
    check_drained(world)


def test_a_burial_that_was_cut_short_hides_no_file_that_is_back(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cut_short_burial(world, tmp_path, monkeypatch=monkeypatch, is_read_back=True)
    (tmp_path / "taken").rename(path)
    check_drained(world)


def test_an_object_that_cannot_be_fetched_after_a_burial_is_fetched_at_the_next_open(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short_burial(world, tmp_path, monkeypatch=monkeypatch, is_read_back=True)
    with monkeypatch.context() as patch:
        patch.setattr(spool_module, "publish", full_disk)
        store = world.open()
        assert "s/0" not in store, "not listed, so not done"
        world.stop(store)
    check_drained(world)


def full_disk(*_: object, **__: object) -> None:
    raise DiskFailed("no space left")


def cut_short_burial(world: World, tmp_path: Path, *, monkeypatch: pytest.MonkeyPatch, is_read_back: bool) -> Path:
    """The only file is gone and the bucket denies its object for a while; the open that buries it does not end well."""
    store = world.open(run=RUN, reclaim="never")
    put(store, OLD)
    store.flush(300)
    world.stop(store)
    (path,) = pack_files(world.local)
    path.rename(tmp_path / "taken")
    world.bucket.add(FaultRule(op="head", fault=Fault.ABSENT, count=None, key_part="packs/"))

    def cut(*args: Any, **facts: Any) -> None:
        bury(*args, **facts)
        raise JournalFailed("the process ended here")

    if not is_read_back:
        world.bucket.add(FaultRule(op="fetch", fault=Fault.SERVER_ERROR, count=None, key_part="manifest/"))
    with monkeypatch.context() as patch:
        patch.setattr(settling, "bury", cut)
        with pytest.raises(DurastoreError):
            world.open()
    world.bucket.heal()
    world.stop(None)
    assert world.view().row(SampleId("s/0")) is None
    return path


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("old, new", [(OLD, NEW), (Version("s/0", 1, 0), Version("s/0", 0, 1))])
def test_a_lost_content_that_comes_back_does_not_hide_one_put_since(
    world: World, tmp_path: Path, is_flushed: bool, old: Version, new: Version
) -> None:
    path = lost_and_buried(world, tmp_path / "taken", version=old)
    store = world.open(reclaim="never")
    put(store, new)
    if is_flushed:
        store.flush(300)
    world.stop(store)
    (tmp_path / "taken").rename(path)
    for _ in range(2):
        store = world.open()
        assert new.is_in(store.get("s/0"))
        assert not store.contains("s/0", input_digest=input_digest(old.input))
        store.drain(300)
        world.stop(store)
    (row,) = world.view().rows_of(SampleId("s/0"))
    assert row.entry.input_digest == Digest(str(input_digest(new.input)))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_content_superseded_by_another_process_stays_so_when_it_is_saved_into_another_file(
    world: World, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    monkeypatch.setattr("random.SystemRandom", Chosen)  # the canary is the last pack
    old, new = Version("s/0", int(is_first), 0), Version("s/0", int(not is_first), 1)
    store = world.open(run=RUN, reclaim="lazy")
    put(store, old)
    store.flush(300)
    (key,), (path,) = world.objects(), pack_files(world.local)
    put(store, Version("s/1", 0, None))
    store.flush(300)
    other = world.open(reclaim="never")
    put(other, new)
    other.flush(300)
    world.bucket.lose(ObjectKey(key))
    damage_trailer(path)
    world.clock.advance(100)  # both packs have settled, so that they are one batch
    store.drain(300)
    assert store.status().only_local_ids == ()
    (row,) = world.view().rows_of(SampleId("s/0"))
    assert row.entry.input_digest == Digest(str(input_digest(new.input)))
    world.stop(other)
    world.stop(store)


def test_the_same_content_put_since_is_no_reason_to_let_the_copy_go(world: World, tmp_path: Path) -> None:
    path = lost_and_buried(world, tmp_path / "taken")
    store = world.open(reclaim="never")
    put(store, OLD)
    store.flush(300)
    world.stop(store)
    (tmp_path / "taken").rename(path)
    store = world.open()
    store.drain(300)
    world.stop(store)
    assert len(world.view().rows_of(SampleId("s/0"))) == 2


def test_a_pack_whose_answer_was_lost_and_then_its_file_is_found_in_the_bucket(world: World) -> None:
    # case B99: it was said to be LOST without a look
    store = world.open(run=RUN)
    put(store, OLD)
    world.bucket.add(FaultRule(op="put", fault=Fault.DROP_RESPONSE, count=None, key_part="packs/"))
    world.bucket.add(FaultRule(op="head", fault=Fault.SERVER_ERROR, count=None, key_part="packs/"))
    with pytest.raises(TimeoutError):
        store.flush(60)
    for path in pack_files(world.local):
        path.unlink()
    world.bucket.heal()
    store.flush(300)
    assert OLD.is_in(store.get("s/0"))
    world.stop(store)
    check_drained(world)


def test_a_pack_that_was_doubted_before_its_file_was_lost_can_be_read(world: World) -> None:
    store = world.open(run=RUN)
    put(store, OLD)
    world.bucket.add(FaultRule(op="put", fault=Fault.SERVER_ERROR, count=None, key_part="manifest/"))
    with pytest.raises(TimeoutError):
        store.flush(60)
    spool = store._parts.lanes[0].spool
    (record,) = spool.journal.packs(PackState.VERIFIED)
    spool.journal.move_back(record.pack_id, PackState.SEALED, reason="for the test: its write id goes with its claims")
    for path in pack_files(world.local):
        path.unlink()
    world.stop(store)
    store = world.open()
    assert OLD.is_in(store.get("s/0"))
    world.stop(store)
    world.bucket.heal()
    check_drained(world)


def test_a_file_cut_after_its_upload_was_forgotten_is_read_from_the_bucket(world: World) -> None:
    store = world.open(run=RUN)
    put(store, OLD)
    world.stop(store)
    store = world.open()  # sealed now, and not yet sent
    world.stop(store)
    before = DiskImage(world.local)
    store = world.open()
    world.bucket.add(FaultRule(op="put", fault=Fault.SERVER_ERROR, count=None, key_part="manifest/"))
    with pytest.raises(TimeoutError):
        store.flush(60)  # in the bucket, and in no manifest
    world.stop(store)
    before.restore_journals()
    store = world.open()
    (path,) = pack_files(world.local)
    path.write_bytes(path.read_bytes()[:1536])
    assert OLD.is_in(store.get("s/0"))
    for op in ("fetch", "fetch_chunks"):
        world.bucket.add(FaultRule(op=op, fault=Fault.SERVER_ERROR, count=None, key_part="packs/"))
    with pytest.raises(IntegrityError, match="the file ends at byte 1536"):  # not a word about the endpoint
        store.get("s/0")
    world.stop(store)
    world.bucket.heal()
    check_drained(world)


def test_a_superseded_pack_that_is_lost_does_not_hide_the_content_put_since(world: World) -> None:
    store = world.open(run=RUN)
    put(store, OLD)
    store.flush(300)
    (key,) = world.objects()
    world.bucket.lose(ObjectKey(key))
    work(world, after_s=100_000)  # reclaim finds it gone, and takes the pack back
    (path,) = pack_files(world.local)
    path.write_bytes(bytes(path.stat().st_size))
    put(store, NEW)
    world.bucket.add(FaultRule(op="put", fault=Fault.SERVER_ERROR, count=None, key_part="manifest/"))
    for _ in range(4):  # the old one is found lost while the new one has no row yet
        work(world, after_s=100)
    assert PackState.LOST.value in store.status().packs_by_state
    assert store.contains("s/0", input_digest=input_digest(NEW.input))
    assert NEW.is_in(store.get("s/0"))
    world.stop(store)


def work(world: World, *, after_s: float) -> None:
    world.clock.advance(after_s)
    world.begin()
    world.work()


def test_a_sample_put_again_after_its_object_was_damaged_is_read_from_the_new_one(world: World) -> None:
    store = world.open(run=RUN)
    store.put_many({"a/0": NEW.tensors(), "s/0": OLD.tensors()}, input_digests={"s/0": str(input_digest(OLD.input))})
    store.drain(300)
    (key,) = world.objects()
    world.bucket.damage(ObjectKey(key), Fault.ZERO_BLOCK)  # its second 4 KiB: s/0
    world.stop(store)
    store = world.open()  # its view of the manifest begins with the first row
    put(store, OLD)
    store.flush(300)
    work(world, after_s=40)
    assert len(world.objects()) == 2
    assert pack_files(world.local) == []
    assert OLD.is_in(store.get("s/0"))
    world.stop(store)
    check_drained(world)


def test_a_pack_that_is_listed_again_though_the_server_forgot_it_is_kept_and_sent_again(world: World) -> None:
    store = world.open(run=RUN)
    put(store, OLD)
    store.flush(300)
    world.stop(store)
    (key,) = world.objects()
    world.bucket.lose(ObjectKey(key))
    store = world.open(settle_s=0.0)
    world.bucket.add(FaultRule(op="fetch", fault=Fault.WRONG_BYTE, count=None, key_part="manifest/"))
    with pytest.raises(TimeoutError):
        store.drain(300)
    world.bucket.heal()
    with pytest.raises(DurastoreError, match="reclaiming is stopped"):  # the canary is the pack that is gone
        store.drain(300)
    assert OLD.is_in(store.get("s/0"))
    assert len(pack_files(world.local, with_quarantine=False)) == 1
    world.stop(store)
    assert world.has_object_of("s/0", OLD.data())
    assert world.breaches == []
