"""Large files past the page cache: new pages of it have to be found and filled, which took the kernel ten times the CPU
of the write itself, and they push out what others had there.

Duty: write whole files and read all or a part of one past it, through the cache wherever the file system does not do
without. Makes nothing durable by itself: the caller syncs, as after any write. Must never leave a descriptor in another
mode than it came in.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress

from durastore.fsio.cache import read_once
from durastore.fsio.publish import write_all
from durastore.fsio.sys import SYS, Buffer

__all__ = ["read_blocks", "read_past_cache", "write_past_cache", "writing_past_cache"]

_ROOM_BYTES = 4 << 20
_BLOCK_BYTES = 4096
"""What places, lengths and memory are multiples of: no file system asks for more."""
_CACHED_BYTES = 1 << 20
"""What is read through the cache at once: whoever hashes it next finds it in that of the core."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_HUGE_BYTES = 2 << 20
_WIPEONFORK = 18 if sys.platform == "linux" else None
"""MADV_WIPEONFORK, which the module mmap does not name."""
_IDLE_ROOMS = 4
_rooms: list[memoryview] = []


def write_past_cache(fd: int, chunks: Iterable[Buffer]) -> int:
    """As `write_all`, from the beginning of an empty file."""
    with _room() as room, _direct(fd) as direct:
        total = filled = 0
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            while len(view):
                size = min(_ROOM_BYTES - filled, len(view))
                room[filled : filled + size] = view[:size]
                view, filled = view[size:], filled + size
                if filled == _ROOM_BYTES:
                    total += direct.write(room)
                    filled = 0
        whole = filled - filled % _BLOCK_BYTES
        total += direct.write(room[:whole])
        direct.end()
        return total + write_all(fd, [room[whole:filled]])


@contextmanager
def writing_past_cache(fd: int) -> Iterator[Callable[[memoryview], None]]:
    """A call that appends one block to an empty file: past the cache for as long as blocks lie as `read_blocks` has
    them and are whole, through it from the first that is not.
    """
    with _direct(fd) as direct:

        def take(block: memoryview) -> None:
            whole = len(block) - len(block) % _BLOCK_BYTES
            direct.write(block[:whole])
            if whole < len(block):
                direct.end()
                write_all(fd, [block[whole:]])

        yield take


def read_blocks(fd: int, *, is_direct: bool = True) -> Generator[memoryview, None, None]:
    """The file from its beginning until nothing more comes, block by block; each is there until the next is asked for.

    `is_direct`: past the cache, where the file system can. OSError passes. Close it before the descriptor.
    """
    with _room() as room, _direct(fd) if is_direct else nullcontext() as direct:
        offset = 0
        while direct is not None and direct.is_on:
            count = direct.read(room, offset=offset)
            if count % _BLOCK_BYTES or not count:  # the file ends, or wants its cache
                direct.end()
            if count:
                yield room[:count]
            offset += count
        if not offset:
            read_once(fd)
        while count := os.preadv(fd, [room[:_CACHED_BYTES]], offset):
            yield room[:count]
            offset += count


def read_past_cache(fd: int, target: memoryview, *, offset: int) -> int:
    """The bytes of the file from `offset`, into `target`; returns how many: fewer only where the file ends.

    What was just written through the cache is among them. OSError passes.
    """
    done = 0
    is_fit = bool(len(target)) and not _address(target) % _BLOCK_BYTES
    with nullcontext() if is_fit else _room() as room, _direct(fd) as direct:
        while direct.is_on and not (offset + done) % _BLOCK_BYTES and len(target) - done >= _BLOCK_BYTES:
            wanted = min(_ROOM_BYTES, len(target) - done)
            wanted -= wanted % _BLOCK_BYTES
            # what is read stays fit for more: its length is whole blocks, or the loop ends with it
            place = target[done : done + wanted] if room is None else room[:wanted]
            count = direct.read(place, offset=offset + done)
            if room is not None:
                target[done : done + count] = room[:count]
            done += count
            if not count:  # the file ends, or wants its cache
                break
        direct.end()
    return done + _read_plain(fd, target[done:], offset=offset + done)


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _read_plain(fd: int, target: memoryview, *, offset: int) -> int:
    done = 0
    while done < len(target) and (count := os.preadv(fd, [target[done:]], offset + done)):
        done += count
    return done


class _Direct:
    """A descriptor while it reads and writes past the cache, where it can."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        self.is_on = False
        if _DIRECT and not self._flags & _DIRECT:
            try:
                fcntl.fcntl(fd, fcntl.F_SETFL, self._flags | _DIRECT)
            except OSError as exc:
                if exc.errno != errno.EINVAL:
                    raise
            else:
                self.is_on = True

    def end(self) -> None:
        """Safe to repeat."""
        if self.is_on:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, self._flags)
            self.is_on = False

    def write(self, data: memoryview) -> int:
        """All of `data`, which lies as the mode wants it."""
        done = 0
        while self.is_on and done < len(data):
            try:
                count = SYS.writev(self._fd, [data[done:]])
            except OSError as exc:
                if exc.errno != errno.EINVAL:
                    raise
                count = 0  # this file system, or this place of the file, wants something else: nothing was written
            done += count
            if count <= 0 or count % _BLOCK_BYTES:
                self.end()
        return done + write_all(self._fd, [data[done:]])

    def read(self, data: memoryview, *, offset: int) -> int:
        """Into `data`, which lies as the mode wants it; 0 where the mode is not for this file."""
        try:
            return os.preadv(self._fd, [data], offset)
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
            return 0


@contextmanager
def _direct(fd: int) -> Iterator[_Direct]:
    direct = _Direct(fd)
    try:
        yield direct
    finally:
        direct.end()


@contextmanager
def _room() -> Iterator[memoryview]:
    """Memory that lies as the mode wants it, used again: fresh pages cost more than what is done in them."""
    try:
        room = _rooms.pop()
    except IndexError:
        room = _new_room()
    yield room
    if len(_rooms) < _IDLE_ROOMS:  # not after an error: then it is simply let go
        _rooms.append(room)


def _new_room() -> memoryview:
    """In huge pages where the kernel has some: a request to a device has room for so many pieces of memory, and of
    small pages that is a quarter of what it could carry. Half the rate was measured with those.

    A forked child gets empty memory in its place: were it shared page by page until somebody writes (open(2),
    O_DIRECT), what a read brings after a fork could land in the child's and not here.
    """
    place = mmap.mmap(-1, _ROOM_BYTES + _HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in (_WIPEONFORK, getattr(mmap, "MADV_HUGEPAGE", None)):
        with suppress(OSError):  # a kernel without one of them
            if advice is not None:
                place.madvise(advice)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(place)) % _HUGE_BYTES
    return memoryview(place)[begin : begin + _ROOM_BYTES]
