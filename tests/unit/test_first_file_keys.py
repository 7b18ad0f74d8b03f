"""Folders that an earlier version adopted, whose keys begin with the digest: found, proven, freed under those keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from durastore.adopt import verbatim
from durastore.adopt.place import opened_place
from durastore.adopt.sending import hash_local
from durastore.adopt.verbatim import as_pack
from durastore.formats.file_keys import file_key, first_file_key
from durastore.fsio.folder import Folder
from durastore.model import ObjectKey, SampleId
from durastore.objectstore.crc import crc64nvme_b64
from tests.unit.reconcile_lab import PREFIX, FolderLab, by_kind, npy


@pytest.fixture
def lab(tmp_path: Path) -> FolderLab:
    return FolderLab(tmp_path / "data")


def _first_keys(lab: FolderLab, *paths: str) -> list[str]:
    with Folder.open(lab.folder) as folder:
        hashed = [hash_local(folder, SampleId(path)) for path in paths]
    return [first_file_key(PREFIX, file.path, digest=file.digest).text for file in hashed]


def _adopted_earlier(lab: FolderLab) -> list[str]:
    """The folder as the earlier version left it; its keys."""
    for number in range(4):
        lab.write(f"rows/data_{number}.npy", npy(number))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verbatim, "file_key", first_file_key)
        assert lab.apply().exit_code == 0
    keys = _first_keys(lab, *(f"rows/data_{number}.npy" for number in range(4)))
    assert lab.keys() == sorted(keys)
    return keys


def test_what_has_a_first_key_is_not_sent_again_and_is_freed(lab: FolderLab) -> None:
    keys = _adopted_earlier(lab)
    lab.write("rows/new.npy", npy(9))
    report = lab.run(is_deep=True)
    assert (by_kind(report.findings), report.adds_up) == ({("only-local", "local"): {"rows/new.npy"}}, True)
    done = lab.apply()
    assert done.applied is not None
    assert (done.exit_code, done.applied.uploaded, len(lab.keys())) == (0, 1, 5)
    assert set(keys) < set(lab.keys())
    freed = lab.clear()
    assert freed.applied is not None
    assert (freed.exit_code, freed.applied.reclaimed, lab.files()) == (0, 5, {})
    assert lab.clear().exit_code == 0
    lab.check_nothing_lost()


def test_a_lost_object_is_sent_again_under_the_key_that_its_row_has(lab: FolderLab) -> None:
    # under another one the row would miss it for ever, and every run would send it again
    keys = _adopted_earlier(lab)
    lab.memory._objects.pop(ObjectKey(keys[1]))
    done = lab.apply()
    assert done.applied is not None
    assert (done.exit_code, done.applied.uploaded, lab.keys()) == (0, 1, sorted(keys))
    again = lab.apply()
    assert again.applied is not None
    assert (again.exit_code, again.applied.uploaded, again.findings) == (0, 0, ())


def test_a_file_that_changed_gets_a_key_of_today(lab: FolderLab) -> None:
    keys = _adopted_earlier(lab)
    lab.memory._objects.pop(ObjectKey(keys[1]))
    lab.write("rows/data_1.npy", npy(77))  # as long as before
    done = lab.apply()
    assert done.applied is not None
    new = set(lab.keys()) - set(keys)
    assert (done.applied.uploaded, len(new)) == (1, 1)
    assert by_kind(done.findings) == {("dangling", "manifest"): {keys[1]}}  # the content that is gone stays named
    assert lab.bucket_files()["rows/data_1.npy"] == {npy(77)}


@pytest.mark.parametrize("is_adopting", [True, False])
def test_an_object_that_an_earlier_run_left_without_a_row_is_not_kept_twice(lab: FolderLab, is_adopting: bool) -> None:
    lab.write("before.npy", npy(0))
    lab.apply()
    lab.write("rows/a.npy", npy(1))
    (key,) = _first_keys(lab, "rows/a.npy")
    lab.memory.put(ObjectKey(key), npy(1), crc64nvme=crc64nvme_b64(npy(1)), metadata={})
    lab.write("rows/b.npy", npy(2))
    (stale,) = _first_keys(lab, "rows/b.npy")
    lab.memory.put(ObjectKey(stale), npy(2), crc64nvme=crc64nvme_b64(npy(2)), metadata={})
    lab.write("rows/b.npy", npy(3))  # is another file by now
    lab.apply(is_adopting=is_adopting)
    keys = lab.keys()
    assert ([each for each in keys if each.endswith("a.npy")], len(keys)) == ([key], 4)
    lab.check_nothing_lost()


def test_parts_that_an_earlier_version_sent_are_given_up(lab: FolderLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write("first.npy", npy(0))
    lab.apply()
    lab.write("rows/large.npy", npy(1, rows=700_000))  # sent in parts
    (first,) = _first_keys(lab, "rows/large.npy")
    with Folder.open(lab.folder) as folder, opened_place(folder, clock=lab.clock, is_any_filesystem_allowed=True) as at:
        at.spool.journal.set_fact(f"upload {first}", "left-over")
    aborted = []
    monkeypatch.setattr(lab.objects, "abort_upload", lambda key, upload_id: aborted.append((key.text, upload_id)))
    assert lab.apply().exit_code == 0
    assert aborted == [(first, "left-over")]
    with Folder.open(lab.folder) as folder, opened_place(folder, clock=lab.clock, is_any_filesystem_allowed=True) as at:
        assert at.spool.journal.get_fact(f"upload {first}") is None


def test_only_a_key_of_these_bytes_is_taken_from_a_row(lab: FolderLab) -> None:
    lab.write("a.npy", npy(1))
    with Folder.open(lab.folder) as folder:
        file = hash_local(folder, SampleId("a.npy"))
    today = file_key(PREFIX, file.path, digest=file.digest)
    first = first_file_key(PREFIX, file.path, digest=file.digest)
    strange = [ObjectKey(f"{PREFIX}/files/{'0' * 16}/a.npy"), ObjectKey(f"{first}x"), ObjectKey(f"other/{first}")]
    assert as_pack(file, PREFIX, known=strange).key == today
    assert as_pack(file, PREFIX, known=[*strange, first]).key == first
