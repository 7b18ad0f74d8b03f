"""Reboot, disk and GPUs, as the doctor sees them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from durastore.clock import Clock, ManualClock
from durastore.config import StoreOptions
from durastore.doctor import gpus
from durastore.doctor.disk import DiskLook, find_disk_faults, find_disk_notes, look_at_disk
from durastore.doctor.gpus import look_at_gpus
from durastore.doctor.host import look_at_host
from durastore.doctor.processes import family_of, look_at_process
from durastore.doctor.request import DoctorRequest, Examination
from durastore.doctor.stages import Status, Verdict
from durastore.errors import RootMismatch, StoreMissing
from durastore.extract.job_book import KnownJob, begin_job
from durastore.extract.starts import Start
from durastore.formats.spool_root import MOVED_NAME
from durastore.objectstore.location import BucketUrl
from durastore.spool.root import SpoolRoot
from tests.unit.spool_lab import spool_at


@pytest.fixture
def root(tmp_path: Path) -> Path:
    SpoolRoot.open(tmp_path / "spool").close()
    return tmp_path / "spool"


def _seen(root: Path, resources: ExitStack, *, clock: Clock | None = None, **asked: Any) -> Examination:
    request = DoctorRequest(local=root, bucket=BucketUrl.parse("memory://doctor"), **asked)
    return Examination(request=request, clock=clock or ManualClock(), resources=resources)


def _start(clock: Clock) -> Start:
    return Start(
        stamp=clock.stamp(),
        pid=7,
        command=("durastore", "extract"),
        folder="/",
        run="0" * 32,
        bucket="s3://b",
        local="spool",
        input="in",
        model="m",
        max_tokens=None,
    )


# --- host ------------------------------------------------------------------------------------------------------------


def test_a_reboot_since_the_last_start_is_told(root: Path) -> None:
    clock = ManualClock()
    with ExitStack() as stack:
        assert look_at_host(_seen(root, stack, clock=clock)).status is Status.SKIPPED
        begin_job(root, KnownJob(job="j", start=_start(clock), workers=0, inputs=1))
        assert look_at_host(_seen(root, stack, clock=clock)).status is Status.OK
        clock.advance(60)
        clock.reboot()
        verdict = look_at_host(_seen(root, stack, clock=clock))
        assert (verdict.status, verdict.exit_code) == (Status.NOTE, 0)
        assert verdict.summary.startswith("rebooted")
        assert verdict.facts["boot_id"] != verdict.facts["last_boot_id"]


def test_a_clock_that_went_back_is_told(root: Path) -> None:
    clock = ManualClock()
    begin_job(root, KnownJob(job="j", start=_start(clock), workers=0, inputs=1))
    clock.step_wall(-3600)
    with ExitStack() as stack:
        verdict = look_at_host(_seen(root, stack, clock=clock))
    assert verdict.status is Status.NOTE
    assert "clock" in verdict.lines[0]


# --- disk ------------------------------------------------------------------------------------------------------------


def _disk(**changes: Any) -> DiskLook:
    whole = DiskLook(
        path="/nvme",
        type_name="ext4",
        is_local_disk=True,
        is_read_only=False,
        free_bytes=1 << 40,
        size_bytes=1 << 41,
        free_inodes=1_000,
        error_count=0,
    )
    return replace(whole, **changes)


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"is_read_only": True}, "read-only"),
        ({"error_count": 3}, "3 errors on record"),
        ({"is_local_disk": False, "type_name": "nfs4"}, "nfs4"),
        ({"free_bytes": 4096}, "is full"),
        ({"free_inodes": 0}, "no inode"),
    ],
)
def test_each_thing_wrong_with_a_disk_is_named(changes: dict[str, Any], word: str) -> None:
    (fault,) = find_disk_faults(_disk(**changes), is_any_allowed=False)
    assert word in fault
    assert "migrate" in fault


def test_a_good_disk_has_no_fault_and_one_below_the_reserve_a_note() -> None:
    for count in (0, None):
        assert list(find_disk_faults(_disk(error_count=count, free_inodes=None), is_any_allowed=False)) == []
    assert list(find_disk_faults(_disk(is_local_disk=False), is_any_allowed=True)) == []
    assert list(find_disk_notes(_disk(), reserve_bytes=1 << 30)) == []
    assert len(list(find_disk_notes(_disk(free_bytes=1 << 29), reserve_bytes=1 << 30))) == 1


def test_a_root_in_memory_fails_unless_it_is_allowed() -> None:
    memory = Path("/dev/shm") / f"durastore-doctor-{os.getpid()}"
    SpoolRoot.open(memory, is_any_filesystem_allowed=True).close()
    try:
        with ExitStack() as stack:
            verdict = look_at_disk(_seen(memory, stack))
            assert (verdict.status, verdict.exit_code) == (Status.FAILED, 12)
            assert "tmpfs" in verdict.lines[0]
            options = StoreOptions(is_any_filesystem_allowed=True)
            assert look_at_disk(_seen(memory, stack, options=options)).status is not Status.FAILED
    finally:
        shutil.rmtree(memory)


def test_a_root_that_is_none_moved_or_copied_is_refused_and_none_is_made(root: Path, tmp_path: Path) -> None:
    # case B17
    with ExitStack() as stack:
        with pytest.raises(StoreMissing):
            look_at_disk(_seen(tmp_path / "absent", stack))
        assert not (tmp_path / "absent").exists()
        (tmp_path / "empty").mkdir()
        with pytest.raises(StoreMissing):
            look_at_disk(_seen(tmp_path / "empty", stack))
        assert list((tmp_path / "empty").iterdir()) == []
        shutil.copytree(root, tmp_path / "copy")
        with pytest.raises(RootMismatch, match="is a copy"):
            look_at_disk(_seen(tmp_path / "copy", stack))
        (root / MOVED_NAME).write_text("/mnt/new\n", encoding="utf-8")
        with pytest.raises(RootMismatch, match="/mnt/new"):
            look_at_disk(_seen(root, stack))


# --- GPUs ------------------------------------------------------------------------------------------------------------


class FakeNvml:
    """The part of pynvml that is used, with one GPU."""

    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 12, 9

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, *pids: int, used: int = 5 << 30, error: int | None = None) -> None:
        self._pids, self._used, self._error = pids, used, error
        self.shut_down = 0

    def nvmlInit(self) -> None:
        if self._error is not None:
            raise self.NVMLError(self._error)

    def nvmlShutdown(self) -> None:
        self.shut_down += 1

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"Lab GPU {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(used=self._used, total=80 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=4 << 30) for pid in self._pids]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return []


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process of somebody's."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        yield process.pid
        process.kill()


def _look_at_gpus(root: Path, nvml: FakeNvml | None, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None: an import of it fails
    with ExitStack() as stack:
        return look_at_gpus(_seen(root, stack))


def test_a_foreign_process_on_a_gpu_is_named_and_lives_on(
    root: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml(sleeper)
    verdict = _look_at_gpus(root, nvml, monkeypatch)
    assert (verdict.status, verdict.exit_code) == (Status.NOTE, 0)
    assert f"pid {sleeper} sleep (user " in verdict.lines[0]
    assert str(4 << 30) in verdict.lines[0]
    assert not verdict.facts["gpus"][0]["processes"][0]["is_ours"]
    assert nvml.shut_down == 1
    os.kill(sleeper, 0)


def test_a_process_that_works_on_the_root_and_its_children_are_not_foreign(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as child, spool_at(root):
        verdict = _look_at_gpus(root, FakeNvml(os.getpid(), child.pid), monkeypatch)
        child.kill()
    assert verdict.status is Status.OK, verdict.lines


def test_memory_that_nobody_visible_holds_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _look_at_gpus(root, FakeNvml(used=200 << 20), monkeypatch).status is Status.OK
    verdict = _look_at_gpus(root, FakeNvml(used=9 << 30), monkeypatch)
    assert verdict.status is Status.NOTE
    assert "not visible" in verdict.lines[0]


@pytest.mark.parametrize("nvml", [None, FakeNvml(error=12), FakeNvml(error=9)])
def test_without_a_driver_nothing_is_said(root: Path, nvml: FakeNvml | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_DRIVER", root / "no driver")
    verdict = _look_at_gpus(root, nvml, monkeypatch)
    assert (verdict.status, verdict.summary) == (Status.SKIPPED, "no NVIDIA driver on this machine")


def test_a_driver_that_does_not_answer_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _look_at_gpus(root, FakeNvml(error=999), monkeypatch).status is Status.NOTE


def test_the_service_of_a_process_is_read_from_its_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durastore.doctor.processes._PROC", tmp_path)
    for pid, group, service in (
        (1, "0::/system.slice/vllm.service", "vllm.service"),
        (2, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/notebook.scope", "notebook.scope"),
        (3, "0::/system.slice/docker-0123456789abcdef0123.scope", "docker-0123456789abcdef0123.scope"),
        (4, f"0::/kubepods/burstable/pod1/{'0123456789abcdef' * 4}", "container 0123456789ab"),
        (5, "0::/", None),
    ):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "comm").write_text("python\n", encoding="utf-8")
        (folder / "cgroup").write_text(f"{group}\n", encoding="utf-8")
        assert look_at_process(pid).service == service
    assert look_at_process(99).name == "(not visible from here)"


def test_a_family_has_no_siblings() -> None:
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(["sleep", "60"]) as other:
        family = family_of({one.pid})
        assert one.pid in family
        assert os.getpid() in family
        assert other.pid not in family
        one.kill()
        other.kill()
