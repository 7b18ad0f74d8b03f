"""Batches from a loader's worker to the training process without a copy and without new memory for each.

Duty: in the worker, see to it that tensors which lie in the worker's arena are sent as a place in it; in the training
process, map each arena once, and give a piece back when the last tensor of it is gone. Everything else goes torch's
way. Must never change how tensors are sent in any process but a loader's worker, and never give a piece back while a
process forked from this one may look at it.
"""

from __future__ import annotations

import gc
import mmap
import os
import secrets
import select
import sys
import threading
import weakref
from dataclasses import dataclass
from functools import partial
from multiprocessing import reduction, util
from typing import Any

import numpy as np

from durastore.dataset.arena import FREE, KNOWN, SENT, TAKEN, Arena, Cells, SentPiece, copy_of, vector_over
from durastore.dataset.forks import Fork
from durastore.errors import DurastoreError
from durastore.observe.events import LOGGER

__all__ = ["arena_of_worker"]

_LIMIT_BYTES = 1 << 30


def arena_of_worker() -> Arena | None:
    """The arena of this process, if it is a torch loader's worker: one, for all of its datasets.

    None in any other process, and where the system has no such memory: batches then go torch's way.
    """
    with _LOCKS[0]:
        if os.getpid() not in _OF_PID:
            _OF_PID[os.getpid()] = _open_arena()
        return _OF_PID[os.getpid()]


def _open_arena() -> Arena | None:
    data = sys.modules.get("torch.utils.data")  # a loader's worker has imported it
    if data is None or data.get_worker_info() is None or not hasattr(os, "memfd_create"):
        return None
    try:
        arena = Arena(_LIMIT_BYTES)
    except OSError as exc:
        LOGGER.warning("no shared memory for batches, they are copied: %s", exc.strerror)
        return None
    owner = _Owner(name=secrets.token_hex(16), pid=os.getpid(), size_bytes=arena.size_bytes)
    from torch import UntypedStorage
    from torch.multiprocessing.reductions import reduce_storage

    def reduce(storage: Any) -> Any:
        piece = arena.send(storage.data_ptr()) if storage.device.type == "cpu" else None
        if piece is None:
            return reduce_storage(storage)  # type: ignore[no-untyped-call]  # not annotated
        handle = None if arena.is_known else reduction.DupFd(arena.fd)
        return _take, (_Message(owner, handle, piece),)

    reduction.ForkingPickler.register(UntypedStorage, reduce)
    util.Finalize(None, arena.retire, exitpriority=0)
    gc.freeze()  # what a forked worker inherited would be looked through, and its pages copied, at each collection
    return arena


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owner:
    """The worker whose arena it is."""

    name: str
    pid: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Message:
    """What goes through the loader's queue in place of a storage."""

    owner: _Owner
    handle: Any
    """Of the arena, until the receiver is known to have it."""
    piece: SentPiece


