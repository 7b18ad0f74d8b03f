"""Reconciling a spool root: journal, files, manifest and bucket against each other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.clock import ManualClock
from durastore.config import StoreOptions
from durastore.errors import InventoryIncomplete, RootMismatch, StoreMissing
from durastore.formats.keys import marker_key
from durastore.model import ObjectKey, PackState
from durastore.objectstore.location import BucketUrl
from durastore.objectstore.memory import MemoryStore
from durastore.reconcile.report import ReconcileReport
from durastore.reconcile.run import reconcile
from durastore.reconcile.session import ReconcileRequest
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool
from durastore.store.opening import open_store
from durastore.store.store import Store
from durastore.testing.faulty import FaultyStore
from tests.unit.reconcile_lab import by_kind

PREFIX = "lab/set"
URL = f"memory://lab/{PREFIX}"
RUN = {"m": 1}


class _Ticking(ManualClock):
    """Time goes on while somebody waits: what was put off comes due."""

    def wait(self, condition: Any, timeout_s: float) -> None:
        super().wait(condition, timeout_s)
        self.advance(0.1)


class SpoolLab:
    """One root, one bucket, samples of known content."""

    def __init__(self, path: Path) -> None:
        self.root = path / "spool"
        self.clock: ManualClock = _Ticking()
        self.memory = MemoryStore(clock=self.clock)
        self.objects = FaultyStore(self.memory)

    @contextmanager
    def opened(self, root: Path | None = None) -> Iterator[Store]:
        store = open_store(
            URL,
            local=root or self.root,
            run=RUN,
            clock=self.clock,
            objects=self.objects,
            reclaim="never",
            pack_target_bytes=3_000,
            single_pack_bytes=100_000,
        )
        try:
            yield store
        finally:
            store.abandon()

    def fill(self, count: int = 6, *, start: int = 0, is_flushed: bool = True, root: Path | None = None) -> None:
        with self.opened(root) as store:
            for number in range(start, start + count):
                store.put(f"s{number}", {"x": np.full((20, 20), number, dtype=np.float32)})
            if is_flushed:
                store.flush(timeout_s=60)

    def run(self, **asked: Any) -> ReconcileReport:
        request = ReconcileRequest(
            local=self.root,
            bucket=BucketUrl.parse(URL),
            options=StoreOptions(pack_target_bytes=3_000),
            settle_s=asked.pop("settle_s", 0.0),
            **asked,
        )
        return reconcile(request, objects=self.objects, clock=self.clock)

    def apply(self, **asked: Any) -> ReconcileReport:
        return self.run(is_applied=True, **asked)

    def check_held(self, count: int) -> None:
        """Every sample can be had, byte for byte."""
        with self.opened() as store:
            for number in range(count):
                assert np.asarray(store.get(f"s{number}").tensors["x"]).ravel()[0] == number

    def packs(self) -> list[Path]:
        return sorted((self.root / "w-00" / "packs").iterdir())

    def objects_in(self, folder: str = "packs") -> list[str]:
        return [stat.key.text for page in self.memory.list(f"{PREFIX}/{folder}/") for stat in page]

    def lose(self, key: str) -> None:
        self.memory._objects.pop(ObjectKey(key))

    def states(self) -> list[PackState]:
        root = SpoolRoot.open(self.root)
        spool = Spool.claim(root, clock=self.clock)
        try:
            return [record.state for record in spool.journal.packs()]
        finally:
            spool.close()
            root.close()


@pytest.fixture
def lab(tmp_path: Path) -> SpoolLab:
    return SpoolLab(tmp_path)


def _tree(root: Path) -> dict[str, bytes]:
    # opening a database read-only may make its -shm file; nothing else may change
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def test_a_whole_root_agrees_and_looking_changes_nothing(lab: SpoolLab) -> None:
    lab.fill()
    before, objects = _tree(lab.root), dict(lab.memory._objects)
    report = lab.run(is_deep=True)
    assert (report.exit_code, report.findings, report.adds_up) == (0, (), True)
    assert _tree(lab.root) == before
    assert lab.memory._objects == objects


def test_packs_that_are_only_local_are_sent(lab: SpoolLab) -> None:
    lab.fill(2)
    lab.fill(3, start=2, is_flushed=False)
    report = lab.run()
    assert report.exit_code == 12
    assert by_kind(report.findings).keys() == {("only-local", "local")}
    assert lab.apply().exit_code == 0
    lab.check_held(5)


def test_a_spool_of_a_live_process_is_left_alone(lab: SpoolLab) -> None:
    # case B37
    lab.fill(2)
    with lab.opened() as store:
        store.put("s2", {"x": np.full((20, 20), 2, dtype=np.float32)})
        report = lab.apply()
        kinds = by_kind(report.findings)
        assert report.exit_code == 12
        assert kinds.keys() == {("in-flight", "local")}
    assert lab.apply().exit_code == 0
    lab.check_held(3)


def test_objects_that_are_gone_or_cut_are_sent_again(lab: SpoolLab) -> None:
    # case B23, case B71, case B72
    lab.fill(6)
    first, second, *_ = lab.objects_in()
    lab.lose(first)
    lab.memory.put(ObjectKey(second), b"short", crc64nvme=None, metadata={})
    report = lab.run()
    kinds = by_kind(report.findings)
    assert len(kinds["dangling", "journal"]) == 1
    assert len(kinds["divergent", "journal"]) == 1
    assert report.exit_code == 12
    assert lab.apply().exit_code == 0
    assert len(lab.memory.fetch(ObjectKey(second))) > 5
    assert ObjectKey(first) in lab.memory._objects
    lab.check_held(6)


def test_a_flipped_byte_in_a_pack_is_found_by_deep_and_nothing_is_lost(lab: SpoolLab) -> None:
    # case B73
    lab.fill(6)
    pack = lab.packs()[0]
    stat = pack.stat()
    data = bytearray(pack.read_bytes())
    data[2_000] ^= 1
    pack.write_bytes(bytes(data))
    os.utime(pack, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    shallow = lab.run()
    assert shallow.exit_code == 0
    assert any("not re-hashed" in line for line in shallow.lines())
    assert by_kind(lab.run(is_deep=True).findings) == {("divergent", "local"): {f"w-00/{pack.name}"}}
    assert lab.apply(is_deep=True).exit_code == 0
    assert (lab.root / "w-00" / "quarantine" / pack.name).read_bytes() == bytes(data)
    lab.check_held(6)


def test_a_lost_journal_is_made_again_and_nothing_is_believed(lab: SpoolLab) -> None:
    # case B121
    lab.fill(6)
    for path in (lab.root / "w-00").glob("journal-*"):
        path.unlink()
    report = lab.run()
    assert by_kind(report.findings)["untracked", "local"] == {f"w-00/{pack.name}" for pack in lab.packs()}
    uploads = lab.objects.count("put")
    assert lab.apply().exit_code == 0
    assert lab.objects.count("put") > uploads  # every pack was sent and proven anew, under its old key
    assert len(lab.objects_in()) == len(lab.packs())
    lab.check_held(6)
    assert lab.run().exit_code == 0


def test_a_journal_from_an_older_copy_is_noticed(lab: SpoolLab, tmp_path: Path) -> None:
    # case B121
    lab.fill(2)
    for path in (lab.root / "w-00").glob("journal-*"):
        shutil.copy(path, tmp_path / path.name)
    lab.fill(4, start=2)
    for path in (lab.root / "w-00").glob("journal-*"):
        path.unlink()
    for path in tmp_path.glob("journal-*"):
        shutil.copy(path, lab.root / "w-00" / path.name)
    assert lab.run().exit_code == 12
    assert lab.apply().exit_code == 0
    lab.check_held(6)
    again = lab.apply()
    assert again.applied is not None
    assert (again.exit_code, again.applied.uploaded_bytes) == (0, 0)


def test_objects_lost_during_a_run_are_named_and_the_sums_say_so(lab: SpoolLab) -> None:
    # case B93
    _reclaimed(lab, 100)
    keys = lab.objects_in()
    gone = {keys[3], keys[50], keys[99]}
    for key in gone:
        lab.lose(key)
    for report in (lab.run(), lab.apply()):
        assert report.exit_code == 12
        assert {name for f in report.findings if f.kind.value == "dangling" for name in f.names} == gone
        counts = {each.what: (each.count, each.size_bytes) for each in report.counts}
        (rows, row_bytes), (held, held_bytes) = counts["manifest objects"], counts["bucket objects"]
        assert (rows, held) == (100, 97)
        assert row_bytes > held_bytes


def test_orphans_get_their_rows_back(lab: SpoolLab) -> None:
    lab.fill(6)
    for key in lab.objects_in("manifest"):
        lab.lose(key)
    shutil.rmtree(lab.root)  # another machine
    SpoolRoot.open(lab.root).close()
    report = lab.run()
    assert by_kind(report.findings) == {("orphan", "bucket"): set(lab.objects_in())}
    done = lab.apply()
    assert done.applied is not None
    assert (done.exit_code, done.applied.rows_rebuilt) == (0, 6)
    lab.check_held(6)


def _reclaimed(lab: SpoolLab, count: int = 6) -> None:
    lab.fill(count)
    report = lab.apply(is_reclaiming=True)
    assert report.exit_code == 0
    assert lab.packs() == []


def test_rows_are_taken_out_only_when_asked_for(lab: SpoolLab, tmp_path: Path) -> None:
    _reclaimed(lab)
    elsewhere = SpoolLab(tmp_path / "elsewhere")
    elsewhere.clock, elsewhere.memory, elsewhere.objects = lab.clock, lab.memory, lab.objects
    elsewhere.fill(2, start=6, root=tmp_path / "other-root")
    writer = SpoolRoot.open(tmp_path / "other-root")
    spool = Spool.claim(writer, clock=lab.clock)
    others = {record.key.text for record in spool.journal.packs() if record.key is not None}
    spool.close()
    writer.close()
    ours = next(key for key in lab.objects_in() if key not in others)
    theirs = next(key for key in lab.objects_in() if key in others)
    lab.lose(ours)
    lab.lose(theirs)
    for report in (lab.run(), lab.apply()):
        assert by_kind(report.findings) == {("dangling", "manifest"): {ours, theirs}}
        assert report.exit_code == 12
        assert any("--bury" in line for line in report.lines())
    begun = lab.clock.monotonic()
    done = lab.apply(is_burying=True)
    assert done.applied is not None
    assert done.applied.rows_buried >= 2
    assert done.exit_code == 0
    assert lab.clock.monotonic() - begun >= 60  # an index that is being rebuilt forgets for seconds
    with lab.opened() as store:
        assert sum(f"s{number}" in store for number in range(8)) < 8  # the next run makes them again


def test_while_a_spool_is_held_no_row_is_called_lost(lab: SpoolLab) -> None:
    _reclaimed(lab)
    lab.lose(lab.objects_in()[0])
    with lab.opened():
        done = lab.apply(is_burying=True)
        assert done.applied is not None
        assert (done.exit_code, done.applied.rows_buried) == (12, 0)
    assert lab.apply(is_burying=True).exit_code == 0


def _live(lab: SpoolLab, count: int) -> int:
    with lab.opened() as store:
        return sum(f"s{number}" in store for number in range(count))


def test_objects_that_come_back_after_an_outage_have_their_rows(lab: SpoolLab) -> None:
    _reclaimed(lab)
    kept = {ObjectKey(key): lab.memory._objects[ObjectKey(key)] for key in lab.objects_in()}
    for key in kept:
        lab.lose(key.text)
    assert lab.apply().exit_code == 12
    lab.memory._objects.update(kept)
    assert lab.apply().exit_code == 0
    assert _live(lab, 6) == 6


def test_more_than_half_at_once_is_no_loss_that_is_believed(lab: SpoolLab) -> None:
    _reclaimed(lab, 40)
    keys = lab.objects_in()
    gone = keys[: len(keys) // 2 + 1]
    assert len(gone) > 10
    for key in gone:
        lab.lose(key)
    assert lab.run(is_burying=True).exit_code == 12
    done = lab.apply(is_burying=True)
    assert done.applied is not None
    assert (done.exit_code, done.applied.rows_buried) == (13, 0)
    assert by_kind(done.findings) == {("dangling", "manifest"): set(gone)}
    assert any("outage" in line for line in done.lines())
    assert _live(lab, 40) == 40


def test_an_object_that_is_back_after_its_rows_were_taken_out_is_told(lab: SpoolLab) -> None:
    _reclaimed(lab)
    key = ObjectKey(lab.objects_in()[0])
    data = lab.memory._objects[key]
    lab.lose(key.text)
    assert lab.apply(is_burying=True).exit_code == 0
    lab.memory._objects[key] = data
    report = lab.apply()
    assert by_kind(report.findings) == {("orphan", "bucket"): {key.text}}
    assert report.exit_code == 12
    lab.fill(6)  # the extraction runs again
    assert lab.apply().exit_code == 0
    lab.check_held(6)


def test_a_listing_without_what_is_there_changes_nothing(lab: SpoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B18
    lab.fill(6)
    honest = FaultyStore.list

    def empty(store: FaultyStore, prefix: str, *, start_after: str | None = None) -> Any:
        from durastore.objectstore.listing import pages_of

        if "/packs/" in prefix:
            return pages_of(iter([]), prefix=prefix, start_after=start_after)
        return honest(store, prefix, start_after=start_after)

    monkeypatch.setattr(FaultyStore, "list", empty)
    puts = lab.objects.count("put")
    report = lab.apply()
    assert report.exit_code == 12
    assert by_kind(report.findings).keys() == {("unreadable", "bucket")}
    assert lab.objects.count("put") == puts
    assert set(lab.states()) == {PackState.MANIFESTED}


def test_a_recreated_bucket_gives_no_plan(lab: SpoolLab) -> None:
    # case B164
    lab.fill(2)
    lab.memory._objects.clear()
    with pytest.raises(StoreMissing):
        lab.apply()
    (lab.root.parent / "x").mkdir()
    with SpoolLab(lab.root.parent / "x").opened():
        pass
    other = SpoolLab(lab.root.parent / "y")
    other.memory, other.objects, other.clock = lab.memory, lab.objects, lab.clock
    other.fill(1, root=lab.root.parent / "y-root")
    with pytest.raises(InventoryIncomplete):
        lab.apply()
    lab.lose(marker_key(PREFIX).text)
    with pytest.raises(InventoryIncomplete):
        lab.apply()
    assert set(lab.states()) == {PackState.MANIFESTED}


def test_one_address_written_in_two_ways_makes_no_orphans(lab: SpoolLab) -> None:
    # case B30
    lab.fill(3)
    request = ReconcileRequest(local=lab.root, bucket=BucketUrl.parse(f"{URL}/"), settle_s=0.0)
    report = reconcile(request, objects=lab.objects, clock=lab.clock)
    assert (report.exit_code, report.findings) == (0, ())


def test_what_somebody_put_into_a_root_is_named_and_stays(lab: SpoolLab) -> None:
    # case B03
    lab.fill(2)
    lab.apply(is_reclaiming=True)
    (lab.root / "mine.txt").write_text("mine")
    (lab.root / "w-00" / "notes").write_text("mine")
    (lab.root / "w-00" / "packs" / "mine.tar").write_text("mine")
    report = lab.run()
    assert by_kind(report.findings)["untracked", "local"] == {"mine.txt", "w-00/notes", "w-00/mine.tar"}
    done = lab.apply(is_reclaiming=True)
    assert done.exit_code == 12
    assert by_kind(done.findings)["untracked", "local"] == {"mine.txt", "w-00/notes"}
    assert (lab.root / "w-00" / "quarantine" / "mine.tar").read_text() == "mine"


def _with_lone_pack(lab: SpoolLab) -> dict[str, bytes]:
    """A pack of one sample, as a file of a known format; and the root's marker gone."""
    with lab.opened() as store:
        big = np.random.default_rng(1).standard_normal((400, 400)).astype(np.float32)
        store.put("big", {"x": big})
    (lab.root / "durastore-root.json").rename(lab.root.parent / "aside")
    return {path.name: path.read_bytes() for path in lab.packs()}


