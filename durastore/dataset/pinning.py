"""Batches that are read without worker processes, each in one piece of memory that a GPU copies from by itself.

Duty: have the threads of a stream decode each batch into one piece of page-locked memory, tensors of one name side by
side, so that nothing is copied between them and the GPU. A piece is had from torch for every batch and never lent twice
by us: a copy that was begun without waiting may still read it when its last tensor is gone, which torch's own allocator
of such memory knows; it keeps pieces and gives them out again. Must never touch a GPU in a loader's worker.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from durastore.codec.decode import Room
from durastore.model import ManifestRow
from durastore.observe.events import LOGGER
from durastore.read.remote import ServedSample
from durastore.read.rooms import Slabs

__all__ = ["Allocate", "PinnedSource"]

Allocate = Callable[[int], Any]
"""Gives a torch vector of so many bytes. Called in any thread; `RuntimeError` where there are none."""


class _RoomySource(Protocol):
    """What is read, by somebody who can say where to."""

    def rows(self, indices: Sequence[int]) -> list[ManifestRow]: ...

    def rooms(self, rows: Sequence[ManifestRow], *, slabs: Slabs | None = None) -> Sequence[Room | None]: ...

    def serve(self, rows: Sequence[ManifestRow], rooms: Sequence[Room | None]) -> list[ServedSample]: ...


class PinnedSource:
    """`source`, with the tensors of each batch in memory of `allocate`: by default page-locked, where there is a GPU.

    Without one it warns once, as torch's own loader does, and takes ordinary memory. In a loader's worker it does
    nothing: what comes from there is pinned by the loader.
    """

    def __init__(self, source: _RoomySource, *, allocate: Allocate | None = None) -> None:
        self._source = source
        self._allocate = allocate

    def rows(self, indices: Sequence[int]) -> list[ManifestRow]:
        return self._source.rows(indices)

    def rooms(self, rows: Sequence[ManifestRow]) -> Sequence[Room | None]:
        data = sys.modules.get("torch.utils.data")  # a loader's worker has imported it
        if data is not None and data.get_worker_info() is not None:
            return self._source.rooms(rows)
        # Here, not in the thread that decodes: the GPU of this process is known in the thread that reads.
        return self._source.rooms(rows, slabs=_Pieces(self._allocate or _allocator()))

    def serve(self, rows: Sequence[ManifestRow], rooms: Sequence[Room | None]) -> list[ServedSample]:
        return self._source.serve(rows, rooms)


class _Pieces:
    """New memory for each batch."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate

    def slab(self, size_bytes: int) -> Any | None:
        """None where there is none left: the tensors have memory of their own then."""
        if not size_bytes:
            return None
        try:
            return self._allocate(size_bytes)
        except RuntimeError as exc:
            _TOLD.tell("no page-locked memory for a batch, its tensors are not pinned: %s", str(exc).partition("\n")[0])
            return None


class _Told:
    """Warnings of this process, each once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: set[str] = set()

    def tell(self, text: str, *given: object) -> None:
        with self._lock:
            is_new = text not in self._texts
            self._texts.add(text)
        if is_new:
            LOGGER.warning(text, *given)


_TOLD = _Told()


def _allocator() -> Allocate:
    import torch

    if torch.cuda.is_available():
        return partial(_page_locked, device=torch.cuda.current_device())
    _TOLD.tell("pin=True, and there is no GPU here: batches lie in ordinary memory")
    return partial(torch.empty, dtype=torch.uint8)


def _page_locked(size_bytes: int, *, device: int) -> Any:
    import torch

    with torch.cuda.device(device):  # of another one it would open a context there, which takes its memory
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
