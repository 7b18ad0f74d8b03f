"""Datasets in torch's loaders: any number of workers and ranks, killed and resumed, forked and spawned."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durastore.dataset.dataset import Dataset
from durastore.errors import IntegrityError, InvalidInput
from durastore.objectstore.directory import DirectoryStore
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from tests.integration.loader_parts import ids_of
from tests.unit.manifest_bucket import Bucket, encode

data = pytest.importorskip("torch.utils.data")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores, on purpose
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning"),  # torchdata, with a newer torch
]

REPO = Path(__file__).resolve().parents[2]
COUNT = 103
BATCH = 4


def _fill(store: Any, prefix: str) -> Bucket:
    bucket = Bucket(store, prefix=prefix)
    bucket.mark()
    for start in range(0, COUNT, 25):
        bucket.add_segment(bucket.add_tar([encode(f"s{i:03d}", i) for i in range(start, min(start + 25, COUNT))]))
    return bucket


def flip_byte(path: Path, *, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[Dataset]:
    _fill(DirectoryStore(tmp_path), "")
    with Dataset(str(tmp_path)) as dataset:
        yield dataset


@pytest.fixture
def seaweed_dataset(seaweed: Any, aws_env: dict[str, str]) -> Iterator[Dataset]:
    url = f"s3://{seaweed.make_bucket()}/data/set"
    options = {"endpoint_url": seaweed.endpoint_url, "region": seaweed.region}
    store = open_object_store(BucketUrl.parse(url), s3=S3Options(**options))
    _fill(store, "data/set")
    store.close()
    with Dataset(url, **options) as dataset:
        yield dataset


_BLOCKS: dict[str, dict[str, Any]] = {"sampler": {}, "stream": {}, "blocks": {"block": 3, "lanes": 8}}
"""What says the order, by kind."""


def _loader(kind: str, dataset: Dataset, *, workers: int = 0, **options: Any) -> tuple[Any, Any]:
    """A counted loader of `kind`, and what it counts."""
    given: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers, "collate_fn": ids_of}
    if "start" in options:
        given["multiprocessing_context"] = options.pop("start")
    share = {name: options.pop(name) for name in ("rank", "world_size", "uneven") if name in options}
    given |= options
    source: Any
    if kind == "sampler":
        source = dataset.sampler(shuffle=9, **share)
        return source.counted(data.DataLoader(dataset, sampler=source, **given)), source
    source = dataset.iterable(shuffle=9, batch_size=BATCH, **_BLOCKS[kind], **share)
    return source.counted(data.DataLoader(source, **given)), source


def _order(dataset: Dataset, epoch: int = 0, kind: str = "stream") -> list[str]:
    stream = dataset.iterable(shuffle=9, **_BLOCKS[kind])
    stream.set_epoch(epoch)
    return [sample.id for sample in stream]


def _batches(order: list[str]) -> list[list[str]]:
    return [order[at : at + BATCH] for at in range(0, len(order), BATCH)]


@pytest.mark.parametrize("kind", ["sampler", "stream", "blocks"])
def test_the_order_is_the_same_for_any_number_of_workers(dataset: Dataset, kind: str) -> None:
    for workers in (0, 1, 3):
        loop, _ = _loader(kind, dataset, workers=workers)
        assert len(loop) == -(-COUNT // BATCH)
        assert [list(loop), list(loop)] == [_batches(_order(dataset, 0, kind)), _batches(_order(dataset, 1, kind))], (
            workers
        )
        assert loop.state_dict()["epoch"] == 2


@pytest.mark.parametrize("kind", ["sampler", "stream", "blocks"])
@pytest.mark.parametrize("stop", [1, 11, 25, 26])
def test_an_epoch_left_with_three_workers_goes_on_with_two(dataset: Dataset, kind: str, stop: int) -> None:
    loop, _ = _loader(kind, dataset, workers=3)
    seen = []
    for batch in loop:
        seen.append(batch)
        if len(seen) == stop:
            break
    state = json.loads(json.dumps(loop.state_dict()))
    assert len(json.dumps(state)) < 4096
    loop, _ = _loader(kind, dataset, workers=2)
    loop.load_state_dict(state)
    if stop < 26:
        seen += loop
    assert seen == _batches(_order(dataset, 0, kind))
    assert next(iter(loop)) == _order(dataset, 1, kind)[:BATCH]


_TRAIN = """
import json, os, sys
import torch.utils.data as data
import durastore
from tests.integration.loader_parts import ids_of

url, kind, log, batch = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
dataset = durastore.Dataset(url)
if kind == "sampler":
    source = dataset.sampler(shuffle=9)
    loader = data.DataLoader(dataset, sampler=source, batch_size=batch, num_workers=3, collate_fn=ids_of)
else:
    source = dataset.iterable(shuffle=9, batch_size=batch, **json.loads(sys.argv[5]))
    loader = data.DataLoader(source, batch_size=batch, num_workers=3, collate_fn=ids_of)
