"""Real disks: ext4 on loop devices. A spool root on a full one moves; a full destination stops a migration; one that is
unmounted gets nothing more.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durastore.errors import DiskFailed, RootMismatch
from durastore.fsio import space
from durastore.fsio.identity import identity_of
from durastore.fsio.sys import SYS
from durastore.migrate import copying
from durastore.migrate.run import MigrateRequest, migrate
from durastore.spool import spool as spool_module
from durastore.spool.root import SpoolRoot
from tests.crash.test_full_disk import _why_not
from tests.unit.migrate_lab import FORMATS, MigrateLab, contents
from tests.unit.reconcile_lab import FolderLab, npy
from tests.unit.spool_lab import assert_obtainable, sample, spool_at, writer_of

MIB = 1 << 20

pytestmark = [
    pytest.mark.skipif(_why_not() is not None, reason=str(_why_not())),
    pytest.mark.timeout(300),
]


@contextmanager
def disk(folder: Path, name: str, *, size_bytes: int, inode_bytes: int = 256) -> Iterator[Path]:
    """A mounted ext4 without blocks for root alone. With inodes of 128 bytes it keeps times in whole seconds."""
    image, mount = folder / f"{name}.img", folder / name
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-I", str(inode_bytes), image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True, capture_output=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        image.unlink()
        mount.rmdir()


def fill(folder: Path) -> None:
    """Somebody else takes every block that is left."""
    fd = os.open(folder / "foreign", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        size, step = 0, 16 * MIB
        while step >= 1024:
            try:
                os.posix_fallocate(fd, size, step)
                size += step
            except OSError:
                step //= 2
    finally:
        os.close(fd)


def put_until_full(spool: Any, *, size: int) -> list[Any]:
    acknowledged: list[Any] = []
    writer = writer_of(spool)
    while True:
        encoded = sample(f"s/{len(acknowledged)}", size=size)
        try:
            writer.append([encoded])
        except DiskFailed as exc:
            if not exc.is_full:
                raise
            return acknowledged
        acknowledged.append(encoded)


@pytest.mark.parametrize("is_short", [True, False])
def test_a_spool_that_filled_its_disk_moves_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_short: bool
) -> None:
    # the second incident: the process is gone, the disk is full, everything has to go to another one
    monkeypatch.setattr(spool_module, "_BALLAST_BYTES", 2 * MIB)
    # a path of at most 59 bytes has room in the inode of a link
    place = Path(tempfile.mkdtemp(prefix="mig")) if is_short else tmp_path
    with disk(tmp_path, "small", size_bytes=24 * MIB) as small, disk(place, "large", size_bytes=96 * MIB) as large:
        lab = MigrateLab(small / "root", large / "root")
        with spool_at(lab.source) as spool:
            spool.recover()
            acknowledged = put_until_full(spool, size=60_000)
            fill(small)
        assert len(acknowledged) > 50
        report = lab.run(is_any_filesystem_allowed=False)
        assert report.exit_code in (0, 12), list(report.lines())
        assert report.roots[0].is_active
        mark = lab.source / "MOVED-TO"
        # a file where ext4 has given back a block since, else a link; without bytes where not even that has room
        moved = os.readlink(mark) if mark.is_symlink() else mark.read_text().rstrip("\n")
        assert moved == str(lab.target) or (moved == "" and not is_short)
        with pytest.raises(RootMismatch, match=moved or "too full to note"):
            SpoolRoot.open(lab.source)
        assert lab.run().exit_code == 0, "nothing to do any more"
        with spool_at(lab.target) as spool:
            found = spool.recover()
            assert found.lost == []
            assert_obtainable(spool, acknowledged)
            writer_of(spool).append([sample("it goes on")])


@pytest.mark.parametrize("size, most_tried", [(MIB, 30), (3 * MIB, 12)])
def test_a_destination_that_is_full_stops_at_once(tmp_path: Path, size: int, most_tried: int) -> None:
    # case B115
    with disk(tmp_path, "full", size_bytes=24 * MIB) as full:
        lab = MigrateLab(tmp_path / "source", full / "target")
        for number in range(40):
            lab.write(f"f{number:02d}.bin", size)
        assert lab.run().exit_code == 2, "seen by the plan"
        patched = pytest.MonkeyPatch()
        patched.setattr("durastore.migrate.looking.free_bytes", lambda _: 1 << 40)
        patched.setattr(copying, "_BATCH_FILES", 4)
        report = lab.run(is_reclaiming=True)
        patched.undo()
        assert report.exit_code == 3
        assert "No space left" in (report.stopped or "")
        assert report.not_attempted >= 40 - most_tried
        assert 4 <= len(lab.there()) <= 24 * MIB // size
        assert lab.here() == lab.written
        lab.check()


def test_a_destination_that_is_unmounted_gets_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B20
    monkeypatch.setattr(copying, "_BATCH_FILES", 2)
    with disk(tmp_path, "disk", size_bytes=24 * MIB) as mounted:
        lab = MigrateLab(tmp_path / "source", mounted)
        lab.fill(12)
        plain, named = SYS.link_fd, []

        def link_fd(fd: int, name: str, *, target_fd: int) -> None:
            plain(fd, name, target_fd=target_fd)
            named.append(name)
            if len(named) == 4:
                subprocess.run(["umount", "--lazy", mounted], check=True)

        monkeypatch.setattr(SYS, "link_fd", link_fd)
        report = lab.run(jobs=1, is_reclaiming=True)
        assert report.exit_code == 3
        assert "another directory" in (report.stopped or "")
        assert contents(mounted) == {}
        assert list(mounted.iterdir()) == []
        assert lab.here() == lab.written


@pytest.mark.parametrize("is_told", [True, False])
def test_a_disk_copied_into_another_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool) -> None:
    """The tops of two ext4 have the same inode number: only their ids tell them apart, also without udev or ioctl."""
    if not is_told:
        monkeypatch.setattr(space, "_own_uuid", lambda _: None)
        monkeypatch.setattr(space, "_device_uuid", lambda _: None)
    with disk(tmp_path, "a", size_bytes=24 * MIB) as one, disk(tmp_path, "b", size_bytes=24 * MIB) as other:
        SpoolRoot.open(one).close()
        subprocess.run(["cp", "-a", f"{one}/.", other], check=True)
        assert one.stat().st_ino == other.stat().st_ino
        SpoolRoot.open(one).close()
        with pytest.raises(RootMismatch, match="is a copy"):
            SpoolRoot.open(other)


@pytest.mark.parametrize("is_emptied_through_it", [False, True])
def test_an_overlay_of_the_source_is_no_copy_of_it(tmp_path: Path, is_emptied_through_it: bool) -> None:
    """An overlay has a device number of its own, and shows the very files that would be freed."""
    with disk(tmp_path, "one", size_bytes=64 * MIB) as one:
        lower, upper, merged = one / "lower", one / "upper", tmp_path / "merged"
        for made in (lower, upper, one / "work", merged):
            made.mkdir()
        holder = upper if is_emptied_through_it else lower
        (holder / "only.bin").write_bytes(b"the only copy" * 100)
        layers = f"lowerdir={lower},upperdir={upper},workdir={one / 'work'}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, merged], check=True, capture_output=True)
        try:
            trees = (merged, upper) if is_emptied_through_it else (lower, merged)
            request = MigrateRequest(
                source=trees[0], target=trees[1], is_reclaiming=True, is_any_filesystem_allowed=True
            )
            report = migrate(request, formats=FORMATS)
            assert (report.reclaimed, report.exit_code) == (0, 3)
            assert (holder / "only.bin").read_bytes() == (merged / "only.bin").read_bytes() == b"the only copy" * 100
            plain = migrate(replace(request, is_any_filesystem_allowed=False), formats=FORMATS)
            assert is_emptied_through_it or "is on overlay" in plain.plan.problems[0]
            assert plain.reclaimed == 0
        finally:
            subprocess.run(["umount", merged], check=True, capture_output=True)


def test_a_second_write_within_one_second_is_not_taken_for_known(tmp_path: Path) -> None:
    with disk(tmp_path, "seconds", size_bytes=64 * MIB, inode_bytes=128) as place:
        lab = FolderLab(place / "data")
        for number in range(0, 40, 2):
            time.sleep(1 - time.time() % 1)
            path = lab.write(f"{number}.npy", npy(number))
            adopted = lab.run(is_adopting=True, is_applied=True)
            before = identity_of(path.stat())
            with path.open("r+b") as file:
                file.write(npy(number + 1))
            if identity_of(path.stat()) == before:
                break
            path.write_bytes(npy(number))  # as it was adopted
        else:
            pytest.skip("this machine is too slow to do it within a second")
        assert adopted.applied is not None
        assert adopted.applied.uploaded == 1
        seen = lab.run(is_adopting=True, is_applied=False)
        assert seen.exit_code == 12, "what is there now is not in the bucket"
