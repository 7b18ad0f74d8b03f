"""Quarantine: what lies there, what of it is good, and that releasing moves and never loses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import durastore
from durastore.codec.decode import scan_sample
from durastore.errors import ConfigError, DiskFailed, InvalidInput, NotVerified, StoreMissing
from durastore.spool.quarantine import find_quarantined, release_quarantined
from tests.unit.spool_lab import assert_obtainable, content, sample, spool_at, writer_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root in whose quarantine lies a pack of three samples, one of them damaged."""
    bucket, root = tmp_path / "bucket", tmp_path / "spool"
    bucket.mkdir()
    store = durastore.open(bucket, local=root, reclaim="never")
    store.put_many({f"s{n}": {"x": np.full(1_000, n)} for n in range(3)})
    store.abandon()
    (pack,) = (root / "w-00/packs").glob("*.tar")
    data = bytearray(pack.read_bytes())
    data[data.index(np.full(1_000, 1).tobytes()) + 100] ^= 1
    pack.write_bytes(data)
    durastore.open(bucket, local=root, reclaim="never").close()
    return root


def test_a_damaged_pack_is_told_with_what_is_good_in_it(root: Path) -> None:
    (file,) = find_quarantined(root)
    assert (file.spool, sorted(file.samples), file.damaged) == ("w-00", ["s0", "s2"], 1)
    assert file.size_bytes == (root / "w-00/quarantine" / file.name).stat().st_size
    assert file.reason


def test_other_files_are_told_too(root: Path) -> None:
    quarantine = root / "w-00/quarantine"
    (quarantine / "journal-1.sqlite").write_bytes(b"x")
    (quarantine / "notes").write_bytes(b"yy")
    (name,) = (path.name for path in quarantine.glob("*.tar"))
    (quarantine / f"{name}.1").write_bytes(bytes(512))
    reasons = {file.name: file.reason for file in find_quarantined(root)}
    assert "followed by a new one" in reasons["journal-1.sqlite"]
    assert reasons["notes"] == "no pack"
    assert reasons[f"{name}.1"]
    assert len(reasons) == 4


def test_looking_changes_nothing(root: Path) -> None:
    before = {path: path.stat() for path in root.rglob("*")}
    find_quarantined(root)
    assert {path: path.stat() for path in root.rglob("*")}.keys() == before.keys()
    assert all(path.stat().st_mtime_ns == stat.st_mtime_ns for path, stat in before.items())


def test_a_file_is_moved_out_whole(root: Path, tmp_path: Path) -> None:
    (file,) = find_quarantined(root)
    path = root / "w-00/quarantine" / file.name
    data, inode = path.read_bytes(), path.stat().st_ino
    released = release_quarantined(root, file.place, to=tmp_path / "out" / "of it")
    assert released.path == tmp_path / "out/of it" / file.name
    assert (released.path.read_bytes(), released.path.stat().st_ino) == (data, inode)
    assert not path.exists()
    assert find_quarantined(root) == []
    with pytest.raises(InvalidInput, match="no file"):
        release_quarantined(root, file.place, to=tmp_path / "out")


def test_nothing_is_overwritten(root: Path, tmp_path: Path) -> None:
    (file,) = find_quarantined(root)
    (tmp_path / file.name).write_bytes(b"mine")
    with pytest.raises(InvalidInput, match="another file"):
        release_quarantined(root, file.name, to=tmp_path)
    assert (tmp_path / file.name).read_bytes() == b"mine"
    assert (root / "w-00/quarantine" / file.name).exists()


def test_a_name_that_two_spools_have_has_to_be_said_in_full(root: Path, tmp_path: Path) -> None:
    other = root / "w-01/quarantine"
    other.mkdir(parents=True)
    (file,) = find_quarantined(root)
    (other / file.name).write_bytes(b"another")
    with pytest.raises(InvalidInput, match="more than one"):
        release_quarantined(root, file.name, to=tmp_path / "out")
    assert release_quarantined(root, f"w-01/{file.name}", to=tmp_path / "out").path.read_bytes() == b"another"


