"""Batches of a loader's workers: the bytes that were put, in memory used again, and nothing left of it afterwards."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from durastore.dataset import arena, handover
from durastore.dataset.dataset import Dataset
from durastore.dataset.pinning import PinnedSource
from durastore.dataset.stacked import stacked
from durastore.errors import IntegrityError
from durastore.objectstore.directory import DirectoryStore
from tests.integration.test_dataset_training import flip_byte
from tests.unit.manifest_bucket import Bucket, assert_tensors, encode, tensors_of

data = pytest.importorskip("torch.utils.data")
torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores, on purpose
]
REPO = Path(__file__).resolve().parents[2]
COUNT = 60


def rows_of(number: int) -> int:
    return 2000 + number % 7 * 531


def as_they_are(samples: list[Any]) -> list[tuple[int, dict[str, Any]]]:
    return [(sample.meta["number"], sample.tensors) for sample in samples]


def first_rows_stacked(samples: list[Any]) -> tuple[list[int], Any, bool]:
    """Tensors of one shape: with no copy where they are neighbours."""
    tensors = [sample.tensors["hidden_states"] for sample in samples]
    whole = stacked(tensors)
    return [sample.meta["number"] for sample in samples], whole, whole.data_ptr() == tensors[0].data_ptr()


def torchs_own(samples: list[Any]) -> Any:
    return data.default_collate([sample.tensors["hidden_states"] for sample in samples])


def _fill(folder: Path) -> None:
    bucket = Bucket(DirectoryStore(folder), prefix="")  # type: ignore[arg-type]  # it takes any store
    bucket.mark()
    for start in range(0, COUNT, 20):
        bucket.add_segment(bucket.add_tar([encode(f"s{i:03d}", i, rows=rows_of(i)) for i in range(start, start + 20)]))


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[Dataset]:
    gc.collect()  # an earlier test's loop may lie in a cycle
    _fill(tmp_path)
    with Dataset(str(tmp_path)) as dataset:
        yield dataset


def _mapped() -> list[str]:
    """The arenas that this process has mapped."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "durastore-batches" in line]


def _resident_kb() -> int:
    """Memory of workers' arenas that this process has."""
    found, is_one = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            is_one = "durastore-batches" in line
        elif is_one and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def _until_unmapped() -> None:
    gc.collect()
    for _ in range(100):
        if not _mapped():
            return
        time.sleep(0.1)  # a worker ends a moment after it was told to
    raise AssertionError(_mapped())


def _check(batches: list[list[tuple[int, dict[str, Any]]]], count: int = COUNT) -> None:
    seen = [item for batch in batches for item in batch]
    assert sorted(number for number, _ in seen) == list(range(count))
    for number, tensors in seen:
        assert_tensors(tensors, tensors_of(number, rows=rows_of(number)))


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("form", ["stream", "map"])
def test_uneven_batches_come_as_they_were_put_and_stay_so(dataset: Dataset, form: str, start: str) -> None:
    """All batches are kept: none may change when others come."""
    workers = 2 if start == "fork" else 1  # a spawned one loads torch anew
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers, "collate_fn": as_they_are}
    if form == "stream":
        source: Any = dataset.iterable(shuffle=3, batch_size=4)
    else:
        source = dataset
        options["sampler"] = dataset.sampler(shuffle=3)
    loader = data.DataLoader(source, multiprocessing_context=start, **options)
    batches = list(loader)
    _check(batches)
    assert len(_mapped()) == workers, "they lie in the workers' memory"
    assert all(
        len({t.untyped_storage().data_ptr() for _, one in batch for t in one.values()}) == 1 for batch in batches
    )
    loader = None
    _check(batches)
    batches.clear()
    _until_unmapped()


