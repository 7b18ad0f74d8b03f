"""`durastore adopt` of files as they are: only the folder's own files, nothing moved, nothing mended beside."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from durastore.adopt.place import PRIVATE_NAME
from durastore.errors import CredentialsRefused, RootMismatch
from durastore.formats.file_keys import file_key
from durastore.model import Digest, ObjectKey, SampleId
from durastore.objectstore.crc import crc64nvme_b64
from durastore.objectstore.location import BucketUrl
from durastore.objectstore.memory import MemoryStore
from durastore.objectstore.whole import WholeObject
from durastore.reconcile.run import reconcile
from durastore.reconcile.session import ReconcileRequest
from durastore.spool.root import SpoolRoot
from durastore.testing.faulty import Fault, FaultRule
from tests.unit.reconcile_lab import PREFIX, FolderLab, by_kind, npy


@pytest.fixture
def lab(tmp_path: Path) -> FolderLab:
    return FolderLab(tmp_path / "data")


def _adopt(lab: FolderLab, *, is_applied: bool = True, **asked: Any) -> Any:
    return lab.run(is_adopting=True, is_applied=is_applied, **asked)


def large_npy(size_bytes: int) -> bytes:
    """A whole file that is not read in one piece."""
    file = io.BytesIO()
    np.save(file, np.arange(1, size_bytes // 8, dtype=np.int64))
    return file.getvalue()


def _mixed(lab: FolderLab) -> dict[str, bytes]:
    """Three whole files, one cut, one of zeros, one that nobody looks into."""
    torch.save({"hidden_state": torch.ones(3)}, lab.folder.parent / "x.ckpt")
    files = {"a/0.npy": npy(0), "a/1.npy": npy(1), "a/2.ckpt": (lab.folder.parent / "x.ckpt").read_bytes()}
    damaged = {"a/cut.npy": npy(7)[:200], "a/zero.npy": bytes(9000), "a/cut.ckpt": files["a/2.ckpt"][:-40]}
    for path, data in {**files, **damaged, "notes.txt": b"mine"}.items():
        lab.write(path, data)
    return files


def test_whole_files_are_listed_and_the_others_named_and_left_where_they_are(lab: FolderLab) -> None:
    # case B88
    files = _mixed(lab)
    before = lab.files()
    report = _adopt(lab)
    assert (report.exit_code, report.applied.uploaded, report.applied.quarantined) == (12, 3, {})
    assert by_kind(report.findings) == {
        ("truncated", "local"): {"a/cut.npy", "a/zero.npy", "a/cut.ckpt"},
        ("untracked", "local"): {"notes.txt"},
    }
    assert lab.bucket_files() == {path: {data} for path, data in files.items()}
    assert lab.files() == before
    lines = "\n".join(report.lines())
    assert "left: nothing: look at it yourself" in lines
    assert "quarantine" not in lines
    again = _adopt(lab)
    assert (again.applied.uploaded, len(lab.keys("manifest")), again.exit_code) == (0, 1, 12)


def test_a_dry_run_tells_and_changes_nothing(lab: FolderLab) -> None:
    files = _mixed(lab)
    before = lab.files()
    report = _adopt(lab, is_applied=False)
    assert report.exit_code == 12
    assert by_kind(report.findings)["only-local", "local"] == files.keys()
    assert "without --dry-run: upload it" in "\n".join(report.lines())
    assert (lab.files(), lab.keys("")) == (before, [])
    assert not (lab.folder / PRIVATE_NAME).exists()


def test_with_reclaim_each_proven_file_goes_and_nothing_else(lab: FolderLab) -> None:
    # case B03
    files = _mixed(lab)
    before = lab.files()
    report = _adopt(lab, is_reclaiming=True)
    assert (report.applied.reclaimed, report.exit_code) == (3, 12)
    assert lab.files() == {path: data for path, data in before.items() if path not in files}
    assert lab.bucket_files() == {path: {data} for path, data in files.items()}
    lab.check_nothing_lost()


def test_a_file_that_is_open_for_writing_is_not_taken_for_complete(lab: FolderLab) -> None:
    # case B37, case B124
    lab.write("a/0.npy", npy(0))
    lab.write("a/1.npy", npy(1))
    with lab.held_open_for_writing("a/1.npy"):
        report = _adopt(lab)
        assert by_kind(report.findings) == {("in-flight", "local"): {"a/1.npy"}}
        assert report.exit_code == 12
        assert lab.bucket_files().keys() == {"a/0.npy"}
    assert _adopt(lab).exit_code == 0


def test_names_that_are_no_keys_are_named_and_stay(lab: FolderLab) -> None:
    # case B132
    odd = [b"\xff\xfe.npy", "e\u0301.npy".encode(), b"line\nbreak.npy"]
    for name in odd:
        with open(os.path.join(os.fsencode(lab.folder), name), "wb") as file:
            file.write(npy(1))
    lab.write("plain.npy", npy(2))
    report = _adopt(lab, is_reclaiming=True)
    assert (len(by_kind(report.findings)["untracked", "local"]), report.exit_code) == (3, 12)
    assert lab.bucket_files().keys() == {"plain.npy"}
    assert set(os.listdir(os.fsencode(lab.folder))) >= set(odd)


def test_what_others_left_in_the_bucket_is_neither_mended_nor_told(lab: FolderLab) -> None:
    lab.write("a.npy", npy(0))
    data = npy(5)
    orphan = file_key(PREFIX, SampleId("x/y.npy"), digest=Digest.of(data))
    assert _adopt(lab).exit_code == 0
    lab.memory.put(orphan, data, crc64nvme=crc64nvme_b64(data), metadata={})
    lab.memory.put(ObjectKey(f"{PREFIX}/files/stranger"), b"x", crc64nvme=None, metadata={})
    report = _adopt(lab)
    assert (report.exit_code, report.findings, report.applied.rows_rebuilt) == (0, (), 0)
    assert lab.run().exit_code == 12  # reconcile tells


def test_an_object_that_a_killed_run_sent_without_its_row_gets_it(lab: FolderLab) -> None:
    lab.write("before.npy", npy(9))
    _adopt(lab)
    lab.write("a.npy", npy(0))
    key = file_key(PREFIX, SampleId("a.npy"), digest=Digest.of(npy(0)))
    lab.memory.put(key, npy(0), crc64nvme=crc64nvme_b64(npy(0)), metadata={})
    report = _adopt(lab)
    assert (report.exit_code, report.applied.uploaded, len(lab.keys())) == (0, 1, 2)
    assert (report.counts[1].what, report.counts[1].count) == ("local files in the manifest", 2)


def test_a_spool_root_is_not_adopted(lab: FolderLab, tmp_path: Path) -> None:
    SpoolRoot.open(tmp_path / "root", is_any_filesystem_allowed=True).close()
    request = ReconcileRequest(
        local=tmp_path / "root", bucket=BucketUrl(kind="memory", bucket="lab", prefix=PREFIX), is_adopting=True
    )
    with pytest.raises(RootMismatch, match="spool root"):
        reconcile(request, objects=lab.objects, clock=lab.clock)


def test_what_was_proven_before_the_bucket_refused_is_listed(lab: FolderLab) -> None:
    for number in range(300):
        lab.write(f"a/{number}.npy", npy(number))
    lab.faulty.add(FaultRule(op="put", fault=Fault.FORBIDDEN, first=150, count=None, key_part="/files/"))
    with pytest.raises(CredentialsRefused):
        _adopt(lab)
    assert lab.faulty.count("put") < 300  # what was not begun by then was not tried
    lab.objects = lab.memory
    left = by_kind(_adopt(lab, is_applied=False).findings)["only-local", "local"]
    assert 150 < len(left) < 300
    report = _adopt(lab)
    assert (report.applied.uploaded, report.exit_code) == (len(left), 0)
    assert len(lab.bucket_files()) == 300


@pytest.mark.parametrize("size", [0, 2 << 20])
@pytest.mark.parametrize("how", ["grows", "is touched"])
def test_a_file_that_changes_while_it_is_hashed_is_not_sent(
    lab: FolderLab, monkeypatch: pytest.MonkeyPatch, how: str, size: int
) -> None:
    path = lab.write("a/0.npy", npy(0) if not size else large_npy(size))

    def changed(fd: int, name: str) -> None:
        if how == "is touched":
            os.utime(path, ns=(1, 1))
            return
        with path.open("ab") as file:
            file.write(b"more")

    monkeypatch.setattr("durastore.fsio.lease._SETLEASE", None)  # with a lease nobody could
    monkeypatch.setattr("durastore.adopt.sending.find_fault", changed)
    report = _adopt(lab)
    assert report.applied.uploaded == 0
    assert "changes while it is read" in report.applied.failed["a/0.npy"]
    assert lab.keys() == []


class WholeMemory(MemoryStore):
    """Gives small objects whole, as an S3 store does; `lie` in place of their bytes."""

    lie: bytes | None = None
    wholes = 0

    def fetch_whole(self, key: ObjectKey, *, size_bytes: int) -> WholeObject | None:
        self.wholes += 1
        data = self.fetch(key) if self.lie is None else self.lie
        return WholeObject(data=memoryview(data), etag=self.head(key).etag, version_id=None)


def _whole_memory(lab: FolderLab) -> WholeMemory:
    lab.memory = lab.objects = memory = WholeMemory(clock=lab.clock)
    return memory


@pytest.mark.parametrize("is_reclaiming", [False, True])
def test_one_answer_proves_a_small_file_unless_it_is_to_go(lab: FolderLab, is_reclaiming: bool) -> None:
    memory = _whole_memory(lab)
    for number in range(40):
        lab.write(f"a/{number}.npy", npy(number))
    report = _adopt(lab, is_reclaiming=is_reclaiming)
    assert (report.applied.uploaded, report.exit_code) == (40, 0)
    assert memory.wholes == (0 if is_reclaiming else 40)
    assert len(lab.files()) == (0 if is_reclaiming else 40)
    lab.check_nothing_lost()


def test_a_file_whose_one_answer_has_other_bytes_is_not_listed(lab: FolderLab) -> None:
    memory = _whole_memory(lab)
    lab.write("0.npy", npy(0))
    memory.lie = npy(1)
    report = _adopt(lab)
    assert (report.applied.uploaded, list(report.applied.failed), lab.keys("manifest")) == (0, ["0.npy"], [])
    memory.lie = None
    assert _adopt(lab).applied.uploaded == 1


def test_progress_is_told_file_by_file(lab: FolderLab) -> None:
    _mixed(lab)
    heard: list[tuple[str, Any]] = []

    class Listener:
        def emit(self, name: str, **facts: Any) -> None:
            heard.append((name, facts.get("files", facts.get("is_proven"))))

    request = ReconcileRequest(
        local=lab.folder,
        bucket=BucketUrl(kind="memory", bucket="lab", prefix=PREFIX),
        is_adopting=True,
        is_applied=True,
    )
    reconcile(request, objects=lab.objects, clock=lab.clock, observer=Listener())
    assert [each for each in heard if each[0].startswith("adopt.")] == [("adopt.begun", 3), *[("adopt.file", True)] * 3]
