"""The node cache under loader workers: within its limit, nothing fetched twice, no damage handed out, killed anyhow."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.dataset.cache import NodeCache
from durastore.dataset.dataset import Dataset
from durastore.errors import ConfigError, IntegrityError, ManifestIncomplete
from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.fsio.evict import CACHE_MARKER_NAME, CacheFolder
from durastore.objectstore.directory import DirectoryStore
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from durastore.testing.strict_s3 import StrictS3
from tests.integration.loader_parts import ids_of
from tests.integration.test_dataset_training import flip_byte
from tests.unit.manifest_bucket import Bucket, assert_tensors, encode, tensors_of
from tests.unit.test_fsio_evict import allocated

REPO = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores, on purpose
]


@dataclass(frozen=True)
class _Served:
    url: str
    options: dict[str, Any]
    server: StrictS3

    def open(self, cache: NodeCache | None) -> Dataset:
        return Dataset(self.url, cache=cache, **self.options)

    def fetched(self) -> Counter[str]:
        """GETs of each pack so far."""
        return Counter(seen.key for seen in self.server.requests() if seen.op == "get" and "/packs/" in seen.key)


def _served(server: StrictS3, *, count: int, rows: int) -> _Served:
    """A dataset of `count` samples of 40 * `rows` bytes, each an object of its own."""
    url = f"s3://{server.make_bucket()}/data/set"
    options: dict[str, Any] = {"endpoint_url": server.endpoint_url, "region": server.region}
    store = open_object_store(BucketUrl.parse(url), s3=S3Options(**options))
    bucket = Bucket(store)  # type: ignore[arg-type]  # it takes any store
    bucket.mark()
    bucket.add_segment([bucket.add_single(encode(f"s{i:04d}", i, rows=rows)) for i in range(count)])
    store.close()
    return _Served(url, options, server)


@contextmanager
def _watched(folder: Path) -> Iterator[list[int]]:
    """Looks all the time how many bytes of disk the folder takes."""
    looks, is_over = list[int](), threading.Event()

    def look() -> None:
        while not is_over.wait(0.002):
            try:
                looks.append(allocated(folder))
            except FileNotFoundError:
                continue  # a name went between listing and looking

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    "count, rows, limit",
    [
        (200, 2_500, 2_000_000),
        pytest.param(420, 30_000, 50_000_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1800)]),
    ],
)
def test_an_epoch_ten_times_the_limit_with_four_workers(
    strict_s3: StrictS3, aws_env_strict: None, tmp_path: Path, count: int, rows: int, limit: int
) -> None:
    data = pytest.importorskip("torch.utils.data")
    served, folder = _served(strict_s3, count=count, rows=rows), tmp_path / "cache"
    size = 0
    with served.open(NodeCache(folder, limit)) as dataset:
        size = sum(dataset.row(at).entry.length for at in range(count))
        assert size > 9.9 * limit
        for kind in ("sampler", "stream"):
            before = served.fetched()
            source: Any = dataset.sampler(shuffle=3) if kind == "sampler" else dataset.iterable(shuffle=3, batch_size=2)
            options: dict[str, Any] = {"batch_size": 2, "num_workers": 4, "collate_fn": ids_of}
            loader = (
                data.DataLoader(dataset, sampler=source, **options)
                if kind == "sampler"
                else data.DataLoader(source, **options)
            )
            with _watched(folder) as looks:
                seen = [sample_id for batch in source.counted(loader) for sample_id in batch]
            assert sorted(seen) == dataset.ids
            assert len(looks) > 10
            assert max(looks) <= limit
            fetched = served.fetched() - before
            assert set(fetched.values()) == {1}, "a sample was fetched twice in one epoch"
            cached = sum(CACHE_MARKER_NAME != path.name != "ledger" for path in folder.iterdir())
            # The first epoch fetches all, the second one what the cache has not: and that is as full as it can be.
            assert len(fetched) == (count if kind == "sampler" else count - cached)
            assert cached * (size / count) > 0.9 * limit - 200_000


@pytest.fixture
def aws_env_strict(strict_s3: StrictS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in strict_s3.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "bucket"
    place.mkdir()
    bucket = Bucket(DirectoryStore(place), prefix="")  # type: ignore[arg-type]  # it takes any store
    bucket.mark()
    bucket.add_segment(bucket.add_tar([encode(f"s{i:02d}", i) for i in range(20)]))
    return place


def _warm(place: Path, folder: Path) -> Dataset:
    dataset = Dataset(str(place), cache=NodeCache(folder, 1 << 20))
    assert [sample.id for sample in dataset.iterable(shuffle=1)]
    assert len(list(folder.iterdir())) == 22
    return dataset


def test_a_warm_cache_needs_no_bucket(place: Path, tmp_path: Path) -> None:
    with _warm(place, tmp_path / "cache") as dataset:
        pack = place / dataset.row(0).object.key.text
        pack.rename(tmp_path / "away")
        for sample in (*dataset.iterable(shuffle=1), *dataset, dataset["s03"], *dataset.__getitems__([1, 0])):
            assert_tensors(sample.tensors, tensors_of(sample.meta["number"]))
        part = dataset.get("s03", tensors=["token_ids"], rows=slice(1, 3))
        assert_tensors(part.tensors, {"token_ids": tensors_of(3)["token_ids"][1:3]})


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_forked_and_spawned_share_a_cache(place: Path, tmp_path: Path, start: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    with Dataset(str(place), cache=NodeCache(tmp_path / "cache", 1 << 20)) as dataset:
        assert dataset["s00"].id == "s00"
        sampler = dataset.sampler(shuffle=3)
        workers = 2 if start == "fork" else 1  # a spawned one loads torch anew; each epoch has new ones
        options = {"batch_size": 3, "num_workers": workers, "collate_fn": ids_of, "multiprocessing_context": start}
        loop = sampler.counted(data.DataLoader(dataset, sampler=sampler, **options))
        assert sorted(sample_id for batch in loop for sample_id in batch) == dataset.ids
        assert len(list((tmp_path / "cache").iterdir())) == 22
        (place / dataset.row(0).object.key.text).rename(tmp_path / "away")
        assert sorted(sample_id for batch in loop for sample_id in batch) == dataset.ids


def test_a_part_of_a_sample_is_not_cached(place: Path, tmp_path: Path) -> None:
    with Dataset(str(place), cache=NodeCache(tmp_path / "cache", 1 << 20)) as dataset:
        assert list(dataset.select(rows=slice(0, 2)))
        assert {path.name for path in (tmp_path / "cache").iterdir()} <= {CACHE_MARKER_NAME, "ledger"}


def test_a_flipped_byte_in_the_cache_is_told_and_read_from_the_bucket(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "cache"
    with _warm(place, folder) as dataset:
        names = [dataset.row(at).entry.header_digest.hex for at in range(20)]
        for at in (0, 5, 9):
            entry = dataset.row(at).entry
            flip_byte(folder / names[at], at={0: 10, 5: entry.header_length, 9: entry.length - 1}[at])
        with caplog.at_level(logging.WARNING, logger="durastore"):
            for sample in dataset.iterable(shuffle=1):
                assert_tensors(sample.tensors, tensors_of(sample.meta["number"]))
        for at in (0, 5, 9):
            assert f"cache file {folder / names[at]} of sample 's{at:02d}' is damaged" in caplog.text
        caplog.clear()
        assert len(list(dataset)) == 20
        assert caplog.text == ""


def test_a_cache_that_cannot_be_written_stops_nothing_and_is_told_once(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Dataset(str(place), cache=NodeCache(tmp_path / "cache", 1 << 20)) as dataset:
        (tmp_path / "cache").rename(tmp_path / "gone")
        with caplog.at_level(logging.WARNING, logger="durastore"):
            for sample in (*dataset.iterable(shuffle=1), *dataset):
                assert_tensors(sample.tensors, tensors_of(sample.meta["number"]))
        assert caplog.text.count("is not kept") == 1
        assert "No such file or directory" in caplog.text


def test_a_stopped_process_that_has_the_ledger_stops_no_epoch(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with Dataset(str(place), cache=NodeCache(folder, 1 << 20)) as dataset:
        assert dataset["s00"].id == "s00"
        child = os.fork()
        if child == 0:
            fcntl.flock(os.open(folder / "ledger", os.O_RDWR), fcntl.LOCK_EX)
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        # as a test it fails in place of hanging
        timer = threading.Timer(60, os.kill, (child, signal.SIGKILL))
        timer.start()
        assert len([sample.id for sample in dataset.iterable(shuffle=1)]) == 20
        kept = len(list(folder.iterdir()))
        timer.cancel()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert kept == 3, "the one from before"


def test_a_flipped_byte_in_bucket_and_cache_never_comes_out(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with _warm(place, folder) as dataset:
        row = dataset.row("s07")
        flip_byte(folder / row.entry.header_digest.hex, at=row.entry.length - 1)
        flip_byte(place / row.object.key.text, at=row.entry.offset + row.entry.length - 1)
        for read in (
            lambda: dataset["s07"],
            lambda: dataset.__getitems__(["s06", "s07"]),
            lambda: list(dataset.iterable(shuffle=1)),
        ):
            with pytest.raises(IntegrityError, match=f"'s07' in object {row.object.key}"):
                read()
        assert not (folder / row.entry.header_digest.hex).exists()


def test_a_flipped_byte_in_a_manifest_segment_is_named(place: Path, tmp_path: Path) -> None:
    (segment,) = (place / "manifest").glob("*/*.parquet")
    flip_byte(segment, at=200)
    with pytest.raises(ManifestIncomplete, match=segment.name):
        Dataset(str(place), cache=NodeCache(tmp_path / "cache", 1 << 20))


def test_samples_of_another_dataset_make_room(tmp_path: Path) -> None:
    folder, limit = tmp_path / "cache", 300_000
    for number, name in enumerate(("first", "second")):
        place = tmp_path / name
        place.mkdir()
        bucket = Bucket(DirectoryStore(place), prefix="")  # type: ignore[arg-type]  # it takes any store
        bucket.mark()
        bucket.add_segment(bucket.add_tar([encode(f"s{i:02d}", 100 * number + i, rows=1000) for i in range(10)]))
        with Dataset(str(place), cache=NodeCache(folder, limit)) as dataset:
            assert len(list(dataset)) == 10
            mine = {dataset.row(at).entry.header_digest.hex for at in range(10)}
            found = {path.name for path in folder.iterdir()} - {CACHE_MARKER_NAME, "ledger"}
            assert len(found) >= 5
            assert found <= mine
            assert allocated(folder) <= limit


def test_files_of_others_in_a_cache_are_not_dropped(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    theirs = ["20240101", "cafe", "0x12", "12_3", "0" * 31, "0" * 33]
    with Dataset(str(place), cache=NodeCache(folder, 200_000)) as dataset:
        for name in theirs:
            (folder / name).write_bytes(bytes(20_000))
        copy = folder / ("0" * 32)  # of another dataset
        copy.write_bytes(bytes(20_000))
        assert len(list(dataset)) == len(dataset)
    assert [name for name in theirs if not (folder / name).exists()] == []
    assert not copy.exists()


def test_limits_that_cannot_work_are_refused(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    with Dataset(str(place)) as dataset:
        largest = max(dataset.row(at).entry.length for at in range(20))
    enough = largest + (64 << 10)
    with pytest.raises(ConfigError, match="cannot hold the largest"):
        Dataset(str(place), cache=NodeCache(tmp_path / "small", enough - 1))
    assert not (tmp_path / "small").exists()
    Dataset(str(place), cache=NodeCache(tmp_path / "enough", enough)).close()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(ConfigError, match="for each of 8 processes"):
        Dataset(str(place), cache=NodeCache(tmp_path / "enough", enough))
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    data = pytest.importorskip("torch.utils.data")
    with Dataset(str(place), cache=NodeCache(tmp_path / "enough", enough)) as dataset:
        loader = data.DataLoader(dataset, batch_size=2, num_workers=4, collate_fn=ids_of)
        with pytest.raises(ConfigError, match="for each of 4 processes"):
            list(loader)


def test_a_spool_is_no_place_for_a_cache(place: Path, tmp_path: Path) -> None:
    root = tmp_path / "spool"
    root.mkdir()
    (root / ROOT_MARKER_NAME).write_text("{}")
    with pytest.raises(ConfigError, match="spool root"):
        Dataset(str(place), cache=NodeCache(root / "cache", 1 << 20))
    assert [path.name for path in root.iterdir()] == [ROOT_MARKER_NAME]


_CHURN = """
import os
import sys
from pathlib import Path
from durastore.clock import SYSTEM_CLOCK
from durastore.fsio.evict import CacheFolder

