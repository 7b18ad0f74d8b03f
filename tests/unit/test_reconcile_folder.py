"""Reconciling a folder: what is found, what is done about it, and what never happens."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.adopt.place import PRIVATE_NAME
from durastore.errors import (
    ConfigError,
    FormatUnsupported,
    InventoryIncomplete,
    NotVerified,
    RootMismatch,
    SameFailureDomain,
    SpoolLocked,
    StoreMissing,
)
from durastore.formats.file_keys import file_key
from durastore.formats.keys import marker_key
from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.fsio import lease
from durastore.fsio.folder import Folder
from durastore.fsio.sys import SYS
from durastore.manifest.marker_store import ensure_marker
from durastore.manifest.snapshot import fetch_snapshot
from durastore.manifest.view import fetch_view
from durastore.model import Digest, ObjectKey, SampleId
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.memory import MemoryStore
from durastore.read.remote import fetch_sample
from durastore.reclaim import foreign
from durastore.reconcile import local
from durastore.reconcile.folder import plan_folder
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool
from durastore.testing.faulty import Fault, FaultRule, FaultyStore
from tests.unit.reconcile_lab import PREFIX, FolderLab, by_kind, npy, path_of


@pytest.fixture
def lab(tmp_path: Path) -> FolderLab:
    return FolderLab(tmp_path / "data")


def _fill(lab: FolderLab, count: int = 5) -> dict[str, bytes]:
    files = {f"a/{number}.npy": npy(number) for number in range(count)}
    for path, data in files.items():
        lab.write(path, data)
    return files


def test_looking_changes_nothing_anywhere(lab: FolderLab) -> None:
    files = _fill(lab)
    report = lab.run()
    assert report.exit_code == 12
    assert by_kind(report.findings) == {("only-local", "local"): set(files)}
    assert lab.files() == files
    assert not (lab.folder / PRIVATE_NAME).exists()
    assert lab.keys("") == []


def test_what_is_only_local_is_sent_read_back_and_listed(lab: FolderLab) -> None:
    files = _fill(lab)
    report = lab.apply()
    assert report.applied is not None
    assert (report.exit_code, report.applied.uploaded, report.findings) == (0, 5, ())
    assert lab.bucket_files() == {path: {data} for path, data in files.items()}
    assert lab.files() == files
    again = lab.apply()
    assert again.applied is not None
    assert (again.exit_code, again.applied.uploaded, len(lab.keys("manifest"))) == (0, 0, 1)


def test_only_with_reclaim_does_a_file_go_and_only_after_its_settle_time(lab: FolderLab) -> None:
    _fill(lab)
    before = lab.clock.monotonic()
    report = lab.clear(settle_s=60.0)
    assert report.applied is not None
    assert (report.exit_code, report.applied.reclaimed) == (0, 5)
    assert lab.clock.monotonic() - before >= 60.0
    assert lab.files() == {}
    assert (lab.folder / "a").is_dir()
    lab.check_nothing_lost()
    assert lab.clear().exit_code == 0


def test_an_object_that_is_forgotten_while_it_settles_keeps_its_file(tmp_path: Path) -> None:
    # case B62, case B05
    lab = FolderLab(tmp_path / "data")
    files = _fill(lab)
    lab.apply()
    lost = ObjectKey(lab.keys()[2])
    sleep = lab.clock.sleep

    def forget(seconds: float) -> None:
        lab.faulty.lose(lost)
        sleep(seconds)

    lab.clock.sleep = forget  # type: ignore[method-assign]
    try:
        assert lab.clear(settle_s=60.0).exit_code == 13
    except NotVerified:
        pass  # the canary happened to be this one: the whole batch stays
    path = path_of(lost.text)
    assert lab.files()[path] == files[path]


def test_damaged_files_are_set_aside_and_never_sent(lab: FolderLab) -> None:
    # case B88, case B106
    whole = _fill(lab, 2)
    lab.write("cut.npy", npy(9)[:-40])
    lab.write("empty.pt", b"")
    lab.write("zeros.safetensors", bytes(9000))
    lab.write("no.pth", b"PK\x03\x04, and nothing else")
    report = lab.apply()
    assert report.applied is not None
    assert set(report.applied.quarantined) == {"cut.npy", "empty.pt", "zeros.safetensors", "no.pth"}
    assert lab.bucket_files().keys() == whole.keys()
    assert lab.files() == whole
    assert report.exit_code == 12
    assert ("quarantined", "local") in by_kind(report.findings)
    lab.check_nothing_lost()
    again = lab.apply()
    assert again.applied is not None
    assert again.applied.quarantined == {}


def test_zeros_at_a_pages_edge_are_neither_moved_nor_sent_until_somebody_answers_for_them(lab: FolderLab) -> None:
    mask = np.zeros(8192, dtype=np.int64)
    mask[: (8192 - 128) // 8] = 1  # behind 128 bytes of header they end at a page's edge
    target = BytesIO()
    np.save(target, mask)
    lab.write("mask.npy", target.getvalue())
    lab.write("whole.npy", npy(1))
    lost = lab.write("lost.npy", npy(2, rows=5_000))
    data = lost.read_bytes()
    lost.write_bytes(data[:8192])
    os.truncate(lost, len(data))
    lab.written["lost.npy"] = [lost.read_bytes()]
    report = lab.clear()
    assert report.applied is not None
    assert report.applied.quarantined.keys() == {"lost.npy"}
    assert by_kind(report.findings)["truncated", "local"] == {"mask.npy"}
    assert (report.exit_code, set(lab.files()), set(lab.bucket_files())) == (12, {"mask.npy"}, {"whole.npy"})
    done = lab.clear(are_zeros_data=True)
    assert lab.files() == {}
    assert lab.bucket_files()["mask.npy"] == {target.getvalue()}
    assert by_kind(done.findings).keys() == {("quarantined", "local")}
    lab.check_nothing_lost()


def test_what_is_no_data_is_reported_and_stays(lab: FolderLab) -> None:
    # case B03, case B144
    _fill(lab, 1)
    lab.write("notes.txt", b"mine")
    (lab.folder / "broken.npy").symlink_to("nowhere")
    (lab.folder / "loop").symlink_to(lab.folder)
    outside = lab.folder.parent / "outside.npy"
    outside.write_bytes(npy(77))
    (lab.folder / "outside.npy").symlink_to(outside)
    os.mkfifo(lab.folder / "pipe.npy")
    report = lab.clear()
    assert by_kind(report.findings)["untracked", "local"] == {
        "notes.txt",
        "broken.npy",
        "loop",
        "outside.npy",
        "pipe.npy",
    }
    assert report.exit_code == 12
    assert lab.files() == {"notes.txt": b"mine"}
    assert outside.read_bytes() == npy(77)
    assert set(os.listdir(lab.folder)) >= {"broken.npy", "loop", "outside.npy", "pipe.npy"}


def test_names_that_cannot_be_keys_are_reported_and_stay(lab: FolderLab) -> None:
    # case B132
    odd = [b"\xff\xfe.npy", "e\u0301.npy".encode(), b"line\nbreak.npy"]
    for name in odd:
        with open(os.path.join(os.fsencode(lab.folder), name), "wb") as file:
            file.write(npy(1))
    lab.write("\u00e9.npy", npy(2))  # NFC, and another file than its decomposed twin
    report = lab.clear()
    assert len(by_kind(report.findings)["untracked", "local"]) == 3
    assert report.exit_code == 12
    assert set(os.listdir(os.fsencode(lab.folder))) >= set(odd)
    assert lab.bucket_files().keys() == {"\u00e9.npy"}


def test_odd_names_go_through_exactly(lab: FolderLab) -> None:
    # case B128, case B130, case B133, case B135, case B29
    names = [
        "a+b c%2B.npy",
        "a/b.npy",
        "a%2Fb.npy",
        "w*?[]#&;.npy",
        "w.npy",
        "!'()*.npy",
        "a-b.npy",
        "a.b.npy",
        " .npy",
    ]
    for number, name in enumerate(names):
        lab.write(name, npy(number))
    assert lab.apply().exit_code == 0
    assert lab.bucket_files() == {name: {npy(number)} for number, name in enumerate(names)}
    (lab.folder / "w.npy").unlink()
    del lab.written["w.npy"]
    report = lab.clear()
    assert report.applied is not None
    assert (report.exit_code, report.applied.reclaimed) == (0, len(names) - 1)
    lab.check_nothing_lost()


def test_names_that_differ_by_case_are_two_files(lab: FolderLab) -> None:
    # case B127
    lab.write("A.npy", npy(1))
    lab.write("a.npy", npy(2))
    report = lab.apply()
    assert (report.exit_code, report.case_collisions) == (0, 1)
    assert lab.bucket_files() == {"A.npy": {npy(1)}, "a.npy": {npy(2)}}


def test_the_time_of_a_file_decides_nothing(lab: FolderLab) -> None:
    # case B91, case B143
    files = _fill(lab, 3)
    lab.apply()
    for years, path in zip((10, -10, 0), files, strict=True):
        stamp = lab.clock.now_ns() + years * 365 * 86_400 * 10**9
        os.utime(lab.folder / path, ns=(stamp, stamp))
    # it only says that the file may be another one by now, which its bytes then deny
    assert by_kind(lab.run().findings) == {("unhashed", "local"): set(files)}
    assert lab.run(is_deep=True).exit_code == 0
    report = lab.clear()
    assert report.applied is not None
    assert (report.exit_code, report.applied.uploaded, report.applied.reclaimed) == (0, 0, 3)


def test_a_flipped_byte_is_found_by_deep_and_shallow_says_that_it_did_not_look(lab: FolderLab) -> None:
    # case B73
    files = _fill(lab, 3)
    lab.apply()
    target = lab.folder / "a/1.npy"
    stat = target.stat()
    data = bytearray(target.read_bytes())
    data[-5] ^= 1
    lab.write("a/1.npy", bytes(data))
    os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    shallow = lab.run()
    assert shallow.exit_code == 12  # its change time says that it may be another file
    assert by_kind(shallow.findings) == {("unhashed", "local"): {"a/1.npy"}}
    assert any("not re-hashed" in line for line in shallow.lines())
    deep = lab.run(is_deep=True)
    assert by_kind(deep.findings) == {("divergent", "local"): {"a/1.npy"}}
    assert deep.exit_code == 12
    # what was recorded stays in the bucket, and so does what is here now
    assert lab.apply(is_deep=True).exit_code == 0
    assert lab.bucket_files()["a/1.npy"] == {files["a/1.npy"], bytes(data)}


def test_a_changed_file_of_equal_size_is_not_freed_for_the_old_object(lab: FolderLab) -> None:
    # case B25
    files = _fill(lab, 2)
    lab.apply()
    data = bytearray((lab.folder / "a/1.npy").read_bytes())
    data[-5] ^= 1
    lab.write("a/1.npy", bytes(data))
    report = lab.clear()
    assert report.applied is not None
    assert (report.exit_code, report.applied.uploaded, report.applied.reclaimed) == (0, 1, 2)
    assert lab.bucket_files()["a/1.npy"] == {files["a/1.npy"], bytes(data)}


def test_files_of_one_name_and_size_on_two_machines_are_two_files(lab: FolderLab) -> None:
    _fill(lab, 3)
    lab.apply()
    other = FolderLab(lab.folder.parent / "other", lab.objects)
    other.memory, other.clock = lab.memory, lab.clock
    for number in range(3):
        other.write(f"a/{number}.npy", npy(100 + number))
    report = other.run()
    assert by_kind(report.findings) == {("unhashed", "local"): {"a/0.npy", "a/1.npy", "a/2.npy"}}
    assert (report.exit_code, report.adds_up) == (12, True)
    done = other.clear()
    assert done.applied is not None
    assert (done.exit_code, done.applied.uploaded, done.applied.reclaimed) == (0, 3, 3)
    other.check_nothing_lost()
    assert lab.run().exit_code == 0
    assert lab.bucket_files()["a/0.npy"] == {npy(0), npy(100)}


def test_a_damaged_or_foreign_list_of_hashes_counts_for_nothing(lab: FolderLab) -> None:
    _fill(lab, 2)
    lab.apply()
    (ledger,) = (lab.folder / PRIVATE_NAME).glob("hashed-*.log")
    ledger.write_bytes(ledger.read_bytes()[:-30])
    assert by_kind(lab.run().findings).keys() == {("unhashed", "local")}
    assert lab.apply().exit_code == 0
    assert lab.run().exit_code == 0


def test_a_lost_object_whose_file_is_here_is_sent_again(lab: FolderLab) -> None:
    # case B71, case B72, case B69
    files = _fill(lab)
    lab.apply()
    for key in lab.keys()[:2]:
        lab.memory._objects.pop(ObjectKey(key))
    report = lab.run()
    assert len(by_kind(report.findings)["dangling", "local"]) == 2
    done = lab.apply()
    assert done.applied is not None
    assert (done.exit_code, done.applied.uploaded) == (0, 2)
    assert lab.bucket_files() == {path: {data} for path, data in files.items()}
    assert lab.run().exit_code == 0


def test_a_lost_object_without_a_file_is_named_until_the_file_is_back(lab: FolderLab) -> None:
    # case B93
    files = _fill(lab)
    lab.clear()
    gone = lab.keys()[1]
    lab.memory._objects.pop(ObjectKey(gone))
    for report in (lab.run(), lab.apply(is_burying=True), lab.run()):
        assert by_kind(report.findings) == {("dangling", "manifest"): {gone}}
        assert (report.exit_code, report.adds_up) == (12, True)
        counts = {each.what: each.count for each in report.counts}
        assert (counts["manifest objects"], counts["bucket objects"]) == (5, 4)
    path = path_of(gone)
    lab.write(path, files[path])  # the next extraction makes it again, byte for byte
    done = lab.apply()
    assert done.applied is not None
    assert (done.exit_code, done.applied.uploaded) == (0, 1)
    assert lab.run().exit_code == 0
    assert lab.clear().exit_code == 0
    lab.check_nothing_lost()


def test_objects_without_rows_are_read_and_listed(lab: FolderLab) -> None:
    lab.write("here.npy", npy(0))
    lab.apply()
    data = npy(5)
    key = file_key(PREFIX, SampleId("x/y.npy"), digest=Digest.of(data))
    lab.memory.put(key, data, crc64nvme=crc64nvme_b64(data), metadata={})
    wrong = file_key(PREFIX, SampleId("wrong.npy"), digest=Digest.of(b"other"))
    lab.memory.put(wrong, data, crc64nvme=crc64nvme_b64(data), metadata={})
    lab.memory.put(ObjectKey(f"{PREFIX}/files/stranger"), b"x", crc64nvme=None, metadata={})
    report = lab.run()
    assert by_kind(report.findings) == {
        ("orphan", "bucket"): {key.text, wrong.text},
        ("untracked", "bucket"): {f"{PREFIX}/files/stranger"},
    }
    done = lab.apply()
    assert done.applied is not None
    assert (done.applied.rows_rebuilt, set(done.applied.failed), done.exit_code) == (1, {wrong.text}, 3)
    assert len(lab.keys()) == 4


def test_a_listing_that_is_empty_contradicts_the_manifest(lab: FolderLab) -> None:
    # case B18
    _fill(lab, 40)
    lab.apply()
    puts = len(lab.keys("manifest"))
    lab.objects = _Hiding(lab.memory, hidden=set(lab.keys()))
    report = lab.run()
    assert report.exit_code == 12
    assert any("contradicts" in finding.meaning for finding in report.findings)
    done = lab.apply()
    assert done.applied is not None
    assert (done.exit_code, done.applied.uploaded, done.applied.rows_buried) == (12, 0, 0)
    assert len(lab.keys("manifest")) == puts


def test_omitted_keys_are_asked_for_one_by_one(lab: FolderLab) -> None:
    # case B141
    _fill(lab, 40)
    lab.apply()
    hidden = set(lab.keys()[10:13])
    lab.objects = _Hiding(lab.memory, hidden=hidden)
    lab.write("new.npy", npy(99))
    done = lab.apply()
    assert done.applied is not None
    assert by_kind(done.findings)["unreadable", "bucket"] == hidden
    assert (done.exit_code, done.applied.uploaded, done.applied.rows_buried) == (12, 0, 0)
    assert done.applied.failed == {}


class _Hiding(FaultyStore):
    """A store whose listing leaves keys out; a HEAD finds them."""

    def __init__(self, inner: MemoryStore, *, hidden: set[str]) -> None:
        super().__init__(inner)
        self._hidden = hidden

    def list(self, prefix: str, *, start_after: str | None = None) -> Any:
        from durastore.objectstore.listing import pages_of

        pages = ([stat for stat in page if stat.key.text not in self._hidden] for page in self.inner.list(prefix))
        return pages_of(iter(list(pages)), prefix=prefix, start_after=start_after)


def test_a_page_that_comes_twice_is_no_inventory(lab: FolderLab) -> None:
    # case B140
    _fill(lab, 3)
    lab.apply()
    lab.objects = FaultyStore(lab.memory, FaultRule(op="list", fault=Fault.REPEAT_PAGE, key_part="files/", count=None))
    lab.write("new.npy", npy(99))
    done = lab.apply()
    assert done.applied is not None
    assert (done.exit_code, done.applied.uploaded) == (12, 0)
    assert any("cannot be used" in finding.meaning for finding in done.findings)


def test_a_folder_that_cannot_be_read_is_named_and_nothing_is_called_lost(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B16
    _fill(lab, 3)
    lab.apply()
    lab.memory._objects.pop(ObjectKey(lab.keys()[0]))
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if isinstance(path, int) and os.readlink(f"/proc/self/fd/{path}") == str(lab.folder / "a"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    done = lab.apply()
    assert done.applied is not None
    assert (done.exit_code, done.applied.rows_buried) == (12, 0)
    assert by_kind(done.findings)["unreadable", "local"] == {"a/"}


def test_a_root_that_is_missing_empty_or_replaced_is_refused(lab: FolderLab) -> None:
    # case B17
    with pytest.raises(RootMismatch):
        lab.run()
    with pytest.raises(RootMismatch):
        lab.apply()
    assert os.listdir(lab.folder) == []
    _fill(lab, 1)
    lab.apply()
    moved = lab.folder.rename(lab.folder.parent / "moved")
    with pytest.raises(StoreMissing):
        lab.run()
    lab.folder.mkdir()
    (lab.folder / PRIVATE_NAME).mkdir()
    (lab.folder / PRIVATE_NAME / ROOT_MARKER_NAME).write_bytes((moved / PRIVATE_NAME / ROOT_MARKER_NAME).read_bytes())
    with pytest.raises(RootMismatch):
        lab.run()


@pytest.mark.parametrize("found", ["nothing", "an inode", "no right to look"])
def test_a_new_disk_in_the_place_of_the_old_one_is_refused(
    lab: FolderLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    # case B17: a fresh ext4 has lost+found at its root, which only root may read
    _fill(lab, 2)
    assert lab.apply().exit_code == 0
    lab.folder.rename(tmp_path / "the old disk")
    (lab.folder / "lost+found").mkdir(parents=True)
    if found == "an inode":
        (lab.folder / "lost+found" / "#12").write_bytes(b"x")
    if found == "no right to look":
        scandir = os.scandir

        def refuse(path: Any) -> Any:
            if isinstance(path, int) and os.readlink(f"/proc/self/fd/{path}").endswith("lost+found"):
                raise PermissionError(13, "Permission denied")
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
    objects = dict(lab.memory._objects)
    with pytest.raises(RootMismatch, match="the manifest has 2 files"):
        lab.run()
    for act in (lab.apply, lab.clear):
        with pytest.raises(RootMismatch, match="is empty"):
            act()
    assert os.listdir(lab.folder) == ["lost+found"]
    assert lab.memory._objects == objects


def test_a_folder_with_files_may_be_the_root_of_a_file_system(lab: FolderLab) -> None:
    (lab.folder / "lost+found").mkdir()
    _fill(lab, 2)
    assert lab.apply().exit_code == 0


def test_a_folder_inside_a_root_and_a_root_inside_a_folder(lab: FolderLab) -> None:
    # case B146
    _fill(lab, 2)
    inner = FolderLab(lab.folder / "inner", lab.objects)
    inner.write("x.npy", npy(50))
    inner.apply()
    report = lab.apply()
    assert set(lab.bucket_files()) == {"a/0.npy", "a/1.npy", "x.npy"}
    assert by_kind(report.findings)["untracked", "local"] == {"inner/"}
    with pytest.raises(RootMismatch):
        FolderLab(lab.folder / "a", lab.objects).run()


def test_a_recreated_bucket_gives_no_plan(lab: FolderLab) -> None:
    # case B164
    files = _fill(lab, 2)
    lab.apply()
    lab.memory._objects.clear()
    with pytest.raises(StoreMissing):
        lab.clear()
    FolderLab(lab.folder.parent / "other", lab.objects).write("z.npy", npy(3))
    FolderLab(lab.folder.parent / "other", lab.objects).apply()  # somebody made another one there
    with pytest.raises(InventoryIncomplete):
        lab.clear()
    assert lab.files() == files


def test_objects_without_a_marker_give_no_plan(lab: FolderLab) -> None:
    _fill(lab, 2)
    lab.apply()
    lab.memory._objects.pop(marker_key(PREFIX))
    other = FolderLab(lab.folder.parent / "other", lab.objects)
    other.write("z.npy", npy(3))
    with pytest.raises(InventoryIncomplete):
        other.apply()


def test_two_at_once_are_refused(lab: FolderLab) -> None:
    _fill(lab, 1)
    lab.apply()
    root = SpoolRoot.open(lab.folder / PRIVATE_NAME)
    spool = Spool.claim_first(root, clock=lab.clock)
    try:
        with pytest.raises(SpoolLocked):
            lab.clear()
        assert lab.run().exit_code == 0  # looking needs no lock
    finally:
        spool.close()
        root.close()


def test_a_bucket_on_the_same_disk_frees_nothing(lab: FolderLab, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _fill(lab, 1)
    domain = f"disk:{lab.folder.stat().st_dev}"
    monkeypatch.setattr(FaultyStore, "failure_domain", property(lambda self: domain))
    with pytest.raises(SameFailureDomain):
        lab.clear()
    assert lab.files() == files


# --- files that change or are being written --------------------------------------------------------------------------


def test_a_file_that_is_open_for_writing_is_left_alone(lab: FolderLab) -> None:
    # case B37, case B124
    _fill(lab, 2)
    with lab.held_open_for_writing("a/1.npy"):
        report = lab.clear()
        assert report.applied is not None
        assert by_kind(report.findings) == {("in-flight", "local"): {"a/1.npy"}}
        assert (report.exit_code, report.applied.reclaimed) == (12, 1)
        assert lab.bucket_files().keys() == {"a/0.npy"}
    assert lab.files().keys() == {"a/1.npy"}
    assert lab.clear().exit_code == 0


def test_a_writer_that_comes_before_the_last_look_keeps_the_file(lab: FolderLab) -> None:
    _fill(lab, 2)
    lab.apply()
    sleep = lab.clock.sleep
    with contextlib.ExitStack() as stack:

        def write(seconds: float) -> None:
            stack.enter_context(lab.held_open_for_writing("a/1.npy"))
            sleep(seconds)

        lab.clock.sleep = write  # type: ignore[method-assign]
        report = lab.clear(settle_s=60.0)
    assert report.applied is not None
    assert (report.exit_code, report.applied.reclaimed) == (13, 1)
    assert lab.files().keys() == {"a/1.npy"}
    lab.check_nothing_lost()


def test_a_file_replaced_while_copies_settle_is_kept(lab: FolderLab) -> None:
    _fill(lab, 3)
    lab.apply()
    sleep = lab.clock.sleep

    def replaced(seconds: float) -> None:
        lab.write("a/2.npy", npy(222))
        sleep(seconds)

    lab.clock.sleep = replaced  # type: ignore[method-assign]
    report = lab.clear(settle_s=60.0)
    assert report.applied is not None
    assert (report.exit_code, set(report.applied.unproven)) == (13, {"a/2.npy"})
    assert lab.files() == {"a/2.npy": npy(222)}


def test_where_there_are_no_leases_nothing_goes(lab: FolderLab, monkeypatch: pytest.MonkeyPatch) -> None:
    from durastore.fsio import lease

    files = _fill(lab, 2)
    monkeypatch.setattr(lease, "_SETLEASE", None)
    report = lab.clear()
    assert report.applied is not None
    assert (report.exit_code, report.applied.reclaimed, len(report.applied.unproven)) == (13, 0, 2)
    assert lab.files() == files


def test_another_name_of_a_file_keeps_every_byte(lab: FolderLab) -> None:
    # case B11, case B35
    files = _fill(lab, 1)
    other = lab.folder.parent / "other-name.npy"
    os.link(lab.folder / "a/0.npy", other)
    assert lab.clear().exit_code == 0
    assert other.read_bytes() == files["a/0.npy"]


# --- interrupted -----------------------------------------------------------------------------------------------------


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("at", range(1, 14))
def test_a_stop_at_any_step_of_freeing_loses_nothing_and_the_next_run_ends_it(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    # case B102
    files = _fill(lab, 2)
    lab.apply()
    steps = _Steps(monkeypatch, at)
    with monkeypatch.context() as patch:
        patch.setattr(foreign, "_restore", lambda place, private: _stop())  # a killed process tidies nothing up
        try:
            lab.clear()
        except _Killed:
            pass
        finally:
            steps.is_armed = False
    lab.check_nothing_lost()
    report = lab.clear()
    assert report.exit_code == 0
    assert lab.files() == {}
    assert not list((lab.folder / PRIVATE_NAME / "going").iterdir())
    assert lab.bucket_files() == {path: {data} for path, data in files.items()}


def _stop() -> str:
    raise _Killed


class _Steps:
    """Stops before the n-th system call that changes a name or makes one durable, while files are freed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.is_armed = False
        self._left = at
        execute = foreign.ForeignReclaimer.execute

        def armed(reclaimer: Any, records: Any) -> Any:
            self.is_armed = True
            return execute(reclaimer, records)

        monkeypatch.setattr(foreign.ForeignReclaimer, "execute", armed)
        for name in ("link", "unlink", "fsync"):
            monkeypatch.setattr(SYS, name, self._counting(getattr(SYS, name)))

    def _counting(self, call: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.is_armed:
                self._left -= 1
                if self._left == 0:
                    raise _Killed
            return call(*args, **kwargs)

        return counted


def test_a_moved_file_whose_name_was_taken_goes_to_quarantine(lab: FolderLab, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill(lab, 1)
    lab.apply()
    with monkeypatch.context() as patch:
        patch.setattr(foreign, "_restore", lambda place, private: _stop())
        patch.setattr(foreign, "unlink_proven", lambda *args, **kwargs: _stop())
        with pytest.raises(_Killed):
            lab.clear()
    assert lab.files() == {}
    lab.write("a/0.npy", npy(333))  # somebody made a new file of that name
    report = lab.apply()
    assert report.applied is not None
    assert report.applied.moved_back == ["a/0.npy"]
    assert lab.files() == {"a/0.npy": npy(333)}
    assert npy(0) in lab.aside()
    lab.check_nothing_lost()


def test_a_stranger_in_the_private_folder_goes_to_quarantine(lab: FolderLab) -> None:
    _fill(lab, 1)
    lab.apply()
    (lab.folder / PRIVATE_NAME / "going" / "x").write_bytes(b"whose?")
    lab.apply()
    assert b"whose?" in lab.aside()


def test_a_wrong_copy_stops_reclaiming_here_until_somebody_looked(lab: FolderLab) -> None:
    files = _fill(lab, 3)
    lab.apply()
    keys = lab.keys()
    sleep = lab.clock.sleep

    def spoil(seconds: float) -> None:
        for key in keys:
            lab.faulty.damage(ObjectKey(key), Fault.FLIP_BYTE)
        sleep(seconds)

    lab.clock.sleep = spoil  # type: ignore[method-assign]
    with pytest.raises(NotVerified):
        lab.clear(settle_s=60.0)
    lab.clock.sleep = sleep  # type: ignore[method-assign]
    lab.objects = FaultyStore(lab.memory)
    with pytest.raises(NotVerified, match="stopped"):
        lab.clear()
    assert lab.files() == files
    with Folder.open(lab.folder / PRIVATE_NAME) as root:
        assert [name for name in root.names() if name.startswith("reclaim-stop-")]


def test_a_row_of_a_file_is_no_sample(lab: FolderLab) -> None:
    _fill(lab, 1)
    lab.apply()
    snapshot = fetch_snapshot(lab.memory, PREFIX)
    row = fetch_view(lab.memory, snapshot).row(SampleId("a/0.npy"))
    assert row is not None
    assert (row.entry.provenance, row.object.digest) == ("asserted", Digest.of(npy(0)))
    with pytest.raises(FormatUnsupported, match="kept as it is"):
        fetch_sample(lab.memory, row)


def test_a_file_touched_while_copies_settle_is_kept_until_the_next_run(lab: FolderLab) -> None:
    files = _fill(lab, 2)
    lab.apply()
    sleep = lab.clock.sleep

    def touch(seconds: float) -> None:
        os.utime(lab.folder / "a/1.npy")
        sleep(seconds)

    lab.clock.sleep = touch  # type: ignore[method-assign]
    report = lab.clear(settle_s=60.0)
    assert report.applied is not None
    assert (report.exit_code, set(report.applied.unproven)) == (13, {"a/1.npy"})
    assert lab.files() == {"a/1.npy": files["a/1.npy"]}
    lab.clock.sleep = sleep  # type: ignore[method-assign]
    assert lab.clear().exit_code == 0


def _replace_before_the_move(lab: FolderLab, monkeypatch: pytest.MonkeyPatch, *, path: str, data: bytes) -> None:
    """A producer finishes its next file under the name, at the last moment there is."""
    plain, is_due = SYS.rename_new, [True]

    def rename_new(source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        if is_due.pop() if is_due else False:
            (lab.folder / "tmp-producer").write_bytes(data)
            os.replace(lab.folder / "tmp-producer", lab.folder / path)
        plain(source, target, source_fd=source_fd, target_fd=target_fd)

    monkeypatch.setattr(SYS, "rename_new", rename_new)


def test_a_file_that_came_under_the_name_while_it_was_moved_is_put_back(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write("a/0.npy", npy(0))
    lab.apply()
    _replace_before_the_move(lab, monkeypatch, path="a/0.npy", data=npy(1))
    lab.clear()
    assert (lab.folder / "a/0.npy").read_bytes() == npy(1)
    lab.check_nothing_lost()


def test_a_damaged_file_that_was_written_anew_while_it_was_moved_is_put_back(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write("a/0.npy", npy(0)[:-16])
    _replace_before_the_move(lab, monkeypatch, path="a/0.npy", data=npy(1))
    report = lab.apply()
    assert (lab.folder / "a/0.npy").read_bytes() == npy(1)
    assert report.exit_code != 0


def test_nothing_is_moved_where_the_file_system_cannot_rename_without_overwriting(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        raise OSError(errno.EINVAL, "not here")

    lab.write("a/0.npy", npy(0))
    lab.write("a/1.npy", npy(1)[:-16])
    lab.apply()
    monkeypatch.setattr(SYS, "rename_new", refuse)
    lab.clear()
    assert (lab.folder / "a/0.npy").read_bytes() == npy(0)


def test_the_private_folder_is_not_reconciled_by_itself(lab: FolderLab) -> None:
    lab.write("whole.npy", npy(1))
    lab.write("cut.npy", npy(2)[:-8])
    lab.apply()
    outer = lab.folder
    for below in ("", "w-00", "w-00/quarantine", "going"):
        lab.folder = outer / PRIVATE_NAME / below
        with pytest.raises(RootMismatch):
            lab.run()
    (outer / PRIVATE_NAME / ROOT_MARKER_NAME).unlink()
    lab.folder = outer
    with pytest.raises(RootMismatch):  # it holds the quarantine
        lab.run()
    lab.folder = outer / PRIVATE_NAME / "w-00" / "quarantine"
    with pytest.raises(RootMismatch):
        lab.run()


def test_what_may_be_whole_is_reported_and_neither_moved_nor_sent(lab: FolderLab) -> None:
    two = npy(1) + npy(2)  # as numpy's documentation of `save` shows it
    for path, data in (("two.npy", two), (".npy", npy(3)), ("sub/.safetensors", npy(4)), ("x.pt", b"text")):
        lab.write(path, data)
    lab.write("a.npy", npy(5))
    files = lab.files()
    report = lab.apply()
    assert report.applied is not None
    assert (report.applied.quarantined, report.applied.failed, report.applied.uploaded) == ({}, {}, 1)
    assert by_kind(report.findings)["untracked", "local"] == {"two.npy", ".npy", "sub/.safetensors", "x.pt"}
    assert (report.exit_code, lab.files()) == (12, files)


def test_a_quarantined_file_called_like_a_journal_is_told(lab: FolderLab) -> None:
    lab.write("whole.npy", npy(1))
    lab.write("journal-1.npy", npy(0)[:-16])
    assert lab.apply().exit_code == 12
    assert by_kind(lab.run().findings) == {("quarantined", "local"): {"journal-1.npy"}}


def test_a_look_tells_what_an_interrupted_reclaim_left_in_the_private_folder(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write("a/0.npy", npy(0))
    lab.apply()

    def stop(*_: object, **__: object) -> str:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(foreign, "_restore", stop)
        patch.setattr(foreign, "unlink_proven", stop)
        with pytest.raises(_Killed):
            lab.clear()
    assert lab.files() == {}
    for is_deep in (False, True):
        report = lab.run(is_deep=is_deep)
        assert (report.exit_code, len(by_kind(report.findings)["in-flight", "local"])) == (12, 1)
    assert lab.apply().exit_code == 0
    assert lab.files() == {"a/0.npy": npy(0)}


def test_strangers_in_the_private_folder_are_told_and_stay(lab: FolderLab) -> None:
    lab.write("a/0.npy", npy(0))
    assert lab.apply().exit_code == 0
    private = lab.folder / PRIVATE_NAME
    (private / "mine.npy").write_bytes(npy(3))
    (private / "going" / "x").mkdir()
    (private / "w-00" / "notes").mkdir()
    for _ in range(2):
        report = lab.apply()
        kinds = by_kind(report.findings)
        assert report.exit_code == 12
        assert kinds["untracked", "local"] == {f"{PRIVATE_NAME}/mine.npy", f"{PRIVATE_NAME}/w-00/notes"}
        assert kinds["in-flight", "local"] == {"x"}
    assert (private / "mine.npy").read_bytes() == npy(3)


def test_a_private_folder_that_is_a_link_is_refused(lab: FolderLab) -> None:
    lab.write("a/0.npy", npy(0))
    lab.apply()
    second = lab.folder.parent / "second"
    second.mkdir()
    (second / "b.npy").write_bytes(npy(1))
    (second / PRIVATE_NAME).symlink_to(lab.folder / PRIVATE_NAME)
    lab.folder = second
    for is_applied in (False, True):
        with pytest.raises(RootMismatch, match="no folder that can be opened"):
            lab.run(is_applied=is_applied)
    assert [path.name for path in second.iterdir() if path.name != PRIVATE_NAME] == ["b.npy"]


def test_a_file_open_for_writing_is_never_called_safe(lab: FolderLab) -> None:
    lab.write("a/0.npy", npy(0))
    lab.write("a/1.npy", npy(1))
    assert lab.apply().exit_code == 0
    with lab.held_open_for_writing("a/0.npy"):
        for asked in ({}, {"is_deep": True}, {"is_applied": True}):
            report = lab.run(**asked)
            assert (report.exit_code, by_kind(report.findings)) == (12, {("in-flight", "local"): {"a/0.npy"}})
        assert lab.clear().exit_code == 12
        assert set(lab.files()) == {"a/0.npy"}
    assert lab.clear().exit_code == 0


def test_a_hash_made_beside_a_mapped_writer_is_not_kept(lab: FolderLab) -> None:
    # a page that is dirty already is written without a new time
    path = lab.write("a/0.npy", npy(0, rows=4000))
    assert lab.apply().exit_code == 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        file.close()
        view[4096] = view[4096]  # the page is dirty now, its times are set; the content is still the row's
        assert lab.apply().exit_code == 12
        view[4096] = view[4096] ^ 1
    assert lab.run().exit_code == 12
    assert lab.run(is_deep=True).exit_code == 12


def test_without_leases_nothing_is_put_on_record(lab: FolderLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write("a/0.npy", npy(0))
    monkeypatch.setattr(lease, "_SETLEASE", None)
    assert lab.apply().exit_code == 12  # sent, and not known to be unchanged since
    assert by_kind(lab.apply().findings) == {("unhashed", "local"): {"a/0.npy"}}
    assert not list((lab.folder / PRIVATE_NAME).glob("hashed-*"))


def test_a_marker_that_is_hidden_for_a_moment_is_not_replaced(lab: FolderLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # also at endpoints that ignore If-None-Match
    lab.write("a/0.npy", npy(0))
    lab.apply()
    before = lab.memory.fetch(marker_key(PREFIX))
    lab.write("a/1.npy", npy(1))
    honest = MemoryStore.put

    def put(store: Any, key: ObjectKey, body: Any, *, if_absent: bool = False, **asked: Any) -> Any:
        return honest(store, key, body, **asked)

    monkeypatch.setattr(MemoryStore, "put", put)
    lab.faulty.add(FaultRule(op="fetch", fault=Fault.ABSENT, first=2, count=1, key_part="durastore.json"))
    with contextlib.suppress(NotVerified):
        lab.apply()
    assert lab.memory.fetch(marker_key(PREFIX)) == before


def test_a_bucket_that_is_another_one_since_the_look_ends_the_run(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write("a/0.npy", npy(0))
    lab.apply()
    files = lab.files()
    planned = plan_folder

    def exchange(facts: Any) -> Any:
        lab.memory._objects.clear()
        ensure_marker(lab.memory, PREFIX, run=None, clock=lab.clock)
        return planned(facts)

    monkeypatch.setattr("durastore.reconcile.run.plan_folder", exchange)
    with pytest.raises(NotVerified):
        lab.clear()
    assert lab.files() == files


def test_a_folder_that_became_a_link_is_not_walked(lab: FolderLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write("a/0.npy", npy(0))
    lab.apply()
    lab.write("b/new.npy", npy(2))  # only here
    away, empty = lab.folder.parent / "away", lab.folder.parent / "empty"
    empty.mkdir()
    scan = local._scan

    def swap(root: Any, folder: bytes, **asked: Any) -> Any:
        if folder != b"b/":
            return scan(root, folder, **asked)
        (lab.folder / "b").rename(away)
        (lab.folder / "b").symlink_to(empty)
        try:
            return scan(root, folder, **asked)
        finally:
            (lab.folder / "b").unlink()
            away.rename(lab.folder / "b")

    monkeypatch.setattr(local, "_scan", swap)
    report = lab.run()
    assert (report.exit_code, by_kind(report.findings)) == (12, {("unreadable", "local"): {"b/"}})


@pytest.mark.parametrize("settle_s", [float("nan"), -1.0, float("inf")])
def test_a_settle_time_that_is_none_is_refused(lab: FolderLab, settle_s: float) -> None:
    files = _fill(lab)
    with pytest.raises(ConfigError):
        lab.clear(settle_s=settle_s)
    assert lab.files() == files


def test_deep_apply_reads_the_objects_of_files_that_stay(lab: FolderLab) -> None:
    files = _fill(lab, 2)
    assert lab.apply().exit_code == 0
    lab.faulty.damage(ObjectKey(lab.keys()[0]), Fault.FLIP_BYTE)
    report = lab.apply(is_deep=True)
    assert report.applied is not None
    assert (report.exit_code, len(report.applied.unproven), lab.files()) == (13, 1, files)