def test_memory_is_used_again(dataset: Dataset) -> None:
    dataset = dataset.select(ids=[f"s{i:03d}" for i in range(0, COUNT, 7)], tensors=["hidden_states"])
    stream = dataset.iterable(shuffle=3, batch_size=3, prefetch_bytes=200_000)
    loader = data.DataLoader(
        stream, batch_size=3, num_workers=1, collate_fn=first_rows_stacked, persistent_workers=True
    )
    addresses, given, whole, one = set(), 0, None, None
    for _ in range(75):
        for numbers, whole, is_same in loader:
            assert is_same
            for number, one in zip(numbers, whole, strict=True):
                assert np.array_equal(one.numpy(), tensors_of(number, rows=2000)["hidden_states"])
            addresses.add(whole.data_ptr())
            given += 1
    assert given == 225
    assert len(addresses) < 20
    del loader
    whole = one = None
    _until_unmapped()


def test_nothing_grows_and_dev_shm_stays_empty(dataset: Dataset) -> None:
    before = set(os.listdir("/dev/shm"))
    descriptors = len(os.listdir("/proc/self/fd"))
    held, batch = [], None
    for epoch in range(8):  # 94 batches
        for number, batch in enumerate(
            data.DataLoader(
                dataset.iterable(shuffle=epoch, batch_size=4), batch_size=4, num_workers=2, collate_fn=as_they_are
            )
        ):
            held = [batch]
            if epoch % 3 == 1 and number == 2:
                break  # some epochs are left early
        assert len(_mapped()) <= 4
    assert {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("torch_")} == set()
    held.clear()
    batch = None
    _until_unmapped()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    assert handover._MAPPED == {}


def test_a_loop_that_holds_nothing_at_its_end_leaves_no_pages(dataset: Dataset) -> None:
    loader = data.DataLoader(
        dataset.iterable(shuffle=1, batch_size=4), batch_size=4, num_workers=2, collate_fn=as_they_are
    )
    most = 0
    for batch in loader:
        for number, tensors in batch:
            assert_tensors(tensors, tensors_of(number, rows=rows_of(number)))
        del batch, tensors
        most = max(most, _resident_kb())
    del loader
    for _ in range(100):
        if _resident_kb() < 200:
            break
        time.sleep(0.1)
    assert _resident_kb() < 200 < most


def _refused(*_: object) -> int:
    raise PermissionError(1, "Operation not permitted")


def _touched(size_bytes: int) -> Any:
    raise AssertionError(f"{size_bytes} bytes asked for in a loader's worker, where no GPU may be touched")


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_pins_takes_batches_as_they_come(dataset: Dataset, workers: int) -> None:
    """torch copies them into page-locked memory where there is a GPU, and says that it does not where there is none."""
    even = dataset.select(ids=[f"s{i:03d}" for i in range(0, COUNT, 7)])
    stream = even.iterable(shuffle=None, batch_size=3)
    loader = data.DataLoader(stream, batch_size=3, num_workers=workers, collate_fn=first_rows_stacked, pin_memory=True)
    seen = []
    for numbers, whole, _ in loader:
        seen += numbers
        expected = [tensors_of(number, rows=2000)["hidden_states"] for number in numbers]
        assert np.array_equal(whole.numpy(), np.stack(expected))
        assert whole.is_pinned() == torch.cuda.is_available()
    assert seen == list(range(0, COUNT, 7))


