"""Large files past the page cache: new pages of it have to be found and filled, which took the kernel ten times the CPU
of the write itself, and they push out what others had there.

Duty: `write_past_cache` and `read_past_cache`, through the cache wherever the file system does not do without. Makes
nothing durable by itself: the caller syncs, as after any write. Must never leave a descriptor in another mode than it
came in.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from durastore.fsio.publish import write_all
from durastore.fsio.sys import SYS, Buffer

__all__ = ["read_past_cache", "write_past_cache"]

_ROOM_BYTES = 4 << 20
_BLOCK_BYTES = 4096
"""What places, lengths and memory are multiples of: no file system asks for more."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_IDLE_ROOMS = 4
_rooms: list[mmap.mmap] = []


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
    """Memory that lies as the mode wants it, used again: fresh pages cost more than what is done in them.

    A fork in the middle of a read may let its bytes land in the child's copy of the memory (open(2), O_DIRECT): whoever
    reads compares what he got with a digest.
    """
    try:
        room = _rooms.pop()
    except IndexError:
        room = mmap.mmap(-1, _ROOM_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    yield memoryview(room)
    if len(_rooms) < _IDLE_ROOMS:  # not after an error: then it is simply let go
        _rooms.append(room)
