"""Memory that is used again: only once nothing sees it any more."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys
import threading

import numpy as np
import pytest

from durastore.codec.blocks import LEAST_BYTES, PAGED_BYTES, Blocks

MIB = 1 << 20
FORKED_WHILE_LOCKED = """
import os, signal, threading
from durastore.codec.blocks import BLOCKS
is_held, is_over = threading.Event(), threading.Event()
def hold():
    with BLOCKS._lock:
        is_held.set()
        is_over.wait()
threading.Thread(target=hold).start()
is_held.wait()
pid = os.fork()
if not pid:
    signal.alarm(20)
    BLOCKS.take(2 << 20)[:] = 1
    os._exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
is_over.set()
print(code)
"""


WRITTEN_BY_A_CHILD = """
import os
from durastore.codec.blocks import BLOCKS, PAGED_BYTES
block = BLOCKS.take(PAGED_BYTES)
block[:] = 7
pid = os.fork()
if not pid:
    block[:] = 9
    os._exit(0)
os.waitpid(pid, 0)
print(int(block.min()), int(block.max()))
"""


def address(array: np.ndarray) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def test_what_anything_still_sees_is_not_lent_again() -> None:
    blocks = Blocks(idle_bytes=64 * MIB)
    first = blocks.take(4 * MIB)
    first[:] = 7
    place = address(first)
    seen = first[MIB : 2 * MIB].data.toreadonly()[10:20]
    del first
    second = blocks.take(4 * MIB)
    second[:] = 9
    assert address(second) != place
    assert bytes(seen) == bytes([7]) * 10
    del seen
    assert address(blocks.take(4 * MIB)) == place


def test_sizes_are_exact_and_a_block_serves_what_needs_at_least_half_of_it() -> None:
    blocks = Blocks(idle_bytes=64 * MIB)
    place = address(blocks.take(4 * MIB))
    for size in (2 * MIB, 3 * MIB + 5, 4 * MIB):
        taken = blocks.take(size)
        assert (taken.nbytes, taken.dtype, address(taken)) == (size, np.dtype(np.uint8), place)
        assert taken.flags.writeable
        del taken
    assert address(blocks.take(2 * MIB - 1)) != place
    assert address(blocks.take(4 * MIB + 1)) != place
    assert blocks.take(0).nbytes == 0
    assert blocks.take(LEAST_BYTES - 1).base is None


@pytest.mark.parametrize("size", [PAGED_BYTES, 8 * MIB + 1])
def test_large_memory_begins_at_a_page(size: int) -> None:
    blocks = Blocks(idle_bytes=64 * MIB)
    taken = [blocks.take(size) for _ in range(3)]
    assert {address(each) % mmap.PAGESIZE for each in taken} == {0}
    for number, each in enumerate(taken):
        each[:] = number
    assert [set(map(int, (each[0], each[size // 2], each[-1]))) for each in taken] == [{0}, {1}, {2}]


def test_no_memory_is_told_as_numpy_tells_it() -> None:
    with pytest.raises(MemoryError):
        Blocks(idle_bytes=0).take(1 << 62)


@pytest.mark.parametrize("size", [2, 7, 11])
def test_no_more_is_kept_than_was_allowed(size: int) -> None:
    blocks = Blocks(idle_bytes=10 * MIB)
    taken = [blocks.take(size * MIB) for _ in range(8)]
    taken.clear()
    assert sum(block.nbytes for block in blocks._idle) <= 10 * MIB
    assert len(blocks._idle) == 10 // size


def test_the_garbage_collector_may_give_memory_back_in_the_middle_of_it_all() -> None:
    blocks = Blocks(idle_bytes=64 * MIB)
    wrong: list[int] = []

    def work(mark: int) -> None:
        for _ in range(200):
            array = blocks.take(MIB)
            array[:] = mark
            circle: list[object] = [array]
            circle.append(circle)
            if not (array == mark).all():
                wrong.append(mark)
            del array, circle

    threshold = gc.get_threshold()
    gc.set_threshold(5)
    try:
        threads = [threading.Thread(target=work, args=(mark,)) for mark in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*threshold)
    assert not wrong
    assert sum(block.nbytes for block in blocks._idle) <= 64 * MIB


def test_a_child_that_was_forked_in_the_middle_of_it_gets_memory() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED_WHILE_LOCKED]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "7\n"


def test_what_a_forked_child_writes_is_its_own() -> None:
    command = [sys.executable, "-W", "ignore", "-c", WRITTEN_BY_A_CHILD]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "7 7\n"