class _Mapped:
    """An arena of a worker as this process sees it."""

    def __init__(self, owner: _Owner, fd: int) -> None:
        """`OSError` where it cannot be mapped."""
        self._shared = mmap.mmap(fd, owner.size_bytes)
        self._pid = os.getpid()
        self._cells = Cells(self._shared)
        self._held: dict[int, weakref.ref[Any]] = {}
        self._seen: dict[int, tuple[Fork, ...]] = {}
        """Cells whose piece is held here, and was held when this process forked."""
        self._left: dict[int, tuple[Fork, ...]] = {}
        """Cells whose piece nobody here looks at any more, but processes of these forks may."""
        self._end = _Ending(owner.pid)
        self._cells.state[KNOWN] = 1

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is held, and nothing can come any more."""
        return not self._held and self._end.is_there

    def take(self, piece: SentPiece) -> Any:
        cell = piece.cell
        if self._cells.state[cell] != SENT or self._cells.generation[cell] != piece.generation:
            raise _received_twice()
        self._cells.state[cell] = TAKEN
        memory = np.frombuffer(self._shared, np.uint8, piece.size_bytes, piece.offset)
        self._held[cell] = weakref.ref(memory, partial(self._give_back, cell))
        return vector_over(memory).untyped_storage()

    def see(self, fork: Fork) -> None:
        """The child of this fork has what is held here, too."""
        for cell in list(self._held):
            others = (each for each in self._seen.get(cell, ()) if each is not fork and not each.is_over)
            self._seen[cell] = (*others, fork)

    def give_back_left(self) -> None:
        """What children were left with, and are gone now. By one thread at a time."""
        for cell, forks in list(self._left.items()):
            if all(fork.is_over for fork in forks):
                del self._left[cell]
                self._cells.state[cell] = FREE

    def _give_back(self, cell: int, _: object) -> None:
        """May run inside any allocation: waits for no lock."""
        if os.getpid() != self._pid:
            return  # a forked child's copy: the piece is its parent's
        self._held.pop(cell, None)
        # those under way as well: the child may have been made a moment ago
        forks = (*self._seen.pop(cell, ()), *_FORKS.values())
        if forks:
            self._left[cell] = forks
        else:
            self._cells.state[cell] = FREE
        if not self._held:
            _drop_ended()
        _give_back_left()


class _Ending:
    """Whether a process has ended, without waiting for it and without taking its exit status from its parent."""

    def __init__(self, pid: int) -> None:
        self._poll = select.poll()
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return  # not knowing means keeping
        self._poll.register(fd, select.POLLIN)
        weakref.finalize(self, os.close, fd)

    @property
    def is_there(self) -> bool:
        return bool(self._poll.poll(0))


_MAPPED: dict[str, _Mapped] = {}
_OF_PID: dict[int, Arena | None] = {}
"""A parent's entry stays untouched in a forked child, so that nothing of it is finalised there."""
_FORKS: dict[int, Fork] = {}
"""By thread: forks that are being made now."""
_COPIED: set[str] = set()
"""Workers whose memory could not be mapped here."""
_LOCKS = [threading.Lock()]


def _take(message: _Message) -> Any:
    """In the receiver: the storage that a worker sent. `DurastoreError` where it was had before."""
    owner = message.owner
    with _LOCKS[0]:
        mapped = _MAPPED.get(owner.name)
        if mapped is None:
            _drop_ended()
            if message.handle is None:
                raise DurastoreError(
                    "a batch of a loader's worker came to two processes",
                    hint="take all batches of a loader in one process, and send on from there what others need",
                )
            fd = message.handle.detach()
            try:
                mapped = _MAPPED[owner.name] = _Mapped(owner, fd)
            except OSError as exc:  # a limit of address space, or of descriptors
                return _copied(message, fd, because=exc)
            finally:
                os.close(fd)
        mapped.give_back_left()
    return mapped.take(message.piece)


def _copied(message: _Message, fd: int, *, because: OSError) -> Any:
    if message.owner.name not in _COPIED:  # once for each worker
        _COPIED.add(message.owner.name)
        LOGGER.warning("a loader's worker's memory cannot be mapped, its batches are copied: %s", because.strerror)
    vector = copy_of(fd, message.piece)
    if vector is None:
        raise _received_twice()
    return vector.untyped_storage()


def _received_twice() -> DurastoreError:
    return DurastoreError(
        "a batch of a loader's worker was received twice", hint="keep the tensors, not the message that brought them"
    )


def _drop_ended() -> None:
    for name, mapped in list(_MAPPED.items()):
        if mapped.is_over:
            _MAPPED.pop(name, None)


def _give_back_left() -> None:
    lock = _LOCKS[0]
    if lock.acquire(blocking=False):  # not in the middle of itself, nor of a thread that does it
        try:
            for mapped in list(_MAPPED.values()):
                mapped.give_back_left()
        finally:
            lock.release()


def _before_fork() -> None:
    _give_back_left()
    if _MAPPED:
        _see_all(_FORKS.setdefault(threading.get_ident(), Fork()))


def _after_fork() -> None:
    fork = _FORKS.get(threading.get_ident())
    if fork is not None:
        fork.begin_in_parent()
    elif _MAPPED:
        fork = Fork()  # an arena was mapped in this moment, and the child has nothing to tell by: this is never over
    if fork is not None:
        _see_all(fork)
        _FORKS.pop(threading.get_ident(), None)  # last: until here what is let go may be a child's


def _see_all(fork: Fork) -> None:
    for mapped in list(_MAPPED.values()):
        mapped.see(fork)


def _begin_anew() -> None:
    """In a forked child: what its parent received is the parent's."""
    for fork in _FORKS.values():
        fork.begin_in_child()
    _FORKS.clear()
    _MAPPED.clear()
    _LOCKS[0] = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    # before, since another thread may let go in the moment of the fork; after, for what came in that moment
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_anew)