loop = source.counted(loader)
with open(log, "a") as out:
    for seen in loop:
        out.write(json.dumps([seen, loop.state_dict()]) + chr(10))
        out.flush()
"""


@pytest.mark.parametrize("kind", ["sampler", "stream", "blocks"])
def test_a_run_killed_at_a_random_step_with_three_workers_goes_on_with_two(
    dataset: Dataset, tmp_path: Path, kind: str
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown by pytest if the test fails
    after = random.Random(seed).randrange(1, 22)
    log = tmp_path / "log.jsonl"
    log.touch()
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "cli")]), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", _TRAIN, str(tmp_path), kind, str(log), str(BATCH), json.dumps(_BLOCKS[kind])]
    with subprocess.Popen(command, env=environ, cwd=tmp_path) as child:
        while log.read_bytes().count(b"\n") < after and child.poll() is None:
            time.sleep(0.002)  # or this would take a core from it
        child.kill()
    lines = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert len(lines) >= after
    seen = [batch for batch, _ in lines]
    assert len(json.dumps(lines[-1][1])) < 4096
    loop, _ = _loader(kind, dataset, workers=2)
    loop.load_state_dict(lines[-1][1])
    if lines[-1][1]["epoch"] == 0:
        seen += loop
    assert seen == _batches(_order(dataset, 0, kind))
    assert sorted(sample_id for batch in seen for sample_id in batch) == dataset.ids


@pytest.mark.parametrize("kind", ["sampler", "stream", "blocks"])
def test_an_epoch_left_by_two_ranks_goes_on_with_three(dataset: Dataset, kind: str) -> None:
    ranks, states = [], []
    for rank in range(2):
        loop, _ = _loader(kind, dataset, workers=2, rank=rank, world_size=2)
        ranks.append([sample_id for _, batch in zip(range(5), loop, strict=False) for sample_id in batch])
        states.append(loop.state_dict())
    assert states[0] == states[1]
    before = [ranks[at % 2][at // 2] for at in range(40)]
    ranks = []
    for rank in range(3):
        loop, _ = _loader(kind, dataset, workers=1, rank=rank, world_size=3)
        loop.load_state_dict(states[0])
        ranks.append([sample_id for batch in loop for sample_id in batch])
    assert {len(rank) for rank in ranks} == {21}
    after = [ranks[at % 3][at // 3] for at in range(63)]
    order = _order(dataset, 0, kind)
    assert before + after == order


_RANKS = """
import os, sys
import torch
import torch.distributed as dist
import torch.utils.data as data
import durastore
from tests.integration.loader_parts import ids_of

rank = 0
while rank < 2 and os.fork() == 0:  # three processes; torch is loaded once
    rank += 1
sys.stdout = open(f"{sys.argv[2]}-{rank}", "w")
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=3)
dataset = durastore.Dataset(sys.argv[1])
for uneven in ("pad", "drop"):
    sampler = dataset.sampler(shuffle=9, uneven=uneven)
    stream = dataset.iterable(shuffle=9, batch_size=4, uneven=uneven)
    loops = [
        sampler.counted(data.DataLoader(dataset, sampler=sampler, batch_size=4, collate_fn=ids_of)),
        stream.counted(data.DataLoader(stream, batch_size=4, num_workers=1, collate_fn=ids_of)),
    ]
    for loop in loops:
        total = 0
        for batch in loop:  # a rank with a batch more than the others would wait here for ever
            count = torch.tensor(len(batch))
            dist.all_reduce(count)
            total += int(count)
        print(uneven, total, flush=True)
dist.destroy_process_group()
if rank < 2:
    assert os.wait()[1] == 0