parent = os.getppid()
cache = CacheFolder(Path(sys.argv[1]), limit_bytes=int(sys.argv[2]), clock=SYSTEM_CLOCK)
print("on", flush=True)
n = 0
while os.getppid() == parent:  # nobody ends it where the test itself is killed
    n += 1
    cache._count_again_s = None
    cache.keep(f"p{sys.argv[3]}-{n % 50}", memoryview(bytes([n % 256]) * 30_000), is_spare=lambda name: True)
    cache.read(f"p{sys.argv[3]}-{n % 50}", size_bytes=30_000)
"""


def test_processes_killed_while_they_fill_and_drop_leave_a_sound_cache(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown by pytest if the test fails
    dice, folder, limit = random.Random(seed), tmp_path / "cache", 400_000
    environ = os.environ | {"PYTHONPATH": str(REPO)}
    ours = CacheFolder(folder, limit_bytes=limit, clock=SYSTEM_CLOCK)
    for trial in range(6):
        command = [sys.executable, "-c", _CHURN, str(folder), str(limit)]
        children = [
            subprocess.Popen([*command, str(number)], env=environ, stdout=subprocess.PIPE) for number in range(2)
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == b"on\n"
        for _ in range(dice.randrange(5, 200)):
            with ours._folder() as opened, ours._ledger(opened) as ledger:  # nothing can be reserved or dropped now
                used = allocated(folder)
                assert used <= limit, trial
                assert used <= int(os.pread(ledger, 20, 0) or limit)
        for child in children:
            child.kill()
        for child in children:
            child.communicate()
        assert allocated(folder) <= limit
    kept = sum(
        ours.keep(f"after-{n}", memoryview(bytes(30_000)), is_spare=lambda name: not name.startswith("after"))
        for n in range(30)
    )
    assert kept >= 10, "space of the killed processes was not found again"
    assert not list(folder.glob(".tmp-*"))
