"""Tensors on their way to host memory, while the model goes on.

Duty: begin the copy of a sample's tensors on the thread that has them, and let another thread wait for it. A GPU's copy
runs on a stream of its own, behind an event of the stream that computes: the computing stream and the thread that feeds
it never wait for a copy. A CPU's tensors are copied at once. Memory is bounded: where none is free, `begin` waits.
Must never import torch (whoever hands in its tensors has), and never hand out bytes before their copy has ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from durastore.codec.copying import flat_bytes, unreadable
from durastore.codec.host_memory import HostMemory, Lent
from durastore.observe.events import LOGGER

__all__ = ["CudaCalls", "Staged", "Staging", "TorchCuda", "is_on_cuda", "is_torch"]

STAGING_BYTES = 256 << 20
_ALIGN_BYTES = 64
_HELD_BYTES = 4 << 20
"""Up to here a copy keeps the interpreter's lock: it takes less time than it may take to get the lock back."""


class CudaCalls(Protocol):
    """The few calls of `torch.cuda` that a copy needs."""

    def allocate(self, size_bytes: int) -> Any:
        """A flat byte tensor of page-locked memory."""
        ...

    def current_stream(self, device: Any) -> Any:
        """The stream that the calling thread's work on `device` goes to."""
        ...

    def side_stream(self, device: Any) -> Any:
        """The stream for copies from `device`, always the same."""
        ...

    def event(self) -> Any:
        """A new event; waiting for it sleeps instead of spinning."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[object]:
        """What is launched inside goes to `stream`."""
        ...


class TorchCuda:
    """`CudaCalls` by torch."""

    def __init__(self) -> None:
        self._sides: dict[Any, Any] = {}

    def allocate(self, size_bytes: int) -> Any:
        torch = sys.modules["torch"]
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def current_stream(self, device: Any) -> Any:
        return sys.modules["torch"].cuda.current_stream(device)

    def side_stream(self, device: Any) -> Any:
        # two threads may both make one at first: either orders its copies by events of its own
        side = self._sides.get(device)
        return side if side is not None else self._sides.setdefault(device, sys.modules["torch"].cuda.Stream(device))

    def event(self) -> Any:
        return sys.modules["torch"].cuda.Event(blocking=True)

    def on(self, stream: Any) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = sys.modules["torch"].cuda.stream(stream)
        return context


def is_on_cuda(value: object) -> bool:
    """True for a torch tensor in a GPU's memory."""
    return is_torch(value) and bool(value.is_cuda)  # type: ignore[attr-defined]  # a tensor


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor is copied to, and what it is; the tensor itself is not held on to."""

    start: int
    size_bytes: int
    is_torch: bool
    dtype: Any
    shape: Any

    def view(self, buffer: Any) -> Any:
        """The contiguous copy of the tensor, in its kind, type and shape."""
        data = buffer[self.start : self.start + self.size_bytes]
        if not self.is_torch:
            return (data.numpy() if is_torch(data) else data).view(self.dtype).reshape(self.shape)
        data = data if is_torch(data) else sys.modules["torch"].from_numpy(data)
        return data.view(self.dtype).view(self.shape)


class Staged:
    """Tensors whose copies have begun. `wait` from any thread, then `release`, after which they may not be touched."""

    __slots__ = ("_events", "_lent", "_memory", "_others", "_places")

    def __init__(
        self, places: Mapping[str, _Place], memory: HostMemory, *, lent: Lent, others: Mapping[str, Any]
    ) -> None:
        self._places = places
        self._others = others
        self._memory = memory
        self._lent: Lent | None = lent
        self._events: list[Any] = []

    def note(self, event: Any) -> None:
        """The copies have ended only when this event has come."""
        self._events.append(event)

    def wait(self) -> dict[str, Any]:
        """The tensors in host memory, once their bytes are there. Waits for these copies only. Safe to repeat."""
        if self._lent is None:
            raise AssertionError("the copies were released")
        self._end()
        return {**self._others, **{name: place.view(self._lent.buffer) for name, place in self._places.items()}}

    def release(self) -> None:
        """Give the memory back, after the copies have ended. Safe to repeat."""
        lent, self._lent = self._lent, None
        if lent is None:
            return
        try:
            self._end()  # a copy under way would write into what the next one is lent
        except Exception:  # noqa: BLE001 - the device is lost; whoever waits for these copies is told, or was
            self._memory.give_up(lent)  # and nobody knows whether they still write
            return
        self._memory.give_back(lent)

    def _end(self) -> None:
        while self._events:
            self._events[-1].synchronize()
            self._events.pop()


class Staging:
    """Copies of tensors in memory of its own. Thread-safe."""

    def __init__(self, *, cuda: CudaCalls | None, size_bytes: int = STAGING_BYTES) -> None:
        """`cuda`: for tensors of GPUs, in page-locked memory; None: for tensors of the CPU alone."""
        self._cuda = cuda
        self._memory = HostMemory(cuda.allocate if cuda is not None else _plain_memory, size_bytes=size_bytes)
        self._is_told = False

    @property
    def waits(self) -> int:
        """How often `begin` had to wait for memory."""
        return self._memory.waits

    def begin(self, tensors: Mapping[str, Any], *, may_wait: Callable[[], bool] = lambda: True) -> Staged | None:
        """Begin to copy; None if there was no memory and `may_wait` said no longer.

        A CPU's tensor may be changed as soon as this returns, a GPU's not before `Staged.wait` has (it may be dropped:
        its memory is not used again before). What is no plain tensor is passed through as it is. `UnsupportedTensor`
        where torch does not give the elements of one.
        """
        places, size_bytes = _lay_out(tensors)
        waits = self.waits
        lent = self._memory.take(size_bytes, may_wait=may_wait)
        if lent is None:
            return None
        if self.waits > waits and not self._is_told:
            self._is_told = True
            LOGGER.info(
                "the model waits: samples of %d MiB are copied and not stored yet", self._memory.size_bytes >> 20
            )
        others = (
            {name: value for name, value in tensors.items() if name not in places} if len(places) < len(tensors) else {}
        )
        staged = Staged(places, self._memory, lent=lent, others=others)
        try:
            self._copy(staged, tensors, places=places, buffer=lent.buffer)
        except BaseException:  # an interrupt too must not keep pinned memory lent
            staged.release()
            raise
        return staged

    def _copy(self, staged: Staged, tensors: Mapping[str, Any], *, places: Mapping[str, _Place], buffer: Any) -> None:
        devices: dict[Any, list[str]] = {}
        for name, place in places.items():
            source = tensors[name]
            if place.is_torch and source.is_cuda:
                devices.setdefault(source.device, []).append(name)
            else:
                try:
                    _copy_now(source, place, buffer=buffer)
                except RuntimeError as exc:
                    raise unreadable(name, exc) from exc
        for device, names in devices.items():
            pairs = [(places[name].view(buffer), tensors[name]) for name in names]
            self._copy_aside(device, pairs, staged=staged)

    def _copy_aside(self, device: Any, pairs: Sequence[tuple[Any, Any]], *, staged: Staged) -> None:
        cuda = self._cuda
        if cuda is None:
            raise AssertionError("tensors of a GPU in a staging for the CPU's")
        ready, done = cuda.event(), cuda.event()
        side = cuda.side_stream(device)
        ready.record(cuda.current_stream(device))  # the tensors are computed once everything up to here is
        side.wait_event(ready)
        try:
            with cuda.on(side):
                for target, source in pairs:
                    target.copy_(source, non_blocking=True)
                    source.record_stream(side)  # else the allocator may give its memory to the next pass meanwhile
        finally:
            done.record(side)
            staged.note(done)


def _plain_memory(size_bytes: int) -> Any:
    import numpy as np

    return np.empty(size_bytes, np.uint8)


def is_torch(value: object) -> bool:
    """True for a torch tensor, whoever imported torch."""
    tensor_type = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor_type is not None and isinstance(value, tensor_type)


def _lay_out(tensors: Mapping[str, Any]) -> tuple[dict[str, _Place], int]:
    """The place of each plain tensor, and the bytes of all. What has its elements elsewhere than in plain memory has no
    place: it is the codec's to refuse, with its reasons.
    """
    places: dict[str, _Place] = {}
    start = 0
    for name, value in tensors.items():
        is_tensor = is_torch(value)
        if is_tensor:
            is_plain = value.layout is sys.modules["torch"].strided and not (value.is_nested or value.is_quantized)
            is_plain = is_plain and not value.is_meta
        else:
            is_plain = (
                type(value).__name__ == "ndarray" and type(value).__module__ == "numpy" and not value.dtype.hasobject
            )
        if is_plain:
            places[name] = _Place(start, value.nbytes, is_tensor, value.dtype, value.shape)
            start += -(-value.nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
    return places, start


def _copy_now(source: Any, place: _Place, *, buffer: Any) -> None:
    data = flat_bytes(source) if place.is_torch else None
    if data is None or is_torch(buffer):
        place.view(buffer)[...] = source
        return
    target = buffer[place.start : place.start + place.size_bytes]
    if place.size_bytes <= _HELD_BYTES:
        target.data[:] = data.data
    else:
        target[...] = data
