"""Power cuts of the spool's disk while a store works (INV-1, INV-2; cases B02, B94): what a recovery finds afterwards.

A writer works on an ext4 file system whose disk records every write and every flush (`recording_disk`). At random
moments first the disk and then the writer is stopped; what the writer acknowledged by then must have been flushed. For
each moment images are made of what the disk may hold after a cut: everything flushed, and of the rest nothing, all or a
random part. From each image a store recovers, and must give back all that was acknowledged.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.crash.fork_servers import environment, judge, memory_folder, run_jobs, tell
from tests.crash.lives import random_life
from tests.crash.power_look import Look
from tests.crash.recording_disk import BLOCK, SECTOR, DiskFolder

HERE = Path(__file__).parent
Process = subprocess.Popen[bytes]
DISK_BYTES = 96 << 20
WORDS = 60
MOUNTS = ("data=ordered", "data=ordered,commit=1", "data=ordered,nodelalloc")
WANTED = 300
EPISODES = 9
MOMENTS = 20
TOOLS = ("mkfs.ext4", "mount", "umount", "losetup")


def _why_not() -> str | None:
    """Why no disk can be made here; None if one can."""
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not there"
    if subprocess.run(["losetup", "--find"], capture_output=True, check=False).returncode:
        return "no loop device can be had"
    return None


pytestmark = pytest.mark.skipif(_why_not() is not None, reason=str(_why_not()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What was true at one moment, the writer standing still."""

    clock: int
    names: list[str]
    lines: list[str]


