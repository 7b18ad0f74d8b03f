"""Large buffers whose memory is used again.

Duty: hand out byte arrays, and take their memory back once nothing refers to them any more, not even a view of a view.
Fresh pages of a large buffer have to be found, cleared and mapped by the kernel: that takes longer than filling them.
Must never lend memory out that anything can still see, and keeps no more than `idle_bytes` for later.
"""

from __future__ import annotations

import mmap
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from durastore.codec.columns import Bytes

__all__ = ["BLOCKS", "Blocks"]

LEAST_BYTES = 1 << 20
"""What is smaller comes from malloc, which keeps it by itself."""
PAGED_BYTES = 4 << 20
"""From here on memory begins at a page, so that a disk can put bytes there by itself (`read_past_cache`)."""
_MIB = 1 << 20
_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class Blocks:
    """Thread-safe."""

    def __init__(self, *, idle_bytes: int) -> None:
        # the garbage collector may drop a lease, and so come here again, within `take` of the same thread
        self._lock = threading.RLock()
        self._idle_bytes = idle_bytes
        self._idle: list[Bytes] = []

    def take(self, size_bytes: int) -> Bytes:
        """A writable array of this many bytes, of any content. Its memory comes back by itself."""
        import numpy as np

        if size_bytes < LEAST_BYTES:
            return np.empty(size_bytes, np.uint8)
        with self._lock:
            fitting = [block for block in self._idle if size_bytes <= block.nbytes <= 2 * size_bytes]
            block = min(fitting, key=lambda each: each.nbytes, default=None)
            if block is not None:
                self._idle = [each for each in self._idle if each is not block]
        if block is None:
            whole = -(-size_bytes // _MIB) * _MIB
            block = np.frombuffer(_pages(whole), np.uint8) if whole >= PAGED_BYTES else np.empty(whole, np.uint8)
        lent: Bytes = np.asarray(_Lease(self, block, size_bytes=size_bytes))
        return lent

    def unlock(self) -> None:
        """In a forked child: the thread that may have held the lock is not in it. Each step leaves the list whole."""
        self._lock = threading.RLock()

    def _take_back(self, block: Bytes) -> None:
        with self._lock:
            kept = [*self._idle, block]
            while sum(each.nbytes for each in kept) > self._idle_bytes:
                kept.pop(0)  # the one that has been idle longest
            self._idle = kept


def _pages(size_bytes: int) -> mmap.mmap:
    """Whole pages of their own; large ones where the system has them. Not wiped in a forked child as the memory of
    `fsio.past_cache` is: what a caller was given is here, and a child of it reads that, too.
    """
    try:
        pages = mmap.mmap(-1, size_bytes, **_PRIVATE)
    except OSError as exc:
        raise MemoryError(f"no memory for {size_bytes} bytes") from exc
    if _HUGE is not None:
        with suppress(OSError):  # a kernel without them
            pages.madvise(_HUGE)
    return pages


class _Lease:
    """What an array of `take`, and through it each view, holds on to: the last of them that goes ends it."""

    __slots__ = ("__array_interface__", "_block", "_blocks")

    def __init__(self, blocks: Blocks, block: Bytes, *, size_bytes: int) -> None:
        self._blocks = blocks
        self._block: np.ndarray[Any, Any] = block
        address, _ = block.__array_interface__["data"]
        self.__array_interface__ = {"version": 3, "shape": (size_bytes,), "typestr": "|u1", "data": (address, False)}

    def __del__(self) -> None:
        self._blocks._take_back(self._block)


BLOCKS = Blocks(idle_bytes=128 << 20)
"""Of all stores of the process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BLOCKS.unlock)
