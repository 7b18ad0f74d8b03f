"""Disks that went bad, as the doctor finds them: real ext4 that is read-only, has errors on record, or is full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.doctor.request import DoctorRequest
from durastore.doctor.run import doctor
from durastore.doctor.stages import StageReport, Status
from durastore.objectstore.location import BucketUrl
from durastore.objectstore.memory import MemoryStore
from durastore.spool.root import SpoolRoot
from tests.crash.test_full_disk import _why_not
from tests.crash.test_migrate_disks import fill

pytestmark = [
    pytest.mark.skipif(_why_not() is not None, reason=str(_why_not())),
    pytest.mark.skipif(shutil.which("debugfs") is None, reason="not installed: debugfs"),
    pytest.mark.timeout(120),
]


@contextmanager
def _mounted(image: Path, mount: Path, *options: str) -> Iterator[Path]:
    subprocess.run(["mount", "-o", ",".join(("loop", *options)), image, mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An ext4 with a spool root at `spool`."""
    path, mount = tmp_path / "image", tmp_path / "mount"
    with path.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", path], check=True)
    mount.mkdir()
    with _mounted(path, mount):
        SpoolRoot.open(mount / "spool").close()
    return path


def _look(mount: Path) -> dict[str, StageReport]:
    request = DoctorRequest(local=mount / "spool", bucket=BucketUrl.parse("memory://d"), objects=MemoryStore())
    report = doctor(request, clock=SYSTEM_CLOCK)
    return {stage.name: stage for stage in report.stages}


def test_a_good_disk_passes(image: Path, tmp_path: Path) -> None:
    with _mounted(image, tmp_path / "mount") as mount:
        disk = _look(mount)["disk"]
    assert disk.status is not Status.FAILED
    assert disk.verdict.facts["root"]["error_count"] == 0


def test_errors_that_the_file_system_has_on_record_are_told(image: Path, tmp_path: Path) -> None:
    subprocess.run(["debugfs", "-w", "-R", "set_super_value error_count 3", image], check=True, capture_output=True)
    with _mounted(image, tmp_path / "mount") as mount:
        found = _look(mount)
    assert found["disk"].status is Status.FAILED
    assert "3 errors on record" in found["disk"].verdict.lines[0]
    assert found["packs"].status is found["resume"].status is Status.BLOCKED


def test_a_disk_that_was_made_read_only_is_told(image: Path, tmp_path: Path) -> None:
    with _mounted(image, tmp_path / "mount", "ro") as mount:
        disk = _look(mount)["disk"]
    assert (disk.status, disk.verdict.exit_code) == (Status.FAILED, 12)
    assert "read-only" in disk.verdict.lines[0]


def test_a_full_disk_is_told(image: Path, tmp_path: Path) -> None:
    with _mounted(image, tmp_path / "mount") as mount, ExitStack() as stack:
        fill(mount)
        stack.callback(os.unlink, mount / "foreign")
        disk = _look(mount)["disk"]
    assert disk.status is Status.FAILED
    assert "is full" in disk.verdict.lines[0]
