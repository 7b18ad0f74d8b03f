"""Two copies on one disk die together: no store is opened that would free one of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import durastore
from durastore.errors import SameFailureDomain, SpoolUnreadable
from durastore.fsio.space import Filesystem, are_one_domain, filesystem_of


@pytest.mark.parametrize("reclaim", ["lazy", "eager"])
def test_a_bucket_on_the_spools_own_disk_is_refused_before_anything_is_written(tmp_path: Path, reclaim: Any) -> None:
    (tmp_path / "bucket").mkdir()
    with pytest.raises(SameFailureDomain, match="same file system"):
        durastore.open(f"file://{tmp_path}/bucket", local=tmp_path / "not" / "there" / "yet", reclaim=reclaim)
    assert list((tmp_path / "bucket").iterdir()) == []
    assert not (tmp_path / "not").exists()


def test_a_link_to_a_spool_that_is_not_there_yet_lies_where_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/data -> /nvme/data`, and the bucket on that disk: the link's own disk says nothing."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "spool").symlink_to(tmp_path / "spool")

    def two_disks(path: Path) -> Filesystem:
        found = filesystem_of(path)
        return replace(found, st_dev=found.st_dev + 1) if path.resolve() == tmp_path / "other" else found

    monkeypatch.setattr("durastore.objectstore.fate.filesystem_of", two_disks)
    with pytest.raises(SameFailureDomain, match="same file system"):
        durastore.open(tmp_path / "bucket", local=tmp_path / "other" / "spool", reclaim="eager")
    assert not (tmp_path / "spool").exists()


def test_a_place_that_cannot_be_looked_at_is_no_disk_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with pytest.raises(SpoolUnreadable, match="name too long"):
        durastore.open(tmp_path / "bucket", local=tmp_path / ("n" * 300), reclaim="eager")


@pytest.mark.parametrize("reclaim", ["lazy", "eager"])
def test_a_bucket_in_memory_is_no_place_for_the_only_copy(
    tmp_path: Path, reclaim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SameFailureDomain, match="in memory"):
        durastore.open("memory://bucket/p", local=tmp_path / "spool", reclaim=reclaim)
    (tmp_path / "bucket").mkdir()
    on_tmpfs = replace(filesystem_of(tmp_path), type_name="tmpfs")
    monkeypatch.setattr("durastore.objectstore.directory.filesystem_of", lambda _: on_tmpfs)
    with pytest.raises(SameFailureDomain, match="in memory"):
        durastore.open(tmp_path / "bucket", local=tmp_path / "spool", reclaim=reclaim)
    assert not (tmp_path / "spool").exists()
    durastore.open("memory://bucket/p", local=tmp_path / "spool", reclaim="never").close()
    durastore.open(tmp_path / "bucket", local=tmp_path / "spool2", is_any_filesystem_allowed=True).close()


def test_with_never_it_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    durastore.open(f"file://{tmp_path}/bucket", local=tmp_path / "spool", reclaim="never").close()
    assert (tmp_path / "spool").is_dir()


@pytest.mark.parametrize("reclaim", ["lazy", "eager"])
def test_layers_over_the_spools_disk_are_no_other_disk(
    tmp_path: Path, reclaim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overlay has a device number of its own, and its files lie on the disk of its layers."""
    (tmp_path / "bucket").mkdir()
    overlay = replace(filesystem_of(tmp_path), type_name="overlay")
    monkeypatch.setattr("durastore.objectstore.directory.filesystem_of", lambda _: overlay)
    with pytest.raises(SameFailureDomain, match="in layers"):
        durastore.open(tmp_path / "bucket", local=tmp_path / "spool", reclaim=reclaim)
    assert not (tmp_path / "spool").exists()
    durastore.open(tmp_path / "bucket", local=tmp_path / "spool", is_any_filesystem_allowed=True).close()


def test_another_subvolume_is_no_other_disk() -> None:
    disk = Filesystem(type_name="btrfs", is_local_disk=True, uuid="5e0c", st_dev=40)
    for one, other, is_one in (
        (disk, replace(disk, st_dev=41), True),
        (disk, replace(disk, st_dev=41, uuid="7f11"), False),
        (disk, replace(disk, st_dev=41, uuid="fsid-7"), True),  # an older kernel: not known
        (disk, replace(disk, st_dev=41, type_name="zfs"), False),
        (replace(disk, type_name="zfs"), replace(disk, st_dev=41, type_name="zfs", uuid="7f11"), True),
        (replace(disk, type_name="ext4"), replace(disk, st_dev=401, type_name="ext4"), False),
        (replace(disk, type_name="ext4"), replace(disk, type_name="ext4", uuid="7f11"), True),
    ):
        assert are_one_domain(one.domain, other.domain) is is_one
        assert are_one_domain(other.domain, one.domain) is is_one
