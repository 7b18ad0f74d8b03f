"""Large files past the page cache: the same bytes, whatever the file system does and does not do."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from durastore.fsio import past_cache
from durastore.fsio.cache import drop_cached, is_uncached
from durastore.fsio.past_cache import read_blocks, read_past_cache, write_past_cache, writing_past_cache
from durastore.fsio.sys import SYS, Buffer

ROOM = 4 << 20
SIZES = (0, 1, 4095, 4096, 4097, ROOM - 1, ROOM, ROOM + 1, 2 * ROOM + 777)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    yield fd
    os.close(fd)


def pieces_of(data: bytes) -> list[bytes]:
    """In pieces that end anywhere, empty ones among them."""
    cuts = sorted(random.Random(len(data)).choices(range(len(data) + 1), k=7))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def read(fd: int, size: int, *, offset: int = 0) -> bytes:
    target = bytearray(size)
    return bytes(target[: read_past_cache(fd, memoryview(target), offset=offset)])


def is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def is_cached(fd: int) -> bool:
    """Whether any byte of the file is in the page cache. Looks at the mapping's pages, none of which it touches."""
    size = os.fstat(fd).st_size
    pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
    with mmap.mmap(fd, size) as mapped:
        address = ctypes.addressof(held := ctypes.c_char.from_buffer(mapped))
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) == 0
        del held
    return any(page & 1 for page in pages)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_written_is_read_again(fd: int, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert write_past_cache(fd, pieces_of(data)) == size
    os.fsync(fd)
    assert os.pread(fd, size + 1, 0) == data
    for offset in (0, 1, 4096, ROOM):
        assert read(fd, size + 1, offset=offset) == data[offset:], offset
        assert read(fd, size // 3, offset=offset) == data[offset : offset + size // 3], offset
    assert not is_direct(fd)


@pytest.mark.parametrize("size", SIZES)
def test_memory_that_lies_right_is_read_into_by_the_disk_itself(
    fd: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(size).randbytes(size)
    write_past_cache(fd, [data])
    monkeypatch.setattr(past_cache, "_room", None)  # whoever asks for other memory to copy from fails
    with mmap.mmap(-1, size + mmap.PAGESIZE) as pages, memoryview(pages) as memory:
        for offset in (0, 1, 4096, ROOM):
            for wanted in {size + 1, size // 3 or 1}:
                memory[:] = bytes(len(memory))
                with memory[:wanted] as target:
                    done = read_past_cache(fd, target, offset=offset)
                assert bytes(memory[:done]) == data[offset : offset + wanted], (offset, wanted)
                assert not any(memory[done:])  # nothing behind what was asked for
    assert not is_direct(fd)


def test_neither_writing_nor_reading_fills_the_page_cache(fd: int) -> None:
    data = random.Random(1).randbytes(ROOM)
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system does not do without its cache")
    os.pwrite(fd, data[:1], 0)
    assert is_cached(fd)
    os.ftruncate(fd, 0)
    write_past_cache(fd, [data])
    os.fsync(fd)
    assert not is_cached(fd)
    assert read(fd, ROOM) == data
    assert not is_cached(fd)


def test_what_is_only_in_the_cache_is_read_too(fd: int) -> None:
    data = random.Random(2).randbytes(2 * ROOM)
    write_past_cache(fd, [data])
    os.pwrite(fd, b"fresh", 4096)  # not on the disk yet
    assert read(fd, 2 * ROOM) == data[:4096] + b"fresh" + data[4101:]


def test_a_file_system_that_wants_the_cache_gets_its_bytes_through_it(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, direct = random.Random(3).randbytes(2 * ROOM + 5), []

    def refuse(handle: int, buffers: Sequence[Buffer], *, writev=SYS.writev) -> int:  # type: ignore[no-untyped-def]
        if is_direct(handle):
            direct.append(handle)
            raise OSError(errno.EINVAL, "not aligned to what this one wants")
        return int(writev(handle, buffers))

    monkeypatch.setattr(SYS, "writev", refuse)
    assert write_past_cache(fd, pieces_of(data)) == len(data)
    assert direct == [fd]  # asked once
    assert os.pread(fd, len(data) + 1, 0) == data
    assert not is_direct(fd)


@pytest.mark.parametrize("taken", [8192, 777])
def test_a_write_that_stops_halfway_is_gone_on_with(fd: int, monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    data = random.Random(4).randbytes(2 * ROOM + 5)
    writes = 0

    def short(handle: int, buffers: Sequence[Buffer]) -> int:
        nonlocal writes
        writes += 1
        if writes != 2:
            return os.writev(handle, buffers)
        if is_direct(handle) and taken % 4096:  # as a device with smaller blocks would stop
            flags = fcntl.fcntl(handle, fcntl.F_GETFL)
            fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            count = os.write(handle, memoryview(buffers[0])[:taken])
            fcntl.fcntl(handle, fcntl.F_SETFL, flags)
            return count
        return os.write(handle, memoryview(buffers[0])[:taken])

    monkeypatch.setattr(SYS, "writev", short)
    assert write_past_cache(fd, [data]) == len(data)
    assert os.pread(fd, len(data) + 1, 0) == data


def test_a_full_disk_is_told_and_the_descriptor_comes_back_as_it_was(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(SYS, "writev", full)
    with pytest.raises(OSError, match="full"):
        write_past_cache(fd, [bytes(ROOM)])
    assert not is_direct(fd)


def write_blocks(fd: int, data: bytes) -> None:
    """As a copy is written: from memory as `read_blocks` has it."""
    with past_cache._room() as room, writing_past_cache(fd) as write:
        for start in range(0, len(data), ROOM):
            block = data[start : start + ROOM]
            room[: len(block)] = block
            write(room[: len(block)])


@pytest.mark.parametrize("is_direct_asked", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_blocks_are_the_file(fd: int, size: int, is_direct_asked: bool) -> None:
    data = random.Random(size).randbytes(size)
    write_blocks(fd, data)
    assert not is_direct(fd)
    assert os.pread(fd, size + 1, 0) == data
    found = bytearray()
    for block in read_blocks(fd, is_direct=is_direct_asked):
        found += block
    assert found == data
    assert not is_direct(fd)


def test_blocks_leave_nothing_in_the_page_cache(fd: int) -> None:
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system does not do without its cache")
    write_blocks(fd, random.Random(5).randbytes(2 * ROOM))
    os.fsync(fd)
    assert not is_cached(fd)
    assert sum(map(len, read_blocks(fd))) == 2 * ROOM
    assert not is_cached(fd)


def test_blocks_that_lie_anywhere_are_written_through_the_cache(fd: int) -> None:
    data = random.Random(6).randbytes(100_001)
    with writing_past_cache(fd) as write:
        for start in range(0, len(data), 9_999):
            write(memoryview(data)[start : start + 9_999])
    assert os.pread(fd, len(data) + 1, 0) == data


def test_a_file_system_that_wants_the_cache_is_read_through_it(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, plain = random.Random(7).randbytes(2 * ROOM + 5), os.preadv
    os.write(fd, data)

    def refuse(handle: int, buffers: Sequence[bytearray], offset: int) -> int:
        if is_direct(handle):
            raise OSError(errno.EINVAL, "not aligned to what this one wants")
        return plain(handle, buffers, offset)

    monkeypatch.setattr(os, "preadv", refuse)
    assert b"".join(map(bytes, read_blocks(fd))) == data


def test_blocks_that_are_not_read_to_the_end_leave_the_descriptor_as_it_was(fd: int) -> None:
    os.write(fd, bytes(2 * ROOM))
    blocks = read_blocks(fd)
    assert len(next(blocks)) == ROOM
    blocks.close()
    assert not is_direct(fd)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_fork_gets_no_copy_of_the_memory_that_is_read_into() -> None:
    """Pages that two processes share are copied at the next write: what the disk brings then lands in one of them."""
    room = past_cache._new_room()
    room[:5] = b"bytes"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if bytes(room[:5]) == bytes(5) else 9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert bytes(room[:5]) == b"bytes"


def test_a_kernel_without_huge_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_cache, "_WIPEONFORK", None)
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345)
    room = past_cache._new_room()
    assert len(room) == ROOM
    assert ctypes.addressof(ctypes.c_char.from_buffer(room)) % mmap.PAGESIZE == 0


def test_the_kernel_tells_what_is_in_its_cache(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    os.write(fd, bytes(50_000))
    assert not is_uncached(fd)
    os.fsync(fd)
    drop_cached(fd)
    if is_cached(fd):
        pytest.skip("this file system does not do without its cache")
    if not is_uncached(fd):
        pytest.skip("this kernel does not tell")
    os.pread(fd, 1, 0)
    assert not is_uncached(fd)
    monkeypatch.setattr("durastore.fsio.cache._CACHESTAT", None)
    drop_cached(fd)
    assert not is_uncached(fd), "not knowing is not being told"


def test_a_descriptor_that_cannot_be_asked_is_not_called_uncached() -> None:
    reader, writer = os.pipe()
    os.close(writer)
    os.close(reader)
    assert not is_uncached(reader)
