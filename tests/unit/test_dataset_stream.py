"""The stream by itself: order, state, how far it reads ahead, and what a damaged sample does."""

from __future__ import annotations

import itertools
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from durastore.codec.decode import Room
from durastore.dataset.dataset import Dataset
from durastore.dataset.stream import _Worker
from durastore.errors import ConfigError, IntegrityError, InvalidInput
from durastore.model import ManifestRow, ObjectKey
from durastore.objectstore.memory import MemoryStore
from durastore.read.remote import ServedSample
from tests.unit.manifest_bucket import Bucket, assert_tensors, encode, tensors_of

COUNT = 40


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    bucket = Bucket(MemoryStore.named(f"stream-{abs(hash(request.node.nodeid))}"))
    bucket.mark()
    for start in range(0, COUNT, 10):
        bucket.add_segment(bucket.add_tar([encode(f"s{i:02d}", i) for i in range(start, start + 10)]))
    return bucket


@pytest.fixture
def dataset(bucket: Bucket) -> Iterator[Dataset]:
    with Dataset(f"{bucket.store.url}/{bucket.prefix}") as dataset:
        yield dataset


def test_an_epoch_has_every_sample_once_and_the_next_one_another_order(dataset: Dataset) -> None:
    stream = dataset.iterable(shuffle=5)
    epochs = [[sample.id for sample in stream] for _ in range(3)]
    assert all(sorted(epoch) == dataset.ids for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    again = dataset.iterable(shuffle=5)
    again.set_epoch(1)
    assert [sample.id for sample in again] == epochs[1]
    assert [sample.id for sample in dataset.iterable(shuffle=None)] == dataset.ids
    for sample in stream:
        assert_tensors(sample.tensors, tensors_of(sample.meta["number"]))


@pytest.mark.parametrize("stop", [0, 1, 17, COUNT - 1, COUNT])
def test_a_state_goes_on_behind_the_last_sample_that_was_given(dataset: Dataset, stop: int) -> None:
    whole = [sample.id for sample in dataset.iterable(shuffle=5)]
    stream = dataset.iterable(shuffle=5)
    assert len(stream) == COUNT
    first = [sample.id for _, sample in zip(range(stop), stream, strict=False)]
    state = stream.state_dict()
    resumed = dataset.iterable(shuffle=5, prefetch_bytes=1)
    resumed.load_state_dict(state)
    rest = [sample.id for sample in resumed]
    if stop < COUNT:
        assert len(stream) == len(rest) == COUNT - stop
        assert first + rest == whole
        assert [sample.id for sample in stream] == rest, "a loop that was left goes on where it was"
    else:
        assert state["epoch"] == 1
        assert sorted(rest) == dataset.ids
    assert resumed.state_dict()["taken"] == 0


def test_ranks_share_an_epoch(dataset: Dataset) -> None:
    whole = [sample.id for sample in dataset.iterable(shuffle=5)]
    ranks = [[s.id for s in dataset.iterable(shuffle=5, rank=rank, world_size=3)] for rank in range(3)]
    assert [len(rank) for rank in ranks] == [14, 14, 14]
    woven = [ranks[at % 3][at // 3] for at in range(42)]
    assert woven == whole + whole[:2]
    even = [[s.id for s in dataset.iterable(shuffle=5, rank=r, world_size=3, uneven="drop")] for r in range(3)]
    assert [even[at % 3][at // 3] for at in range(39)] == whole[:39]


class _Watched:
    """Rows and samples of a dataset; counts the bytes of samples asked for and not yet handed out."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.asked: list[ManifestRow] = []

    def rows(self, indices: Sequence[int]) -> list[ManifestRow]:
        return self._dataset.rows(indices)

    def rooms(self, rows: Sequence[ManifestRow]) -> Sequence[Room | None]:
        return self._dataset.rooms(rows)

    def serve(self, rows: Sequence[ManifestRow], rooms: Sequence[Room | None]) -> list[ServedSample]:
        self.asked += rows
        return self._dataset.serve(rows, rooms)


@pytest.mark.parametrize("samples_ahead, limit", [(1, 1), (1, 1.5), (4, 4), (20, 20)])
def test_no_more_is_fetched_ahead_than_allowed(dataset: Dataset, samples_ahead: int, limit: float) -> None:
    sizes = {dataset.row(at).entry.length for at in range(COUNT)}
    assert max(sizes) - min(sizes) < 20
    stream = dataset.iterable(shuffle=5, prefetch_bytes=int(max(sizes) * limit))
    watched = _Watched(dataset)
    stream._source = watched
    most = 0
    for given, _ in enumerate(stream):
        most = max(most, len(watched.asked) - given)
    assert most <= samples_ahead
    assert most > samples_ahead / 3
    assert len(watched.asked) == COUNT


class _Shared(_Watched):
    """As in a loader's worker: the samples of a batch share memory. They come when they are let."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset)
        self.groups: list[int] = []
        self.waiting: list[tuple[Future[Any], Any]] = []

    def rooms(self, rows: Sequence[ManifestRow]) -> Sequence[Room | None]:
        return [_NoRoom()] * len(rows)

    def serve(self, rows: Sequence[ManifestRow], rooms: Sequence[Room | None]) -> list[ServedSample]:
        self.groups.append(len(rows))
        samples = [one.result() for one in super().serve(rows, rooms)]
        parts: list[Future[Any]] = [Future() for _ in samples]
        for part, sample in zip(parts, samples, strict=True):
            part.set_running_or_notify_cancel()
            self.waiting.append((part, sample))
        return [ServedSample(part, 0) for part in parts]

    def let(self, count: int) -> None:
        for _ in range(count):
            part, sample = self.waiting.pop(0)
            part.set_result({0: sample})


class _NoRoom:
    def take(self, tensor: str, size_bytes: int) -> None:
        return None


def test_samples_that_share_memory_are_handed_out_when_all_of_them_are_there(dataset: Dataset) -> None:
    stream = dataset.iterable(shuffle=5, batch_size=4, prefetch_bytes=1)
    source = stream._source = _Shared(dataset)
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(sample.id for sample in stream), daemon=True)
    reader.start()
    whole = [sample.id for sample in dataset.iterable(shuffle=5)]
    for given in range(0, COUNT, 4):
        _until(lambda: len(source.waiting) > 0)
        assert source.groups[-1] == len(source.waiting) == min(4, COUNT - given), "a batch is fetched whole"
        source.let(len(source.waiting) - 1)
        time.sleep(0.005)
        assert seen == whole[:given], "one of the batch is not there yet"
        source.let(1)
    reader.join(30)
    assert seen == whole


def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def test_a_damaged_sample_comes_in_its_place_and_as_an_error(bucket: Bucket, dataset: Dataset) -> None:
    whole = [sample.id for sample in dataset.iterable(shuffle=5)]
    row = dataset.row(whole[21])
    bucket.damage(row.object.key, at=row.entry.offset + row.entry.length - 1)
    stream, seen = dataset.iterable(shuffle=5), list[str]()
    with pytest.raises(IntegrityError, match=f"'{whole[21]}' in object {row.object.key}"):
        seen.extend(sample.id for sample in stream)
    assert seen == whole[:21]
    assert stream.state_dict()["taken"] == 21
    bucket.damage(row.object.key, at=row.entry.offset + row.entry.length - 1)  # back as it was
    assert [sample.id for sample in stream] == whole[21:]


def test_a_copy_of_a_stream_goes_on_where_it_stood(dataset: Dataset) -> None:
    stream = dataset.iterable(shuffle=5)
    first = [sample.id for _, sample in zip(range(7), stream, strict=False)]
    copy = pickle.loads(pickle.dumps(stream))
    assert first + [sample.id for sample in copy] == [sample.id for sample in dataset.iterable(shuffle=5)]


def test_wrong_options_are_refused(dataset: Dataset) -> None:
    for options in ({"batch_size": 0}, {"prefetch_bytes": 0}, {"rank": 1}, {"uneven": "x"}):
        with pytest.raises(ConfigError):
            dataset.iterable(shuffle=1, **options)
    stream = dataset.iterable(shuffle=1)
    with pytest.raises(InvalidInput):
        stream.set_epoch(-1)
    with pytest.raises(InvalidInput, match="worker 1 of 2"):
        stream.load_state_dict(stream.state_dict() | {"worker": 1, "workers": 2, "given": 3})


def _tangled() -> Bucket:
    """Samples that lie in another order than that of their ids."""
    bucket = Bucket(MemoryStore.named(f"tangled-{secrets.token_hex(4)}"))
    bucket.mark()
    for start in range(0, COUNT, 10):
        bucket.add_segment(bucket.add_tar([encode(f"s{i * 7 % COUNT:02d}", i) for i in range(start, start + 10)]))
    return bucket


def test_blocks_follow_the_bucket_and_not_the_ids() -> None:
    bucket = _tangled()
    with Dataset(f"{bucket.store.url}/{bucket.prefix}") as dataset:
        few = dataset.select(ids=[f"s{i * 7 % COUNT:02d}" for i in range(3, 33)])
        for one in (dataset, few, dataset.select(ids=[])):
            layout = one.sampler(shuffle=5, block=2).course.layout
            assert layout is not None
            assert sorted(layout.tolist()) == list(range(len(one)))
            places = [(row.object.key, row.entry.offset) for row in one.rows(layout.tolist())]
            assert places == sorted(places)
    empty = Bucket(MemoryStore.named(f"empty-{secrets.token_hex(4)}"))
    empty.mark()
    with Dataset(f"{empty.store.url}/{empty.prefix}") as dataset:
        assert list(dataset.iterable(shuffle=5, block=2)) == []


def _requests(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Object, begin and end of every range that is asked for from here on."""
    asked: list[tuple[str, int, int]] = []
    fetch = MemoryStore.fetch

    def watched(self: MemoryStore, key: ObjectKey, **given: Any) -> bytes:
        asked.append((key.text, given["offset"], given["offset"] + given["length"]))
        return fetch(self, key, **given)

    monkeypatch.setattr(MemoryStore, "fetch", watched)
    return asked


def test_blocks_are_read_by_a_request_each(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = _tangled()
    with Dataset(f"{bucket.store.url}/{bucket.prefix}") as dataset:
        asked = _requests(dataset, monkeypatch)
        epochs = [[sample.id for sample in dataset.iterable(shuffle=5, block=10)]]
        assert len(asked) == 4
        asked.clear()
        epochs.append([sample.id for sample in dataset.iterable(shuffle=6, block=10)])
        assert len(asked) == 4
        assert epochs[0] != epochs[1]
        assert all(sorted(epoch) == dataset.ids for epoch in epochs)
        few = dataset.select(ids=[f"s{i * 7 % COUNT:02d}" for i in range(15, 25)])
        asked.clear()
        assert sorted(sample.id for sample in few.iterable(shuffle=5, block=5)) == few.ids
        assert len(asked) == 2, "half of one pack, half of another"


def _as_worker(monkeypatch: pytest.MonkeyPatch, number: int, total: int) -> None:
    monkeypatch.setattr(_Worker, "of_this_process", classmethod(lambda cls: cls(number, total)))


@pytest.mark.parametrize("ranks, workers, batch_size", [(1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 4, 1), (1, 1, 4)])
def test_a_block_is_fetched_once_whoever_reads_it(
    ranks: int, workers: int, batch_size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = _tangled()
    with Dataset(f"{bucket.store.url}/{bucket.prefix}") as dataset:
        asked, seen = _requests(dataset, monkeypatch), list[str]()
        for rank, number in itertools.product(range(ranks), range(workers)):
            _as_worker(monkeypatch, number, workers)
            stream = dataset.iterable(shuffle=5, block=5, lanes=4, batch_size=batch_size, rank=rank, world_size=ranks)
            seen += [sample.id for sample in stream]
        assert sorted(seen) == dataset.ids
        assert len(asked) <= COUNT / 5, "a request a block, or for two that are neighbours"
        for (key, _, end), (next_key, begin, _) in itertools.pairwise(sorted(asked)):
            assert key != next_key or end <= begin, "no byte twice"
        assert "each block" not in caplog.text


def test_blocks_that_several_processes_read_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = _tangled()
    with Dataset(f"{bucket.store.url}/{bucket.prefix}") as dataset:
        seen = []
        for number in range(3):
            _as_worker(monkeypatch, number, 3)
            seen += [sample.id for sample in dataset.iterable(shuffle=5, block=5, lanes=4, batch_size=2)]
        assert sorted(seen) == dataset.ids
        told = [record.getMessage() for record in caplog.records]
        assert told == ["each block is read by 3 processes: lanes should be 6, or a multiple of it"]
        old = dataset.iterable(shuffle=5, block=5, lanes=0, batch_size=2).state_dict()
        caplog.clear()
        for number in range(3):
            _as_worker(monkeypatch, number, 3)
            stream = dataset.iterable(shuffle=5, block=5, lanes=6, batch_size=2)
            stream.stand_at(stream.course.parse(old))
            assert len(list(stream)) in (12, 14)
        assert caplog.text == "", "an epoch that was begun otherwise cannot be helped"


@pytest.mark.parametrize("stop", [1, 17, COUNT - 1])
def test_a_state_goes_on_in_the_middle_of_blocks_with_other_ranks(stop: int) -> None:
    bucket = _tangled()
    with Dataset(f"{bucket.store.url}/{bucket.prefix}") as dataset:
        whole = [sample.id for sample in dataset.iterable(shuffle=5, block=4)]
        stream = dataset.iterable(shuffle=5, block=4)
        first = [sample.id for _, sample in zip(range(stop), stream, strict=False)]
        ranks = []
        for rank in range(2):
            resumed = dataset.iterable(shuffle=5, block=4, rank=rank, world_size=2, uneven="drop", prefetch_bytes=1)
            resumed.load_state_dict(stream.state_dict())
            ranks.append([sample.id for sample in resumed])
        rest = [name for pair in zip(*ranks, strict=True) for name in pair]
        assert first + rest == whole[: stop + (COUNT - stop) // 2 * 2]
        assert [dataset[at].id for at in dataset.sampler(shuffle=5, block=4)] == whole
