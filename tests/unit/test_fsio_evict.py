"""The cache folder: never above its limit, nothing dropped that is read, nothing touched that is no cache."""

from __future__ import annotations

import fcntl
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK, ManualClock
from durastore.errors import ConfigError, DiskFailed
from durastore.fsio.evict import CACHE_MARKER_NAME, CacheFolder
from durastore.fsio.publish import write_all
from durastore.fsio.sys import SystemCalls

KB = 1024
LIMIT = 100 * KB


def _all_spare(_: str) -> bool:
    return True


def _none_spare(_: str) -> bool:
    return False


def _data(number: int, size: int = 20 * KB) -> memoryview:
    return memoryview(bytes([number]) * size)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cache(tmp_path: Path, clock: ManualClock) -> CacheFolder:
    return CacheFolder(tmp_path / "cache", limit_bytes=LIMIT, clock=clock)


def allocated(folder: Path) -> int:
    """Bytes that the folder takes on its disk."""
    sizes = {stat.st_ino: stat.st_blocks * 512 for stat in [folder.stat(), *(path.stat() for path in folder.iterdir())]}
    return sum(sizes.values())


def test_the_ledger_never_says_less_than_is_there(cache: CacheFolder) -> None:
    for name in "abc":
        assert cache.keep(name, _data(1), is_spare=_none_spare)
        assert allocated(cache.path) <= int((cache.path / "ledger").read_text())


def _names(cache: CacheFolder) -> list[str]:
    return sorted(path.name for path in cache.path.iterdir() if path.name not in (CACHE_MARKER_NAME, "ledger"))


def test_what_is_kept_is_given_back(cache: CacheFolder) -> None:
    assert cache.read("a", size_bytes=20 * KB) is None
    assert cache.keep("a", _data(1), is_spare=_none_spare)
    assert cache.has("a")
    assert cache.read("a", size_bytes=20 * KB) == bytes(_data(1))
    assert cache.read("a", size_bytes=20 * KB - 1) is None
    assert not cache.keep("a", _data(2), is_spare=_none_spare)
    assert cache.read("a", size_bytes=20 * KB) == bytes(_data(1))
    cache.forget("a")
    cache.forget("a")
    assert not cache.has("a")
    copy = pickle.loads(pickle.dumps(CacheFolder(cache.path, limit_bytes=LIMIT, clock=SYSTEM_CLOCK)))
    assert copy.keep("empty", memoryview(b""), is_spare=_none_spare)
    assert cache.read("empty", size_bytes=0) == b""


def test_a_full_cache_keeps_what_is_no_spare(cache: CacheFolder) -> None:
    kept = [cache.keep(f"f{n}", _data(n), is_spare=_none_spare) for n in range(9)]
    assert kept == [True] * 4 + [False] * 5
    assert _names(cache) == ["f0", "f1", "f2", "f3"]
    assert allocated(cache.path) <= LIMIT
    cache.forget("f1")
    assert cache.keep("f9", _data(9), is_spare=_none_spare)
    assert allocated(cache.path) <= LIMIT


def test_the_oldest_spare_file_goes_first(cache: CacheFolder) -> None:
    for n in range(4):
        assert cache.keep(f"f{n}", _data(n), is_spare=_all_spare)
        os.utime(cache.path / f"f{n}", ns=(0, n))
    assert cache.keep("g", _data(7), is_spare=lambda name: name != "f0")
    assert _names(cache) == ["f0", "f2", "f3", "g"]


def test_what_is_read_stays(cache: CacheFolder, clock: ManualClock) -> None:
    for n in range(4):
        cache.keep(f"f{n}", _data(n), is_spare=_all_spare)
    readers = [os.open(cache.path / f"f{n}", os.O_RDONLY) for n in range(4)]
    for fd in readers:
        fcntl.flock(fd, fcntl.LOCK_SH)
    assert not cache.keep("g", _data(7), is_spare=_all_spare)
    cache.forget("f2")
    assert _names(cache) == ["f0", "f1", "f2", "f3"]
    os.close(readers[3])
    assert not cache.keep("g", _data(7), is_spare=_all_spare), "a full folder is not counted at every sample"
    clock.advance(61)
    assert cache.keep("g", _data(7), is_spare=_all_spare)
    assert _names(cache) == ["f0", "f1", "f2", "g"]
    for fd in readers[:3]:
        os.close(fd)