@contextmanager
def disk(folder: DiskFolder, options: str) -> Iterator[tuple[Path, Process]]:
    """A fresh ext4 file system on a recording disk, mounted, and the process that is the disk."""
    folder.path.mkdir()
    with folder.start.open("wb") as start:
        start.truncate(DISK_BYTES)
    quiet = ["-q", "-F", "-m", "0", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]
    subprocess.run(["mkfs.ext4", *quiet, str(folder.start)], check=True)
    server = subprocess.Popen(
        [sys.executable, str(HERE / "recording_disk.py"), str(folder.path), str(DISK_BYTES)],
        env=environment(),
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    mount = folder.path / "mount"
    mount.mkdir()
    try:
        subprocess.run(["mount", "-o", f"loop,{options}", str(folder.device), str(mount)], check=True)
        try:
            yield mount, server
        finally:
            subprocess.run(["umount", str(mount)], check=True)
    finally:
        subprocess.run(["umount", str(folder.device)], check=True)
        server.communicate(timeout=30)


@contextmanager
def standing_still(server: Process, writer: Process) -> Iterator[None]:
    """The disk stops first: nothing is written or flushed any more, and whoever waits for that goes on waiting."""
    try:
        for process in (server, writer):
            stop(process)
        yield
    finally:
        for process in (writer, server):
            process.send_signal(signal.SIGCONT)


def stop(process: Process) -> None:
    """Returns once no thread can do anything: each is stopped, or waits in the kernel for the disk.

    The signal goes to each thread: one sent to the process may be kept for a thread that waits for the disk.
    """
    libc = ctypes.CDLL(None)
    deadline = time.monotonic() + 30
    states: set[str] = set()
    while time.monotonic() < deadline:
        for task in _tasks(process):
            libc.tgkill(process.pid, int(task.name), signal.SIGSTOP)
        try:
            states = {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in _tasks(process)}
        except FileNotFoundError:
            continue  # a thread ended in between
        if states <= {"T", "D", "Z"}:
            return
    raise AssertionError(f"the process does not stop: its threads are {states}")


def _tasks(process: Process) -> list[Path]:
    return list(Path(f"/proc/{process.pid}/task").iterdir())


def watch(
    folder: DiskFolder, processes: tuple[Process, Process], *, bucket: Path, count: int, rng: random.Random
) -> list[Moment]:
    """Stop disk and writer at `count` moments, each a random amount of disk work after the one before."""
    writer = processes[1]
    acks = folder.path / "acks"
    moments: list[Moment] = []
    while len(moments) < count:
        wanted = folder.now() + rng.randrange(1, 250_000)
        while folder.now() < wanted and writer.poll() is None:
            time.sleep(0.0005)
        if writer.poll() is not None:
            break
        with standing_still(*processes):
            names = [str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file()]
            lines = acks.read_text().splitlines() if acks.exists() else []
            moments.append(Moment(clock=folder.now(), names=names, lines=lines))
    return moments


def episode(folder: DiskFolder, *, options: str, seed: int, count: int, flags: tuple[str, ...] = ()) -> list[Look]:
    """One writer on one disk; the looks at its moments."""
    rng = random.Random(seed)
    with disk(folder, options) as (mount, server):
        bucket = folder.path / "bucket"
        bucket.mkdir()
        life = json.dumps(list(random_life(rng, WORDS)))
        arguments = [str(bucket), str(mount / "spool"), str(folder.path / "acks"), life, *flags]
        writer = subprocess.Popen([sys.executable, str(HERE / "life_process.py"), *arguments], env=environment())
        try:
            moments = watch(folder, (server, writer), bucket=bucket, count=count, rng=rng)
        finally:
            writer.kill()
            writer.wait()
    assert writer.returncode in (0, -signal.SIGKILL)
    return [look for moment in moments for look in _looks(folder, moment, bucket=bucket, rng=rng)]


def _looks(folder: DiskFolder, moment: Moment, *, bucket: Path, rng: random.Random) -> list[Look]:
    """Two cuts at each moment: nothing of the disk's cache survived, and some or all of it."""
    return [
        Look(
            disk=str(folder.path),
            bucket=str(bucket),
            moment=moment.clock,
            names=moment.names,
            lines=moment.lines,
            kept_share=share,
            piece_bytes=rng.choice((BLOCK, SECTOR)),
            seed=rng.randrange(1 << 32),
        )
        for share in (0.0, rng.choice((0.2, 0.5, 0.8, 1.0)))
    ]


def cut_power(tmp_path: Path, *, episodes: int, moments: int, flags: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for number in range(episodes):
        seed = random.randrange(1 << 32)
        with memory_folder() as memory:
            folder = DiskFolder(memory / "disk")
            looks = episode(folder, options=MOUNTS[number % len(MOUNTS)], seed=seed, count=moments, flags=flags)
            found = run_jobs(HERE / "power_look.py", [asdict(look) for look in looks], spools=tmp_path)
        results += [result | {"episode": seed} for result in found]
    return results


@pytest.mark.timeout(300)
def test_sampled_power_cuts_lose_nothing(tmp_path: Path) -> None:
    results = cut_power(tmp_path, episodes=1, moments=6)
    judge(results)
    assert len(results) >= 8


@pytest.mark.timeout(300)
def test_a_missing_sync_is_seen(tmp_path: Path) -> None:
    """The method would show a loss: a writer whose own files are never synced loses what it acknowledged."""
    results = cut_power(tmp_path, episodes=1, moments=8, flags=("--without-sync",))
    assert any(result["lost"] or result["faults"] for result in results)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_no_power_cut_loses_anything(tmp_path: Path) -> None:
    begun = time.monotonic()
    results = cut_power(tmp_path, episodes=EPISODES, moments=MOMENTS)
    judge(results)
    cuts, acknowledged = len(results), sum(result["acknowledged"] for result in results)
    dropped = sum(result["dropped_bytes"] > 0 for result in results)
    seconds = time.monotonic() - begun
    tell(
        f"{cuts} power-cut images in {seconds:.0f} s, {dropped} of them without some unflushed writes: "
        f"{acknowledged} acknowledged samples looked for, nothing lost, nothing claimed that was not there"
    )
    assert cuts >= WANTED