@pytest.mark.parametrize("below", ["", "w-00", "w-00/packs"])
@pytest.mark.parametrize("asked", [{}, {"is_applied": True, "is_reclaiming": True}])
def test_a_root_without_its_marker_is_no_folder(lab: SpoolLab, below: str, asked: dict[str, bool]) -> None:
    before = _with_lone_pack(lab)
    root, tree = lab.root, _tree(lab.root)
    lab.root = root / below
    with pytest.raises(RootMismatch):
        lab.run(**asked)
    lab.root = root
    assert {path.name: path.read_bytes() for path in lab.packs()} == before
    assert _tree(root) == tree
    (root.parent / "aside").rename(root / "durastore-root.json")  # its owner puts it back
    assert lab.apply().exit_code == 0
    with lab.opened() as store:
        assert np.asarray(store.get("big").tensors["x"]).shape == (400, 400)


def test_a_root_without_its_marker_deeper_down_is_no_part_of_a_folder(lab: SpoolLab) -> None:
    before = _with_lone_pack(lab)
    outer = lab.root.parent / "outer"
    (outer / "runs").mkdir(parents=True)
    lab.root.rename(outer / "runs" / "one")
    lab.root = outer
    for asked in ({}, {"is_applied": True, "is_reclaiming": True}):
        with pytest.raises(RootMismatch, match="looks like a spool"):
            lab.run(**asked)
    lab.root = outer / "runs" / "one"
    assert {path.name: path.read_bytes() for path in lab.packs()} == before


