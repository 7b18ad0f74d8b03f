"""How bytes go: past the page cache or through it, asked for ahead, with so many descriptors as there may be."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from durastore.fsio.cache import drop_cached, is_uncached, read_ahead
from durastore.fsio.folder import Folder
from durastore.fsio.publish import TempFile
from durastore.fsio.sys import SYS
from durastore.migrate import copying, reading
from durastore.migrate import run as run_module
from tests.unit.migrate_lab import MigrateLab, mig

__all__ = ["mig"]

BIG = copying.LARGE_BYTES + 12_345


def open_files() -> list[str]:
    return os.listdir("/proc/self/fd")


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """So many descriptors for this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def direct_reads(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[bool]:
    """Of each read of this file: whether it went past the cache."""
    inode, plain, seen = path.stat().st_ino, os.preadv, list[bool]()

    def preadv(fd: int, buffers: Any, offset: int) -> int:
        if os.fstat(fd).st_ino == inode:
            seen.append(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT))
        return plain(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    return seen


def leave_cache(path: Path) -> None:
    """As long after it was written."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    drop_cached(fd)
    is_left = is_uncached(fd)
    os.close(fd)
    if not is_left:
        pytest.skip("this file system or kernel does not do without its cache, or does not tell")


def test_a_large_source_that_is_nowhere_in_memory_does_not_fill_it(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mig.write("big.bin", BIG)
    leave_cache(path)
    seen = direct_reads(monkeypatch, path)
    assert mig.run().exit_code == 0
    assert seen[0]
    fd = os.open(path, os.O_RDONLY)
    assert is_uncached(fd)
    os.close(fd)
    mig.check(is_all_there=True)


@pytest.mark.parametrize("case", ["in memory", "not a local disk"])
def test_what_is_in_memory_is_what_is_copied(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """A disk that fails keeps an old block, and the page that it did not take is the file."""
    path = mig.write("big.bin", BIG)
    leave_cache(path)
    if case == "in memory":
        with path.open("rb") as file:
            file.seek(1 << 20)
            file.read(1)
    else:
        plain = reading.SourceReader
        monkeypatch.setattr(
            run_module, "SourceReader", lambda formats, *, rate, is_local: plain(formats, rate=rate, is_local=False)
        )
    seen = direct_reads(monkeypatch, path)
    assert mig.run().exit_code == 0
    assert True not in seen
    mig.check(is_all_there=True)


def test_a_large_copy_is_read_past_the_cache(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.write("big.bin", BIG)
    try:
        os.close(os.open(mig.source / "big.bin", os.O_RDONLY | os.O_DIRECT))  # DST lies beside it
    except OSError:
        pytest.skip("this file system does not do without its cache")
    seen: list[bool] = []
    plain, compared = os.preadv, reading.read_copy

    def read_copy(fd: int, size_bytes: int) -> Any:
        def preadv(fd: int, buffers: Any, offset: int) -> int:
            seen.append(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT))
            return plain(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", preadv)
        return compared(fd, size_bytes)

    monkeypatch.setattr(copying, "read_copy", read_copy)
    assert mig.run(jobs=1).exit_code == 0
    assert seen[:1] == [True]


def test_small_copies_are_asked_for_once_they_were_dropped(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were dropped once more before each was read: every byte came twice, and was waited for."""
    mig.fill(20)
    calls: list[tuple[str, int]] = []

    def noting(name: str, call: Callable[[int], None]) -> Callable[[int], None]:
        def noted(fd: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(mig.target)):
                calls.append((name, fd))
            call(fd)

        return noted

    monkeypatch.setattr(copying, "drop_cached", noting("drop", drop_cached))
    monkeypatch.setattr(reading, "drop_cached", noting("drop", drop_cached))
    monkeypatch.setattr(copying, "read_ahead", noting("ask", read_ahead))
    assert mig.run(jobs=1).exit_code == 0
    assert [name for name, _ in calls] == ["drop"] * 20 + ["ask"] * 20


@pytest.mark.parametrize("rate, most", [(0, 33), (1 << 30, 1)])
def test_sources_are_asked_for_ahead_where_no_rate_is_to_be_kept(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, rate: int, most: int
) -> None:
    mig.fill(60)
    opened: list[int] = []
    plain = copying._Unit._written

    def written(unit: Any, item: Any, source: Any) -> Any:
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in open_files() if os.path.exists(f"/proc/self/fd/{fd}")]
        opened.append(sum(link.startswith(str(mig.source)) and link.endswith(".bin") for link in links))
        return plain(unit, item, source)

    monkeypatch.setattr(copying._Unit, "_written", written)
    assert mig.run(jobs=1, bytes_per_s=rate).exit_code == 0
    assert max(opened) == most


@pytest.mark.parametrize("limit", [150, 300, 1024])
def test_more_jobs_than_descriptors_allow_are_fewer_jobs(mig: MigrateLab, limit: int) -> None:
    """Each of 64 threads was promised four files and its folders, of 128 descriptors in all."""
    for number in range(600):
        mig.write(f"d{number % 40}/f{number}.bin", 50)
    limit = max(limit, len(open_files()) + 60)
    with at_most(limit):
        report = mig.run(jobs=64)
    assert (report.exit_code, report.failed, report.stopped) == (0, {}, None)
    mig.check(is_all_there=True)


@pytest.mark.parametrize("size", [500, BIG])
def test_an_interruption_leaves_no_file_open(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    mig.fill(40)
    mig.write("x.bin", size)
    before = len(open_files())

    def interrupted(fd: int, meta: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(copying, "set_file_meta", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mig.run(jobs=2)
    assert len(open_files()) == before
    mig.check()


def test_a_disk_that_fails_while_a_large_file_goes_past_the_cache_is_the_destinations(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case B115
    mig.write("big.bin", BIG)
    plain = SYS.writev

    def writev(fd: int, buffers: Any) -> int:
        if len(buffers[0]) > 1_000_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(fd, buffers)

    monkeypatch.setattr(SYS, "writev", writev)
    report = mig.run(is_reclaiming=True)
    assert (report.exit_code, report.failed) == (3, {})
    assert "No space left" in (report.stopped or "")
    assert mig.there() == {}
    mig.check()


def test_a_file_system_that_gives_new_files_away_keeps_no_access_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = SYS.open

    def refuse(name: str, flags: int, *, mode: int, dir_fd: int) -> int:
        if flags & os.O_NOATIME:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return plain(name, flags, mode=mode, dir_fd=dir_fd)

    monkeypatch.setattr(SYS, "open", refuse)
    with Folder.open(tmp_path) as folder, TempFile.open(folder, flags=os.O_NOATIME) as temp:
        assert temp.temp_name is None
        assert not fcntl.fcntl(temp.fd, fcntl.F_GETFL) & os.O_NOATIME
