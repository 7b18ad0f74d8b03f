"""Batches from a loader's worker to the training process without a copy and without new memory for each.

Duty: in the worker, see to it that tensors which lie in the worker's arena are sent as a place in it; in the training
process, map each arena once, and give a piece back when the last tensor of it is gone. Everything else goes torch's
way. Must never change how tensors are sent in any process but a loader's worker, and never give a piece back that a
process forked from this one may look at.
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

    def keep_held(self) -> None:
        """At a fork: the child has what is held here, too, and nobody will tell when it lets go."""
        self._held.clear()

    def _give_back(self, cell: int, _: object) -> None:
        """May run inside any allocation: takes no lock."""
        if os.getpid() != self._pid:
            return  # a forked child's copy: the piece is its parent's
        self._held.pop(cell, None)
        self._cells.state[cell] = FREE
        if not self._held:
            _drop_ended()


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


def _keep_all() -> None:
    for mapped in list(_MAPPED.values()):
        mapped.keep_held()


def _begin_anew() -> None:
    """In a forked child: what its parent received is the parent's."""
    _MAPPED.clear()
    _LOCKS[0] = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    # before, since another thread may let go in the moment of the fork; after, for what came in that moment
    os.register_at_fork(before=_keep_all, after_in_parent=_keep_all, after_in_child=_begin_anew)
