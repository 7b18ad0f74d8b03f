"""A manifest segment that the bucket lost: its rows are live again after one `--apply`, and the next one is idle."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from durastore.dataset.listing import fetch_listing_of
from durastore.errors import ManifestIncomplete
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import fetch_view
from durastore.model import ObjectKey, SampleId
from durastore.objectstore.port import ObjectStore
from durastore.read.remote import fetch_sample
from durastore.reconcile.report import ReconcileReport
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool
from tests.unit.reconcile_lab import FolderLab, by_kind, npy
from tests.unit.test_reconcile_spools import PREFIX, SpoolLab

_LOST = ("unreadable", "manifest")


@pytest.fixture
def lab(tmp_path: Path) -> SpoolLab:
    return SpoolLab(tmp_path)


def _fill(lab: SpoolLab, *, segments: int) -> list[str]:
    """That many segments by one process, six samples each. Their keys, in order."""
    with lab.opened() as store:
        for number in range(6 * segments):
            store.put(f"s{number}", {"x": np.full((20, 20), number, dtype=np.float32)})
            if number % 6 == 5:
                store.flush(timeout_s=60)
    keys = lab.objects_in("manifest")
    assert len(keys) == segments
    return keys


def _listed(store: ObjectStore) -> set[str]:
    return {name for batch in fetch_listing_of(store, PREFIX).ids() for name in batch}


def _check_live(lab: SpoolLab, count: int) -> None:
    """What `ls` lists and a reader gets from the bucket alone."""
    names = {f"s{number}" for number in range(count)}
    assert _listed(lab.memory) == names
    view = fetch_view(lab.memory, fetch_snapshot(lab.memory, PREFIX))
    for number in range(count):
        row = view.row(SampleId(f"s{number}"))
        assert row is not None
        assert np.asarray(fetch_sample(lab.memory, row).tensors["x"]).ravel()[0] == number


def _check_settled(lab: SpoolLab) -> None:
    """Another run has nothing to do, and does nothing."""
    objects, puts = lab.objects_in(""), lab.objects.count("put")
    again = lab.apply()
    assert again.applied is not None
    assert (again.exit_code, again.findings, again.before) == (0, (), ())
    assert (again.applied.uploaded_bytes, again.applied.rows_rebuilt, again.applied.failed) == (0, 0, {})
    assert (lab.objects_in(""), lab.objects.count("put")) == (objects, puts)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_rows_of_a_lost_segment_are_published_again(lab: SpoolLab, at: int) -> None:
    # case B71: the first and second leave a hole in the writer's numbers, the last one leaves none
    keys = _fill(lab, segments=3)
    lab.lose(keys[at])
    assert keys[at] in by_kind(lab.run().findings)[_LOST]
    assert lab.apply().exit_code == 0
    _check_live(lab, 18)
    assert len(lab.objects_in()) == 18  # no pack was sent again: their objects are there
    _check_settled(lab)


def test_all_segments_lost(lab: SpoolLab) -> None:
    for key in _fill(lab, segments=3):
        lab.lose(key)
    assert lab.apply().exit_code == 0
    _check_live(lab, 18)
    _check_settled(lab)


def test_rows_of_a_damaged_segment_are_published_again(lab: SpoolLab) -> None:
    keys = _fill(lab, segments=2)
    key = ObjectKey(keys[1])
    lab.memory._objects[key] = replace(lab.memory._objects[key], data=b"PAR1 rotten")
    assert keys[1] in by_kind(lab.run().findings)[_LOST]
    assert lab.apply().exit_code == 0
    _check_live(lab, 12)
    _check_settled(lab)


def test_rows_of_reclaimed_packs_come_from_their_objects(lab: SpoolLab) -> None:
    _fill(lab, segments=2)
    assert lab.apply(is_reclaiming=True).exit_code == 0
    assert lab.packs() == []
    for key in lab.objects_in("manifest"):
        lab.lose(key)
    done = lab.apply()
    assert done.applied is not None
    assert (done.exit_code, done.applied.rows_rebuilt) == (0, 12)
    _check_live(lab, 12)
    _check_settled(lab)


def test_a_pack_freed_a_moment_ago_and_still_on_record_hides_no_rows(lab: SpoolLab) -> None:
    """The journal keeps a reclaimed pack until the next opening: it must not answer for rows that are lost."""
    keys = _fill(lab, segments=1)
    _free_all(lab)
    lab.lose(keys[0])
    assert by_kind(lab.run().findings)["orphan", "bucket"] == set(lab.objects_in())
    assert lab.apply().exit_code == 0
    _check_live(lab, 6)
    _check_settled(lab)


def _free_all(lab: SpoolLab) -> None:
    """As a process that was killed right after its reclaim leaves it."""
    with lab.opened() as store:
        store.flush(timeout_s=60)
    with closing(SpoolRoot.open(lab.root)) as root, closing(Spool.claim(root, clock=lab.clock)) as spool:
        for record in spool.journal.packs():
            (spool.packs_folder.path / record.name).unlink()
            assert record.evidence is not None
            spool.journal.record_found_remote(record.pack_id, record.evidence)


def test_a_live_process_keeps_its_packs_and_the_finding_stays(lab: SpoolLab) -> None:
    keys = _fill(lab, segments=1)
    lab.fill(2, start=6, root=lab.root.parent / "other")  # so that the manifest is not empty
    with closing(SpoolRoot.open(lab.root)) as root, closing(Spool.claim(root, clock=lab.clock)):
        lab.lose(keys[0])
        first = lab.apply()
        count = len(lab.objects_in("manifest"))
        again = lab.apply()
        assert (first.exit_code, again.exit_code) == (12, 12)
        assert len(lab.objects_in("manifest")) == count  # nothing new about it is written every time
        assert keys[0] in by_kind(again.findings)[_LOST]
    assert lab.apply().exit_code == 0
    _check_live(lab, 8)
    _check_settled(lab)


def test_a_stop_between_doubt_and_publishing_loses_no_rows(lab: SpoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = _fill(lab, segments=2)
    lab.lose(keys[0])

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("durastore.reconcile.spool_run._work", stop)
        with pytest.raises(KeyboardInterrupt):
            lab.apply()
    assert lab.apply().exit_code == 0
    _check_live(lab, 12)
    _check_settled(lab)


def test_a_segment_that_only_the_listing_lacks_moves_nothing(lab: SpoolLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B18
    keys = _fill(lab, segments=2)
    states = lab.states()
    held = lab.memory._objects
    real = type(lab.memory).list

    def without_it(memory: object, prefix: str, **asked: object) -> object:
        return ([each for each in page if each.key.text != keys[1]] for page in real(lab.memory, prefix, **asked))  # type: ignore[arg-type]

    monkeypatch.setattr(type(lab.memory), "list", without_it)
    report: ReconcileReport = lab.run()
    assert report.exit_code == 12
    assert any("listing cannot be used" in finding.meaning for finding in report.findings)
    monkeypatch.undo()
    assert (lab.states(), lab.memory._objects) == (states, held)


def test_a_folder_whose_last_segment_is_lost(tmp_path: Path) -> None:
    lab = FolderLab(tmp_path / "data")
    for number in range(3):
        lab.write(f"a/{number}.npy", npy(number))
    assert lab.clear().exit_code == 0
    lab.write("b.npy", npy(9))
    assert lab.apply().exit_code == 0
    last = lab.keys("manifest")[:]
    for key in last:
        lab.memory._objects.pop(ObjectKey(key))
    assert by_kind(lab.run().findings)[_LOST]
    assert lab.apply().exit_code == 0
    assert _listed(lab.memory) == {
        "a/0.npy",
        "a/1.npy",
        "a/2.npy",
        "b.npy",
    }
    count = len(lab.keys("manifest"))
    again = lab.apply()
    assert (again.exit_code, again.findings, len(lab.keys("manifest"))) == (0, (), count)


def test_the_store_does_not_open_on_a_hole_that_reconcile_has_not_mended(lab: SpoolLab) -> None:
    keys = _fill(lab, segments=2)
    lab.lose(keys[0])
    with pytest.raises(ManifestIncomplete), lab.opened():
        pass
    assert lab.apply().exit_code == 0
    lab.check_held(12)
