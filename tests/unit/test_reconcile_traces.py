"""Writers that leave no new time in a file: who has it mapped, and whose file system lies in memory."""

from __future__ import annotations

import mmap
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from durastore.adopt.place import PRIVATE_NAME
from durastore.config import StoreOptions
from durastore.fsio import traces
from durastore.fsio.mounts import Mount
from durastore.fsio.traces import Traces
from tests.unit.reconcile_lab import FolderLab, by_kind, npy

_ANY = StoreOptions(is_any_filesystem_allowed=True)
_SHM = Path("/dev/shm")


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder on a file system in memory."""
    if not (_SHM.is_dir() and os.access(_SHM, os.W_OK)) or Traces().are_left(_SHM.stat().st_dev):
        pytest.skip("no file system in memory at /dev/shm")
    with tempfile.TemporaryDirectory(dir=_SHM, prefix="durastore-test-") as folder:
        yield Path(folder)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """Mapped for writing, and open by no descriptor any more. Its first page was read."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        file.close()
        assert view[0]
        yield view


def _times(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _records(lab: FolderLab) -> list[Path]:
    return list((lab.folder / PRIVATE_NAME).glob("hashed-*"))


def test_a_file_that_is_mapped_for_writing_is_in_flight_though_its_times_are_old(tmp_path: Path) -> None:
    lab = FolderLab(tmp_path / "data")
    path = lab.write("a/0.npy", npy(0))
    assert lab.apply().exit_code == 0
    before = _times(path)
    with _mapped(path):
        assert _times(path) == before
        for asked in ({}, {"is_adopting": True}, {"is_applied": True}, {"is_applied": True, "is_reclaiming": True}):
            report = lab.run(**asked)
            assert (report.exit_code, by_kind(report.findings)) == (12, {("in-flight", "local"): {"a/0.npy"}})
        assert lab.files() == {"a/0.npy": npy(0)}
    assert lab.clear().exit_code == 0


def test_a_write_without_a_trace_is_found_by_the_lease_alone(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # why the lease is asked for every file (ADR 0023): its numbers are those on record, and its bytes are others
    monkeypatch.setattr(traces, "_is_in_memory", lambda _: False)
    lab = FolderLab(shm / "data")
    path = lab.write("a/0.npy", npy(0))
    assert lab.apply(options=_ANY).exit_code == 0
    before = _times(path)
    with _mapped(path) as view:
        view[len(view) - 1] ^= 1
        assert _times(path) == before
        report = lab.run(options=_ANY)
        assert (report.exit_code, by_kind(report.findings)) == (12, {("in-flight", "local"): {"a/0.npy"}})


def test_what_was_hashed_in_memory_is_not_put_on_record(shm: Path) -> None:
    lab = FolderLab(shm / "data")
    path = lab.write("a/0.npy", npy(0))
    assert lab.apply(options=_ANY).exit_code == 12  # sent, and not known to be unchanged since
    assert by_kind(lab.apply(options=_ANY).findings) == {("unhashed", "local"): {"a/0.npy"}}
    assert _records(lab) == []
    assert lab.run(options=_ANY, is_deep=True).exit_code == 0
    before = _times(path)
    with _mapped(path) as view:
        view[len(view) - 1] ^= 1
    assert _times(path) == before
    report = lab.run(options=_ANY)
    assert (report.exit_code, by_kind(report.findings)) == (12, {("unhashed", "local"): {"a/0.npy"}})
    report = lab.run(options=_ANY, is_deep=True)
    assert by_kind(report.findings) == {("divergent", "local"): {"a/0.npy"}}
    lab.apply(options=_ANY)
    assert lab.bucket_files() == {"a/0.npy": {npy(0), path.read_bytes()}}  # the new content is sent, too


def test_traces_are_left_on_disks_and_unknown_without_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dev = tmp_path.stat().st_dev
    known = Traces()
    is_left = known.are_left(dev)

    def unreadable() -> None:
        raise PermissionError

    monkeypatch.setattr(traces, "load_mounts", unreadable)
    assert known.are_left(dev) is is_left  # asked once
    assert not Traces().are_left(dev)


@pytest.mark.parametrize(
    "table, is_left",
    [
        ({"8:1": "ext4"}, True),
        ({"8:1": "tmpfs"}, False),
        ({"8:1": "overlay"}, False),  # what it shows may lie in memory: `docker run --tmpfs`, a live system
        ({"8:2": "ext4"}, False),  # unmounted by now, or another namespace's
        ({"0:40": "btrfs"}, True),  # a subvolume has a number that is in no table
    ],
)
def test_traces_are_left_only_by_what_is_known_to_lie_on_a_disk(
    monkeypatch: pytest.MonkeyPatch, table: dict[str, str], *, is_left: bool
) -> None:
    root = PurePosixPath("/")
    mounts = [Mount(device=device, root=root, point=root, type_name=kind) for device, kind in table.items()]
    monkeypatch.setattr(traces, "load_mounts", lambda: mounts)
    assert Traces().are_left(os.makedev(8, 1)) is is_left


def test_a_write_through_layers_into_memory_may_leave_no_trace(shm: Path, tmp_path: Path) -> None:
    for name in ("upper", "work"):
        (shm / name).mkdir()
    for name in ("lower", "shown"):
        (tmp_path / name).mkdir()
    shown = tmp_path / "shown"
    layers = f"lowerdir={tmp_path / 'lower'},upperdir={shm / 'upper'},workdir={shm / 'work'}"
    mounted = subprocess.run(["mount", "-t", "overlay", "none", "-o", layers, shown], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("an overlay cannot be mounted here")
    try:
        path = shown / "a.bin"
        path.write_bytes(b"a" * 9000)
        before = _times(path)
        with _mapped(path) as view:
            view[0] = 1
        assert _times(path) != before or not Traces().are_left(path.stat().st_dev)
    finally:
        subprocess.run(["umount", shown], check=True)
