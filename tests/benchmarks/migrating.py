"""`make bench ARGS=--migrating`: a verified migrate beside the ways in which files are moved without it.

Source on this disk, its cache dropped before each turn; destination a fresh ext4 on a loop device with direct I/O.
Beside `cp -a` and `sync`, which says nothing of what arrived, and beside the only way in which rsync comes to the same
evidence: `rsync -a --fsync`, the destination's cache dropped, `rsync -anc`, which reads both sides once more.
Needs root and rsync.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.pairs import Line

__all__ = ["migrating_lines"]

_DISK_BYTES = 12 << 30
_TOOLS = ("rsync", "mkfs.ext4", "losetup", "mount", "umount")
_ROOT = Path(__file__).parents[2]
_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """So many files, in folders of a thousand."""

    name: str
    count: int
    size_bytes: int

    def make(self, folder: Path) -> None:
        for number in range(self.count):
            path = folder / f"{number // 1000:03d}" / f"{number:06d}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(self.size_bytes))


_LOADS = (
    _Load(name="20,000 x 16 KB", count=20_000, size_bytes=16 << 10),
    _Load(name="200 x 20 MB", count=200, size_bytes=20_000_000),
)


def migrating_lines(*, work: Path, turns: int) -> Iterator[Line]:
    """Two lines a load; the raw seconds of every turn are printed."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        raise SystemExit(f"--migrating mounts a file system: it needs root and {', '.join(_TOOLS)}")
    for load in _LOADS:
        source = work / f"bench-migrate-{load.count}x{load.size_bytes}"
        if not source.exists():
            made = source.with_suffix(".tmp")
            made.mkdir(parents=True)
            load.make(made)
            made.rename(source)
        yield from _load_lines(load, source, work=work, turns=turns)


def _load_lines(load: _Load, source: Path, *, work: Path, turns: int) -> Iterator[Line]:
    ways = {"durastore migrate": _migrate, "rsync": _rsync, "cp": _cp}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        order = list(ways)
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            with _fresh_disk(work) as disk:
                seconds[name].append(_timed(ways[name], source, disk))
    for name, each in seconds.items():
        print(f"{load.name}: {name}: " + ", ".join(f"{s:.2f}" for s in each) + " s", flush=True)  # noqa: T201 - raw times
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    # a ratio of speeds: how many times as fast as the peer
    for peer, goal, shown in (("rsync", ">= 2.0", "rsync -a --fsync, -anc"), ("cp", ">= 0.75", "cp -a, sync")):
        yield Line(
            name=f"verified migrate of {load.name}",
            durastore=1 / medians["durastore migrate"],
            peer=1 / medians[peer],
            peer_name=shown,
            unit="per second",
            goal=goal,
        )


def _timed(way: Callable[[Path, Path], None], source: Path, disk: Path) -> float:
    _drop_caches()
    begun = time.perf_counter()
    way(source, disk)
    return time.perf_counter() - begun


def _migrate(source: Path, disk: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{_ROOT}:{_ROOT / 'cli'}"}
    _run([sys.executable, "-m", "durastore_cli.main", "migrate", str(source), str(disk / "data")], environment)


def _rsync(source: Path, disk: Path) -> None:
    _run(["rsync", "-a", "--fsync", f"{source}/", f"{disk / 'data'}/"])
    _drop_caches()
    if _run(["rsync", "-anc", "-i", f"{source}/", f"{disk / 'data'}/"]).strip():
        raise SystemExit("rsync found a difference")


def _cp(source: Path, disk: Path) -> None:
    _run(["cp", "-a", str(source), str(disk / "data")])
    _run(["sync"])


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2_000:]}")
    return done.stdout


def _drop_caches() -> None:
    os.sync()
    _CACHES.write_text("3\n")


@contextmanager
def _fresh_disk(work: Path) -> Iterator[Path]:
    """An empty ext4; its image and mount point are gone at the end."""
    image, mount = work / "bench-migrate.img", work / "bench-migrate-mount"
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    mount.mkdir(exist_ok=True)
    _run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image)])
    device = _run(["losetup", "--find", "--show", "--direct-io=on", str(image)]).strip()
    try:
        _run(["mount", device, str(mount)])
        try:
            yield mount
        finally:
            _run(["umount", str(mount)])
    finally:
        _run(["losetup", "--detach", device])
        image.unlink()