def test_a_stranger_among_the_packs_is_not_forgotten_in_quarantine(lab: SpoolLab) -> None:
    lab.fill(3)
    (lab.root / "w-00" / "packs" / "precious.npy").write_bytes(b"only here")
    assert lab.apply().exit_code == 12
    report = lab.run(is_deep=True)
    assert by_kind(report.findings) == {("quarantined", "local"): {"w-00/precious.npy"}}
    assert report.exit_code == 12


def test_strangers_under_names_of_ours_are_told(lab: SpoolLab) -> None:
    lab.fill(3)
    (lab.root / "going").mkdir()
    (lab.root / "w-00" / "ballast").unlink(missing_ok=True)
    (lab.root / "w-00" / "ballast").mkdir()
    report = lab.run(is_deep=True)
    assert by_kind(report.findings) == {("untracked", "local"): {"going", "w-00/ballast"}}


def _buried_elsewhere(lab: SpoolLab, path: Path) -> None:
    """Every object is gone, and another root takes the rows out."""
    for key in lab.objects_in():
        lab.lose(key)
    other = SpoolLab(path / "other")
    other.clock, other.memory, other.objects = lab.clock, lab.memory, lab.objects
    other.root.parent.mkdir()
    SpoolRoot.open(other.root).close()
    report = other.apply(is_burying=True)
    assert report.applied is not None
    assert report.applied.rows_buried == 6