def test_what_is_being_written_is_neither_read_nor_dropped(cache: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    link = SystemCalls.link

    def watched(self: SystemCalls, source: str, target: str, *, source_fd: int, target_fd: int) -> None:
        link(self, source, target, source_fd=source_fd, target_fd=target_fd)
        if not seen:
            seen.append(cache.read("a", size_bytes=20 * KB))
            other = CacheFolder(cache.path, limit_bytes=LIMIT, clock=ManualClock())
            seen.extend(other.keep(f"x{n}", _data(n), is_spare=_all_spare) for n in range(6))
            seen.append(source in os.listdir(cache.path))

    monkeypatch.setattr(SystemCalls, "link", watched)
    assert cache.keep("a", _data(1), is_spare=_all_spare)
    assert seen[0] is None
    assert seen[-1] is True
    assert cache.read("a", size_bytes=20 * KB) == bytes(_data(1))
    assert allocated(cache.path) <= LIMIT


def test_what_is_no_file_stays_and_stops_nothing(cache: CacheFolder) -> None:
    elsewhere = cache.path.parent / "elsewhere"
    elsewhere.write_bytes(b"mine")
    (cache.path / "f").mkdir()
    (cache.path / "0").symlink_to(elsewhere)
    for number in range(8):
        assert cache.keep(f"{number:032x}", _data(number), is_spare=_all_spare)
    assert (cache.path / "f").is_dir()
    assert (cache.path / "0").is_symlink()
    assert elsewhere.read_bytes() == b"mine"
    assert cache.read("f", size_bytes=0) is None
    cache.forget("f")


def test_what_a_killed_writer_left_is_found_and_goes(cache: CacheFolder) -> None:
    for n in range(4):
        (cache.path / f".tmp-{n:016x}").write_bytes(bytes(_data(n)))
    (cache.path / "ledger").write_bytes(b"%020d\n" % LIMIT)
    assert cache.keep("a", _data(1), is_spare=_none_spare)
    assert _names(cache) == ["a"]


def test_a_ledger_that_says_nothing_is_counted_anew(cache: CacheFolder) -> None:
    for n in range(4):
        cache.keep(f"f{n}", _data(n), is_spare=_none_spare)
    for text in (b"", b"garbage", b"0" * 20, b"-" + b"0" * 19 + b"\n"):
        (cache.path / "ledger").write_bytes(text)
        other = CacheFolder(cache.path, limit_bytes=LIMIT, clock=ManualClock())
        assert not other.keep("g", _data(7), is_spare=_none_spare)
        assert allocated(cache.path) <= LIMIT


def test_a_full_disk_is_a_full_cache(cache: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: SystemCalls, fd: int, size_bytes: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(SystemCalls, "preallocate", full)
        assert not cache.keep("a", _data(1), is_spare=_none_spare)
    assert _names(cache) == []
    assert cache.keep("a", _data(1), is_spare=_none_spare)


def test_nothing_but_a_cache_is_used_as_one(tmp_path: Path) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"weights")
    with pytest.raises(ConfigError, match=r"model\.pt"):
        CacheFolder(folder, limit_bytes=LIMIT, clock=ManualClock())
    assert [path.name for path in folder.iterdir()] == ["model.pt"]
    (folder / CACHE_MARKER_NAME).write_text("Signature: 8a477f597d28d172789f06886806bc55\n# of another tool\n")
    with pytest.raises(ConfigError, match="another program"):
        CacheFolder(folder, limit_bytes=LIMIT, clock=ManualClock())
    assert (folder / "model.pt").read_bytes() == b"weights"


def test_a_folder_whose_marker_went_loses_nothing_more(cache: CacheFolder) -> None:
    for n in range(4):
        cache.keep(f"f{n}", _data(n), is_spare=_all_spare)
    (cache.path / CACHE_MARKER_NAME).unlink()
    assert not cache.keep("g", _data(7), is_spare=_all_spare)
    cache.forget("f0")
    assert _names(cache) == ["f0", "f1", "f2", "f3"]


def test_a_limit_that_is_another_or_no_disk_has_is_refused(cache: CacheFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="limit"):
        CacheFolder(cache.path, limit_bytes=LIMIT + 1, clock=ManualClock())
    with pytest.raises(ConfigError, match="smaller"):
        CacheFolder(tmp_path / "huge", limit_bytes=1 << 60, clock=ManualClock())


def test_threads_that_fill_and_drop_at_once_stay_within_the_limit(cache: CacheFolder) -> None:
    wrong: list[object] = []

    def churn(thread: int) -> None:
        own = CacheFolder(cache.path, limit_bytes=LIMIT, clock=SYSTEM_CLOCK)
        for n in range(30):
            own._count_again_s = None
            own.keep(f"t{thread}-{n}", _data(n, 12 * KB), is_spare=_all_spare)
            found = own.read(f"t{thread}-{n}", size_bytes=12 * KB)
            with own._folder() as folder, own._ledger(folder) as ledger:
                if int(os.pread(ledger, 20, 0)) > LIMIT or allocated(cache.path) > LIMIT:
                    wrong.append(allocated(cache.path))
            if found not in (None, bytes(_data(n, 12 * KB))):
                wrong.append(n)

    threads = [threading.Thread(target=churn, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _held_ledger(cache: CacheFolder) -> Callable[[], None]:
    """Another process has the ledger, and was stopped. The way back: it lets go. By itself after a while, so that who
    waits for it fails and does not hang.
    """
    fd = os.open(cache.path / "ledger", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    timer = threading.Timer(30, fcntl.flock, (fd, fcntl.LOCK_UN))
    timer.start()

    def let_go() -> None:
        timer.cancel()
        os.close(fd)

    return let_go


def test_a_process_that_was_stopped_with_the_ledger_stops_no_other(cache: CacheFolder, clock: ManualClock) -> None:
    assert cache.keep("a", _data(1), is_spare=_none_spare)
    let_go = _held_ledger(cache)
    began = clock.monotonic()
    with pytest.raises(DiskFailed, match="held its ledger"):
        cache.keep("b", _data(2), is_spare=_none_spare)
    waited = clock.monotonic() - began
    assert 2 < waited < 3
    for _ in range(100):
        with pytest.raises(DiskFailed, match="held its ledger"):
            cache.forget("a")
    assert clock.monotonic() - began == waited, "it is waited for once, not by each sample"
    assert cache.read("a", size_bytes=20 * KB) == bytes(_data(1))
    let_go()
    assert cache.keep("b", _data(2), is_spare=_none_spare)
    assert _names(cache) == ["a", "b"]


def test_a_ledger_that_is_held_while_a_file_is_written_leaves_it_as_a_kill_does(
    cache: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.keep("a", _data(1), is_spare=_none_spare)
    held: list[Callable[[], None]] = []

    def stopped_before(fd: int, chunks: list[memoryview]) -> None:
        write_all(fd, chunks)
        if len(chunks[0]) > KB:  # the ledger is written by the same function
            held.append(_held_ledger(cache))

    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr("durastore.fsio.evict.write_all", stopped_before)
        assert cache.keep("b", _data(2), is_spare=_none_spare), "it is whole under its name"
    assert len(held) == 1
    held[0]()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert cache.read("b", size_bytes=20 * KB) == bytes(_data(2))
    assert allocated(cache.path) <= int((cache.path / "ledger").read_text())
    assert cache.keep("c", _data(3), is_spare=_none_spare)
    cache.keep("d", _data(4, 60 * KB), is_spare=_none_spare)  # no room, so that it is counted
    assert _names(cache) == ["a", "b", "c"], "and the other name of it is gone"
    assert allocated(cache.path) <= int((cache.path / "ledger").read_text()) <= LIMIT
