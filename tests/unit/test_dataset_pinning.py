"""A stream whose batches lie in memory of somebody's own: one piece each, given back, and nothing changed."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from durastore.dataset import pinning
from durastore.dataset.dataset import Dataset
from durastore.dataset.pinning import PinnedSource
from durastore.dataset.stacked import stacked
from durastore.errors import ConfigError
from durastore.model import Sample
from durastore.objectstore.memory import MemoryStore
from tests.unit.manifest_bucket import Bucket, assert_tensors, encode, tensors_of

torch = pytest.importorskip("torch")
COUNT = 40
BATCH = 4


@pytest.fixture
def dataset(request: pytest.FixtureRequest) -> Iterator[Dataset]:
    bucket = Bucket(MemoryStore.named(f"pinning-{abs(hash(request.node.nodeid))}"))
    bucket.mark()
    for start in range(0, COUNT, 10):
        bucket.add_segment(bucket.add_tar([encode(f"s{i:02d}", i) for i in range(start, start + 10)]))
    with Dataset(f"{bucket.store.url}/{bucket.prefix}") as dataset:
        yield dataset


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "_TOLD", pinning._Told())


class _Allocator:
    """As torch's for page-locked memory: keeps pieces, and gives one out again when its last tensor is gone."""

    def __init__(self) -> None:
        self.asked = self.made = 0
        self._free: list[Any] = []
        self._lock = threading.Lock()

    def __call__(self, size_bytes: int) -> Any:
        with self._lock:
            self.asked += 1
            found: Any = next((one for one in self._free if len(one) >= size_bytes), None)
            if found is None:
                self.made += 1
                found = np.empty(1 << 16, np.uint8)
            else:
                self._free[:] = [one for one in self._free if one is not found]
            found[:] = 0xA5
            memory = np.frombuffer(memoryview(found), np.uint8, size_bytes)
            weakref.finalize(memory, self._free.append, found)
        return torch.from_numpy(memory)


def _batches(dataset: Dataset, allocator: Any, **options: Any) -> Iterator[list[Sample]]:
    stream = dataset.iterable(shuffle=5, batch_size=BATCH, **options)
    stream._source = PinnedSource(dataset, allocate=allocator)
    batch = []
    for sample in stream:
        batch.append(sample)
        if len(batch) == BATCH:
            yield batch
            batch = []


def _is_whole(batch: list[Sample]) -> bool:
    for sample in batch:
        assert_tensors(sample.tensors, tensors_of(sample.meta["number"]))
    return len(batch) == BATCH


def _storages(batch: list[Sample]) -> set[int]:
    return {t.untyped_storage().data_ptr() for sample in batch for t in sample.tensors.values() if t.numel()}


@pytest.mark.parametrize("options", [{}, {"block": 5, "lanes": 4}, {"prefetch_bytes": 1}])
def test_a_batch_has_one_piece_and_is_stacked_without_a_copy(dataset: Dataset, options: dict[str, Any]) -> None:
    allocator, seen = _Allocator(), list[str]()
    for batch in _batches(dataset, allocator, **options):
        seen += [sample.id for sample in batch]
        assert len(_storages(batch)) == 1
        for sample in batch:
            assert_tensors(sample.tensors, tensors_of(sample.meta["number"]))
        states = [sample.tensors["hidden_states"] for sample in batch]
        whole = stacked(states)
        assert whole.data_ptr() == states[0].data_ptr()
        expected = [tensors_of(sample.meta["number"])["hidden_states"] for sample in batch]
        assert np.array_equal(whole.numpy(), np.stack(expected))
    assert allocator.asked == COUNT / BATCH
    assert seen == [sample.id for sample in dataset.iterable(shuffle=5, **options)]


def test_pieces_come_back_and_those_that_are_held_do_not(dataset: Dataset) -> None:
    allocator = _Allocator()
    length = dataset.row(0).entry.length
    held, ahead = list[list[Sample]](), 2 * BATCH * length
    for epoch in range(3):
        for number, batch in enumerate(_batches(dataset, allocator, prefetch_bytes=ahead)):
            if number == 1:
                held.append(batch)
        assert allocator.asked == (epoch + 1) * COUNT / BATCH
    batch = []
    assert allocator.made <= 3 + 4, "as many as are ahead, handed out or held"
    assert all(_is_whole(kept) for kept in held)
    held.clear()
    assert len(allocator._free) == allocator.made, "nobody else keeps a piece"


def test_without_a_gpu_it_says_so_once_and_reads_on(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for epoch in range(2):
        stream = dataset.iterable(shuffle=epoch, batch_size=BATCH, pin=True)
        samples = list(stream)
        assert [sample.id for sample in samples] == [sample.id for sample in dataset.iterable(shuffle=epoch)]
        assert len(_storages(samples[:BATCH])) == 1
        for sample in samples:
            assert_tensors(sample.tensors, tensors_of(sample.meta["number"]))
    assert [record.getMessage() for record in caplog.records] == [
        "pin=True, and there is no GPU here: batches lie in ordinary memory"
    ]


def test_with_a_gpu_memory_is_locked_for_that_of_the_reading_thread(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is needed to see what torch is asked for."""
    asked: list[tuple[int, Any]] = []
    at = threading.local()

    @contextlib.contextmanager
    def device(number: int) -> Iterator[None]:
        before, at.number = getattr(at, "number", 0), number
        yield
        at.number = before

    def empty(size: int, *, dtype: Any, pin_memory: bool = False) -> Any:
        asked.append((at.number, pin_memory))
        return torch.from_numpy(np.empty(size, np.uint8))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(at, "number", 0))
    monkeypatch.setattr(torch.cuda, "device", device)
    at.number = 3
    stream = dataset.iterable(shuffle=1, batch_size=BATCH, pin=True)
    with monkeypatch.context() as while_reading:
        while_reading.setattr(torch, "empty", empty)
        samples = list(stream)
    assert asked == [(3, True)] * (COUNT // BATCH)
    for sample in samples:
        assert_tensors(sample.tensors, tensors_of(sample.meta["number"]))


def test_where_no_memory_can_be_locked_samples_come_in_their_own(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(size_bytes: int) -> Any:
        raise RuntimeError("CUDA error: out of memory\nmore of it")

    for batch in _batches(dataset, refused):
        assert len(_storages(batch)) > 1
        for sample in batch:
            assert_tensors(sample.tensors, tensors_of(sample.meta["number"]))
    assert [record.getMessage() for record in caplog.records] == [
        "no page-locked memory for a batch, its tensors are not pinned: CUDA error: out of memory"
    ]


def test_a_sample_without_bytes_needs_no_piece() -> None:
    assert pinning._Pieces(_Allocator()).slab(0) is None


def test_numpy_cannot_be_pinned(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durastore.dataset.dataset.has_torch", lambda: False)
    with pytest.raises(ConfigError, match="pin=True without torch"):
        dataset.iterable(shuffle=1, pin=True)