def test_rows_buried_by_another_root_are_live_after_the_packs_are_sent_again(lab: SpoolLab, tmp_path: Path) -> None:
    lab.fill(6)
    before = set(lab.objects_in())
    _buried_elsewhere(lab, tmp_path)
    report = lab.apply(is_reclaiming=True)
    assert (report.exit_code, lab.packs()) == (0, [])
    assert not before & set(lab.objects_in())  # never under the old key again
    assert _live(lab, 6) == 6
    lab.check_held(6)
    again = lab.apply()
    assert again.applied is not None
    assert (again.exit_code, again.applied.uploaded_bytes) == (0, 0)


def test_what_was_put_again_after_a_burial_elsewhere_stays_the_later_one(lab: SpoolLab, tmp_path: Path) -> None:
    lab.fill(6)
    _buried_elsewhere(lab, tmp_path)
    with lab.opened(tmp_path / "third") as store:  # another root makes one of them anew, with other content
        store.put("s2", {"x": np.full((20, 20), 99, dtype=np.float32)})
        store.flush(timeout_s=60)
    assert lab.apply().exit_code == 0
    assert lab.apply(is_reclaiming=True).exit_code == 0
    assert _live(lab, 6) == 6
    with lab.opened() as store:
        assert np.asarray(store.get("s2").tensors["x"]).ravel()[0] == 99
        assert np.asarray(store.get("s3").tensors["x"]).ravel()[0] == 3