"""


def test_no_rank_waits_for_another_that_has_no_more(dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "cli")]), "PYTHONWARNINGS": "ignore"}
    meeting = tmp_path / "meeting"
    command = [sys.executable, "-c", _RANKS, str(tmp_path), str(meeting)]
    with subprocess.Popen(command, env=environ, start_new_session=True) as ranks:
        try:
            assert ranks.wait(timeout=100) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):  # those that it started as well
                os.killpg(ranks.pid, signal.SIGKILL)
    assert len(dataset) == 103
    told = [(tmp_path / f"meeting-{rank}").read_text() for rank in range(3)]
    assert told == ["pad 105\npad 105\ndrop 102\ndrop 102\n"] * 3


@pytest.mark.parametrize("kind", ["sampler", "stream"])
def test_a_loader_that_drops_its_last_batch(dataset: Dataset, kind: str) -> None:
    loop, _ = _loader(kind, dataset, workers=2, drop_last=True)
    assert len(loop) == COUNT // BATCH
    assert list(loop) == _batches(_order(dataset))[:-1]
    assert loop.state_dict()["epoch"] == 1


@pytest.mark.parametrize("kind", ["sampler", "stream"])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_forked_and_spawned_read_from_a_server(seaweed_dataset: Dataset, kind: str, start: str) -> None:
    order = _order(seaweed_dataset)  # this process has connections and threads before the workers start
    workers = 2 if start == "fork" else 1  # a spawned one loads torch anew
    loop, _ = _loader(kind, seaweed_dataset, workers=workers, start=start)
    assert list(loop) == _batches(order)
    seaweed_dataset.__getitems__([0, 1])  # and they still serve it afterwards


@pytest.mark.parametrize("kind", ["sampler", "stream"])
def test_damage_in_a_worker_is_named_in_the_loop(tmp_path: Path, dataset: Dataset, kind: str) -> None:
    order = _order(dataset)
    row = dataset.row(order[50])
    flip_byte(tmp_path / row.object.key.text, at=row.entry.offset + row.entry.length - 1)
    loop, seen = _loader(kind, dataset, workers=2)[0], list[list[str]]()
    with pytest.raises(IntegrityError, match=f"'{order[50]}' in object {row.object.key}"):
        seen.extend(loop)
    assert seen == _batches(order)[:12]
    assert loop.state_dict()["taken"] == 48


def test_loops_that_cannot_be_counted_are_refused(dataset: Dataset) -> None:
    sampler = dataset.sampler(shuffle=9)
    other = dataset.sampler(shuffle=9)
    with pytest.raises(InvalidInput, match="does not draw"):
        sampler.counted(data.DataLoader(dataset, sampler=other, batch_size=BATCH))
    with pytest.raises(InvalidInput, match="out of order"):
        sampler.counted(data.DataLoader(dataset, sampler=sampler, num_workers=1, in_order=False))
    stream = dataset.iterable(shuffle=9, batch_size=BATCH)
    for loader, what in (
        (data.DataLoader(stream, batch_size=BATCH + 1), "batches of 5"),
        (data.DataLoader(stream, batch_size=None), "batches of 1"),
        (data.DataLoader(dataset, batch_size=BATCH), "does not read"),
        (data.DataLoader(stream, batch_size=BATCH, num_workers=1, persistent_workers=True), "persistent"),
    ):
        with pytest.raises(InvalidInput, match=what):
            stream.counted(loader)


def test_a_loader_that_ends_early_is_noticed(dataset: Dataset) -> None:
    sampler = dataset.sampler(shuffle=9)
    loop, seen = sampler.counted(_Short(sampler)), list[Any]()
    with pytest.raises(InvalidInput, match="ended after 1 of 103"):
        seen.extend(loop)
    assert len(seen) == 1
    assert loop.state_dict()["taken"] == 1


class _Short:
    """A loader that ends early without an error."""

    batch_sampler = None

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self.sampler)
        yield [next(iterator)]


@pytest.fixture
def stateful() -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader


@pytest.mark.parametrize("stop", [1, 11, 25])
@pytest.mark.parametrize("workers", [0, 3])
def test_a_stateful_loaders_own_state(dataset: Dataset, stateful: Any, stop: int, workers: int) -> None:
    order = _batches(_order(dataset))
    for kind in ("sampler", "stream"):

        def make(workers: int, kind: str = kind) -> tuple[Any, Any]:
            options: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers, "collate_fn": ids_of}
            if kind == "sampler":
                sampler = dataset.sampler(shuffle=9)
                return stateful(dataset, sampler=sampler, **options), sampler
            stream = dataset.iterable(shuffle=9, batch_size=BATCH)
            return stateful(stream, **options), stream

        loader, _ = make(workers)
        seen = [batch for _, batch in zip(range(stop), loader, strict=False)]
        state = json.loads(json.dumps(loader.state_dict())) if kind == "sampler" else loader.state_dict()
        del loader
        loader, source = make(workers)
        loader.load_state_dict(state)
        assert seen + list(loader) == order, kind
        if kind == "sampler":
            loader, source = make(2 if workers else 0)
            source.load_state_dict(state)  # other workers than then: the sampler takes its own part of it
            assert seen + list(loader) == order


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_is_counted_like_any_other(dataset: Dataset, stateful: Any, workers: int) -> None:
    order = _batches(_order(dataset))
    sampler = dataset.sampler(shuffle=9)
    loop = sampler.counted(stateful(dataset, sampler=sampler, batch_size=BATCH, num_workers=workers, collate_fn=ids_of))
    seen = [batch for _, batch in zip(range(7), loop, strict=False)]
    state = loop.state_dict()
    other, _ = _loader("stream", dataset, workers=3)
    other.load_state_dict(state)
    assert seen + list(other) == order


def test_a_state_of_an_earlier_batch_is_refused(dataset: Dataset, stateful: Any) -> None:
    sampler = dataset.sampler(shuffle=9)
    options = {"batch_size": BATCH, "num_workers": 1, "collate_fn": ids_of, "snapshot_every_n_steps": 3}
    loader = stateful(dataset, sampler=sampler, **options)
    seen = [batch for _, batch in zip(range(4), loader, strict=False)]
    state = loader.state_dict()
    with pytest.raises(InvalidInput, match="earlier batch"):
        dataset.sampler(shuffle=9).load_state_dict(state)
    with pytest.raises(InvalidInput, match="0 training states"):
        dataset.sampler(shuffle=9).load_state_dict({"model": {"weights": [1]}})
    assert len(seen) == 4