@pytest.mark.parametrize("inside", ["", "w-00/packs", "new/folder"])
def test_nothing_is_released_into_the_root(root: Path, inside: str) -> None:
    (file,) = find_quarantined(root)
    with pytest.raises(ConfigError, match="inside"):
        release_quarantined(root, file.place, to=root / inside)
    assert (root / "w-00/quarantine" / file.name).exists()


def test_another_file_system_is_refused_and_the_file_stays(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DiskFailed("moving: Invalid cross-device link", errno=18)

    monkeypatch.setattr("durastore.spool.quarantine.relocate", refuse)
    (file,) = find_quarantined(root)
    with pytest.raises(ConfigError, match="another file system"):
        release_quarantined(root, file.place, to=tmp_path / "out")
    assert (root / "w-00/quarantine" / file.name).exists()


def test_a_path_is_no_name(root: Path, tmp_path: Path) -> None:
    for name in ("../packs", "w-00/../lock", "", "w-00/"):
        with pytest.raises(InvalidInput):
            release_quarantined(root, name, to=tmp_path / "out")
    with pytest.raises(StoreMissing):
        find_quarantined(tmp_path)


def test_a_single_sample_file_is_looked_into(root: Path) -> None:
    with durastore.open(root.parent / "bucket", local=root, reclaim="never", single_pack_bytes=1_000) as store:
        store.put("single", {"x": np.arange(1_000)})
    (pack,) = (root / "w-00/packs").glob("*.safetensors")
    copied = root / "w-00/quarantine" / pack.name
    copied.write_bytes(pack.read_bytes())
    assert scan_sample(copied.read_bytes()).sample_id.text == "single"
    files = {file.name: file for file in find_quarantined(root)}
    assert (files[pack.name].samples, files[pack.name].damaged) == (("single",), 0)


def test_what_the_bucket_was_not_asked_for_yet_is_not_given_away(tmp_path: Path) -> None:
    """An open while the endpoint is away: the only copy of two samples lies in quarantine."""
    root, samples = tmp_path / "spool", [sample("a"), sample("b"), sample("c")]
    with spool_at(root) as spool:
        spool.recover()
        writer = writer_of(spool)
        ((pack_id, _), *_) = writer.append(samples)
        record = writer.seal_open()
        assert record is not None
        writer.close()
        spool.journal.write_id(pack_id)  # its upload had begun
    path = root / "w-00/packs" / record.name
    data = bytearray(path.read_bytes())
    data[data.index(content(samples[1])) + 2_000] ^= 1
    path.write_bytes(data)
    with spool_at(root) as spool:
        (missing,) = spool.recover().missing_files
        (file,) = find_quarantined(root)
        for _ in range(2):  # while a process holds the spool, and after it
            with pytest.raises(NotVerified, match="may be the only copy") as caught:
                release_quarantined(root, file.place, to=tmp_path / "out")
            assert caught.value.hint
            spool.close()
    assert (root / "w-00/quarantine" / file.name).read_bytes() == data
    with spool_at(root) as spool:  # the endpoint is back, and has no such object
        spool.recover()
        report = spool.record_lost(missing.pack_id, reason="absent")
        assert [lost.sample_id.text for lost in report.lost] == ["b"]
        assert_obtainable(spool, [samples[0], samples[2]])
    released = release_quarantined(root, file.place, to=tmp_path / "out")
    assert released.path.read_bytes() == data


def test_nothing_is_released_that_a_failed_journal_may_need(root: Path, tmp_path: Path) -> None:
    (file,) = find_quarantined(root)
    (root / "w-00/journal-1.failed").write_bytes(b"x")
    with pytest.raises(NotVerified):
        release_quarantined(root, file.place, to=tmp_path / "out")
    assert (root / "w-00/quarantine" / file.name).exists()