def test_what_another_root_superseded_and_buried_stays_superseded(lab: SpoolLab, tmp_path: Path) -> None:
    lab.fill(6)
    with lab.opened(tmp_path / "third") as store:  # supersedes the row of s2 first
        store.put("s2", {"x": np.full((20, 20), 99, dtype=np.float32)}, input_digest="ab" * 16)
        store.flush(timeout_s=60)
    key = next(record for record in _records(lab) if "s2" in record[1])[0]
    lab.lose(key)
    other = SpoolLab(tmp_path / "other")
    other.clock, other.memory, other.objects = lab.clock, lab.memory, lab.objects
    other.root.parent.mkdir()
    SpoolRoot.open(other.root).close()
    assert other.apply(is_burying=True).exit_code == 0
    lab.apply()
    assert lab.apply(is_reclaiming=True).exit_code == 0
    assert _live(lab, 6) == 6
    with lab.opened() as store:
        assert np.asarray(store.get("s2").tensors["x"]).ravel()[0] == 99


def _records(lab: SpoolLab) -> list[tuple[str, set[str]]]:
    """Keys of the spool's packs, with the ids in each."""
    root = SpoolRoot.open(lab.root)
    spool = Spool.claim(root, clock=lab.clock)
    try:
        return [
            (str(record.key), {entry.sample_id.text for entry in spool.journal.entries(record.pack_id)})
            for record in spool.journal.packs()
        ]
    finally:
        spool.close()
        root.close()


def test_a_new_root_without_a_marker_does_not_settle_the_run(lab: SpoolLab) -> None:
    SpoolRoot.open(lab.root).close()
    with pytest.raises(StoreMissing):
        lab.apply()
    assert lab.memory._objects == {}
    lab.fill(3)
    lab.check_held(3)
