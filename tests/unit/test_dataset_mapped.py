"""The map-style dataset: access, pinning, processes, and what it refuses."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from durastore.dataset.connection import Connection
from durastore.dataset.dataset import Dataset
from durastore.errors import ConfigError, IntegrityError, InvalidInput, ManifestIncomplete, SampleAbsent, StoreMissing
from durastore.objectstore.location import BucketUrl, S3Options
from durastore.objectstore.memory import MemoryStore
from tests.unit.manifest_bucket import RUN, Bucket, assert_tensors, encode, tensors_of, tombstone_of


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    bucket = Bucket(MemoryStore.named(f"dataset-{abs(hash(request.node.nodeid))}"))
    bucket.mark()
    rows = bucket.add_tar([encode(f"s{i:02d}", i) for i in range(10)])
    bucket.add_segment([*rows, bucket.add_single(encode("big/one", 77))])
    return bucket


@pytest.fixture
def dataset(bucket: Bucket) -> Iterator[Dataset]:
    with Dataset(_url(bucket)) as dataset:
        yield dataset


def _url(bucket: Bucket) -> str:
    return f"{bucket.store.url}/{bucket.prefix}"


def test_samples_by_position_and_id(dataset: Dataset) -> None:
    assert len(dataset) == 11
    assert dataset.ids == ["big/one", *(f"s{i:02d}" for i in range(10))]
    for position, sample_id in enumerate(dataset.ids):
        sample = dataset[position]
        assert sample.id == sample_id
        assert_tensors(sample.tensors, tensors_of(sample.meta["number"]))
        assert dataset[sample_id].digest == sample.digest == dataset.row(position).entry.header_digest
    assert dataset[-1].id == "s09"
    assert dataset[np.int64(1)].id == "s00"
    assert dataset.runs == {RUN.digest: RUN}


def test_batches_and_iteration_keep_the_order(dataset: Dataset) -> None:
    assert [sample.id for sample in dataset.__getitems__([3, 0, "s09", -1, 3])] == [
        "s02",
        "big/one",
        "s09",
        "s09",
        "s02",
    ]
    assert [sample.id for sample in dataset] == dataset.ids


def test_parts_of_a_sample(dataset: Dataset) -> None:
    sample = dataset.get("s03", tensors=["token_ids"], rows=slice(1, 3))
    assert_tensors(sample.tensors, {"token_ids": tensors_of(3)["token_ids"][1:3]})
    assert sample.rows == (1, 3)


def test_what_is_not_there(dataset: Dataset) -> None:
    assert "s01" in dataset
    assert "nope" not in dataset
    assert "bad/../id" not in dataset
    assert 3 not in dataset
    assert dataset.missing(["x", "s01", "big/one", "y"]) == ["x", "y"]
    for absent in ("nope", "bad/../id", ""):
        with pytest.raises(SampleAbsent):
            dataset[absent]
        with pytest.raises(KeyError):
            dataset[absent]
    for position in (11, -12):
        with pytest.raises(IndexError):
            dataset[position]
    with pytest.raises(InvalidInput):
        dataset[1.5]  # type: ignore[index]  # the point


def test_duplicates_are_reported_and_logged(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.add_segment(bucket.add_tar([encode("s01", 500)]))
    with caplog.at_level(logging.WARNING, logger="durastore"), Dataset(_url(bucket)) as dataset:
        assert len(dataset) == 11
        assert [row.entry.sample_id.text for row in dataset.duplicates] == ["s01"]
        assert {dataset["s01"].meta["number"], 1, 500} == {1, 500}
    assert "1 rows lost" in caplog.text


def test_the_snapshot_is_pinned_and_logged_once(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="durastore"), Dataset(_url(bucket)) as dataset:
        bucket.add_segment(bucket.add_tar([encode("later", 1)]), tombstones=[tombstone_of(dataset.row("s00"))])
        assert "later" not in dataset
        assert dataset["s00"].meta == {"number": 0}
        assert [r.getMessage() for r in caplog.records].count(
            f"dataset {_url(bucket)}: 11 samples, snapshot {dataset.snapshot_id}"
        ) == 1
    with Dataset(_url(bucket)) as now:
        assert "later" in now
        assert "s00" not in now
        assert now.snapshot_id != dataset.snapshot_id
    for wanted in (dataset.snapshot_id, dataset.snapshot, dataset.snapshot.render()):
        with Dataset(_url(bucket), snapshot=wanted) as pinned:
            assert pinned.snapshot_id == dataset.snapshot_id
            assert pinned.ids == dataset.ids


def test_a_snapshot_that_does_not_fit_is_refused(bucket: Bucket, dataset: Dataset) -> None:
    other = Bucket(bucket.store, prefix="other")
    other.mark()
    with pytest.raises(InvalidInput, match="of prefix"):
        Dataset(_url(other), snapshot=dataset.snapshot)
    for wanted in ("0" * 32, "latest"):
        with pytest.raises(InvalidInput):
            Dataset(_url(bucket), snapshot=wanted)


def test_no_store_is_not_an_empty_dataset(bucket: Bucket) -> None:
    with pytest.raises(StoreMissing):
        Dataset(f"{bucket.store.url}/elsewhere")
    empty = Bucket(bucket.store, prefix="empty")
    empty.mark()
    with Dataset(_url(empty)) as dataset:
        assert len(dataset) == 0
        assert list(dataset) == []


def test_a_lost_marker_does_not_hide_the_data(caplog: pytest.LogCaptureFixture) -> None:
    bucket = Bucket(MemoryStore.named("dataset-without-marker"))
    bucket.add_segment(bucket.add_tar([encode("a", 1)]))
    with Dataset(_url(bucket)) as dataset:
        assert dataset["a"].meta == {"number": 1}
    assert "marker is gone" in caplog.text


def test_a_gap_is_refused(bucket: Bucket) -> None:
    bucket.skip_segment()
    bucket.add_segment()
    with pytest.raises(ManifestIncomplete):
        Dataset(_url(bucket))


def test_damage_never_comes_out_as_a_sample(bucket: Bucket, dataset: Dataset) -> None:
    row = dataset.row("s05")
    bucket.damage(row.object.key, at=row.entry.offset + row.entry.length - 1)
    for read in (lambda: dataset["s05"], lambda: dataset.__getitems__(["s04", "s05"]), lambda: list(dataset)):
        with pytest.raises(IntegrityError, match="'s05'"):
            read()
    assert dataset["s04"].meta == {"number": 4}


@pytest.mark.parametrize(
    "options", [{"reclaim": "never"}, {"endpoint": "x"}, {"endpoint_url": "nonsense"}, {"max_requests": 0}]
)
def test_wrong_options_are_refused(bucket: Bucket, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Dataset(_url(bucket), **options)


def test_threads_share_a_dataset(dataset: Dataset) -> None:
    wrong: list[object] = []

    def read(start: int) -> None:
        for at in range(start, start + 40):
            sample = dataset[at % len(dataset)]
            if sample.id != dataset.ids[at % len(dataset)]:
                wrong.append(sample.id)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_pickled_dataset_is_the_same_and_opens_its_own_connections(bucket: Bucket, dataset: Dataset) -> None:
    bucket.add_segment(bucket.add_tar([encode("later", 1)]))
    with pickle.loads(pickle.dumps(dataset)) as copy:
        assert copy.snapshot_id == dataset.snapshot_id
        assert copy.ids == dataset.ids
        assert_tensors(copy["s03"].tensors, tensors_of(3))


def test_a_forked_process_never_uses_its_parents_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(BucketUrl.parse("memory://forked"), s3=S3Options(), max_requests=1)
    store, pool = connection.store, connection.pool
    assert connection.store is store
    assert connection.pool is pool
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert connection.store is not store
    assert connection.pool is not pool
    connection.close()  # the child's own; the parent's stay open
    monkeypatch.undo()
    assert connection.store is store
    assert pool.submit(lambda: 5).result() == 5
    connection.close()
    connection.close()


def test_a_closed_dataset_opens_again_on_use(dataset: Dataset) -> None:
    dataset.close()
    assert dataset["s00"].meta == {"number": 0}