@pytest.mark.parametrize("has_arena", [True, False])
def test_a_loaders_worker_touches_no_gpu(dataset: Dataset, has_arena: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_arena:
        monkeypatch.setattr(os, "memfd_create", _refused)
    stream = dataset.iterable(shuffle=3, batch_size=4)
    stream._source = PinnedSource(dataset, allocate=_touched)
    _check(list(data.DataLoader(stream, batch_size=4, num_workers=2, collate_fn=as_they_are)))


def test_torchs_own_way_goes_on_working(dataset: Dataset) -> None:
    even = dataset.select(ids=[f"s{i:03d}" for i in range(0, COUNT, 7)])
    for batch, start in zip(
        data.DataLoader(even, batch_size=3, num_workers=2, collate_fn=torchs_own), range(0, 9, 3), strict=True
    ):
        expected = [tensors_of(i * 7, rows=2000)["hidden_states"] for i in range(start, start + 3)]
        assert np.array_equal(batch.numpy(), np.stack(expected))


def test_the_datasets_of_a_worker_have_one_arena(dataset: Dataset, tmp_path: Path) -> None:
    with Dataset(str(tmp_path)) as other:
        both = data.ConcatDataset([dataset, other])
        batches = list(data.DataLoader(both, batch_size=4, num_workers=1, collate_fn=as_they_are))
        assert len(_mapped()) == 1
        assert (
            len({t.untyped_storage().data_ptr() for batch in batches for _, one in batch for t in one.values()}) > 100
        )
        _check(batches[: COUNT // 4])
        _check(batches[COUNT // 4 :])
        with Path("/proc/self/maps").open() as maps:
            begin, end = next(
                (int(x, 16) for x in line.split()[0].split("-")) for line in maps if "durastore-batches" in line
            )
        assert all(begin <= t.data_ptr() < end for batch in batches for _, one in batch for t in one.values())


def test_a_full_arena_sends_batches_torchs_way(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_LIMIT_BYTES", 1 << 20)
    loader = data.DataLoader(
        dataset.iterable(shuffle=3, batch_size=4), batch_size=4, num_workers=2, collate_fn=as_they_are
    )
    batches = list(loader)
    _check(batches)
    del loader
    batches.clear()
    _until_unmapped()


def test_a_system_without_such_memory_sends_batches_torchs_way(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "memfd_create", _refused)
    stream = dataset.iterable(shuffle=3, batch_size=4)
    _check(list(data.DataLoader(stream, batch_size=4, num_workers=2, collate_fn=as_they_are)))
    assert _mapped() == []


def _is_whole(batch: list[tuple[int, dict[str, Any]]]) -> bool:
    return all(
        np.array_equal(tensors["hidden_states"].numpy(), tensors_of(n, rows=rows_of(n))["hidden_states"])
        for n, tensors in batch
    )


@pytest.mark.parametrize("who_holds", ["child", "daemon", "parent"])
def test_what_a_fork_shares_does_not_change_while_one_of_both_holds_it(dataset: Dataset, who_holds: str) -> None:
    stream = dataset.iterable(shuffle=3, batch_size=4, prefetch_bytes=1)
    batches = iter(data.DataLoader(stream, batch_size=4, num_workers=1, collate_fn=as_they_are))
    batch = next(batches)
    go, ready = os.pipe()
    child = os.fork()
    if child == 0:
        gc.collect()
        if who_holds == "parent":
            del batch
            os._exit(0)
        if who_holds == "daemon":  # closes all that it has; the batch it has all the same
            os.closerange(3, go)
            os.closerange(go + 1, 4096)
        os.read(go, 1)
        os._exit(0 if _is_whole(batch) else 1)
    if who_holds != "parent":
        del batch
    else:
        os.waitpid(child, 0)
    deque(batches, maxlen=0)  # one after the other: each that goes leaves its memory to those that follow
    os.write(ready, b"x")
    if who_holds != "parent":
        assert os.waitpid(child, 0)[1] == 0
    else:
        assert _is_whole(batch)
    os.close(go)
    os.close(ready)


def test_what_children_were_left_with_is_used_again_when_they_are_gone(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader for validation forks while a batch of training is held: that must not use up the memory of training."""
    monkeypatch.setattr(handover, "_LIMIT_BYTES", 4 << 20)
    even = dataset.select(ids=[f"s{i:03d}" for i in range(0, COUNT, 7)])  # a batch has 160,000 bytes
    descriptors = len(os.listdir("/proc/self/fd"))
    loader = data.DataLoader(even, batch_size=2, num_workers=1, collate_fn=as_they_are, persistent_workers=True)
    batch: Any = None
    addresses, held = set(), list[Any]()
    for _ in range(12):
        for batch in loader:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            assert _is_whole(batch)
            addresses.add(batch[0][1]["hidden_states"].untyped_storage().data_ptr())
        held += [batch] if len(held) < 2 else []
    assert len(addresses) < 20, "of 60"
    assert all(_is_whole(one) for one in held)
    assert len(os.listdir("/proc/self/fd")) < descriptors + 30, "forks that are over leave no descriptor"
    del loader
    batch = None
    held.clear()
    _until_unmapped()


def test_a_damaged_sample_is_named_and_never_handed_out(tmp_path: Path) -> None:
    _fill(tmp_path)
    with Dataset(str(tmp_path)) as dataset:
        row = dataset.row("s017")
        flip_byte(tmp_path / row.object.key.text, at=row.entry.offset + row.entry.length - 40_000)
        seen: list[tuple[int, dict[str, Any]]] = []
        loader = data.DataLoader(
            dataset.iterable(shuffle=None, batch_size=4), batch_size=4, num_workers=2, collate_fn=as_they_are
        )
        with pytest.raises(IntegrityError, match="s017"):
            seen.extend(item for batch in loader for item in batch)
        for number, tensors in seen:
            assert_tensors(tensors, tensors_of(number, rows=rows_of(number)))
        assert [number for number, _ in seen] == list(range(16))


_LOOP = """
import json, sys, time
import torch.utils.data as data
from durastore.dataset.dataset import Dataset
from tests.integration.test_dataset_handover import as_they_are
stream = Dataset(sys.argv[1]).iterable(shuffle=1, batch_size=4)
loader = data.DataLoader(stream, batch_size=4, num_workers=2, collate_fn=as_they_are, multiprocessing_context="fork")
batches = iter(loader)
held = [next(batches), next(batches)]
print(json.dumps([worker.pid for worker in batches._workers]), flush=True)
time.sleep(600)
"""


def test_a_killed_loop_leaves_no_memory_behind(tmp_path: Path) -> None:
    _fill(tmp_path)
    before = set(os.listdir("/dev/shm"))
    loop = subprocess.Popen([sys.executable, "-c", _LOOP, str(tmp_path)], stdout=subprocess.PIPE, cwd=REPO)
    assert loop.stdout is not None
    workers = json.loads(loop.stdout.readline())
    loop.send_signal(signal.SIGKILL)
    loop.wait()
    for _ in range(200):
        if not any(Path(f"/proc/{pid}").exists() for pid in workers):
            break
        time.sleep(0.1)  # torch's workers look for their parent every five seconds
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("torch_")} == set()
    loop.stdout.close()


def test_a_killed_worker_is_an_error_and_what_it_sent_stays(dataset: Dataset) -> None:
    stream = dataset.iterable(shuffle=None, batch_size=4, prefetch_bytes=1)
    batches = iter(data.DataLoader(stream, batch_size=4, num_workers=1, collate_fn=as_they_are))
    batch = next(batches)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        deque(batches, maxlen=0)
    for number, tensors in batch:
        assert_tensors(tensors, tensors_of(number, rows=rows_of(number)))
    del batches, batch, tensors
    _until_unmapped()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small /dev/shm in a namespace of its own")
def test_a_containers_small_dev_shm_does_not_matter(tmp_path: Path) -> None:
    _fill(tmp_path)
    loop = (
        "import sys, torch.utils.data as data\n"
        "from durastore.dataset.dataset import Dataset\n"
        "from tests.integration.test_dataset_handover import _check, as_they_are\n"
        "stream = Dataset(sys.argv[1]).iterable(shuffle=1, batch_size=4)\n"
        "batches = list(data.DataLoader(stream, batch_size=4, num_workers=2, collate_fn=as_they_are))\n"
        "_check(batches)\n"
    )
    mounted = 'mount -t tmpfs -o size=256k small /dev/shm && exec "$0" -c "$1" "$2"'
    subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, sys.executable, loop, str(tmp_path)], check=True, cwd=REPO, timeout=300
    )


def test_no_process_but_a_loaders_worker_has_an_arena(dataset: Dataset) -> None:
    before = list(arena._ARENAS)
    assert len(list(dataset.iterable(shuffle=1, batch_size=4))) == COUNT
    assert len(dataset.__getitems__([0, 1])) == 2
    assert list(arena._ARENAS) == before
