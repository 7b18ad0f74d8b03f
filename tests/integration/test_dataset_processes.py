"""A dataset on a real S3 server, and in other processes than the one that opened it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durastore.dataset.dataset import Dataset
from durastore.objectstore.directory import DirectoryStore
from durastore.objectstore.location import BucketUrl, S3Options, open_object_store
from tests.unit.manifest_bucket import Bucket, assert_tensors, encode, tensors_of

_READ_ALL = "import pickle, sys; d = pickle.load(sys.stdin.buffer); print([s.meta['number'] for s in d], d.snapshot_id)"


def _fill(bucket: Bucket) -> None:
    bucket.mark()
    rows = bucket.add_tar([encode(f"s{i:02d}", i) for i in range(30)])
    bucket.add_segment([*rows, bucket.add_single(encode("t", 30, rows=100_000))])


def _numbers_in_a_new_process(dataset: Dataset) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _READ_ALL], input=pickle.dumps(dataset), capture_output=True, check=True, timeout=100
    )
    return done.stdout.decode().strip()


@pytest.fixture(params=["directory", "s3"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Dataset]:
    if request.param == "directory":
        store: Any = DirectoryStore(tmp_path)
        bucket, url, options = Bucket(store, prefix=""), str(tmp_path), {}
    else:
        request.getfixturevalue("aws_env")
        server = request.getfixturevalue("seaweed")
        url = f"s3://{server.make_bucket()}/data/set"
        options = {"endpoint_url": server.endpoint_url, "region": server.region}
        store = open_object_store(BucketUrl.parse(url), s3=S3Options(**options))
        bucket = Bucket(store)
    _fill(bucket)
    store.close()
    with Dataset(url, **options) as dataset:
        yield dataset


def test_every_sample_is_read_here_and_in_a_new_process(dataset: Dataset) -> None:
    assert [sample.meta["number"] for sample in dataset] == list(range(31))
    assert_tensors(dataset["t"].tensors, tensors_of(30, rows=100_000))
    part = dataset.get("t", tensors=["hidden_states"], rows=slice(99_000, None))
    assert_tensors(part.tensors, {"hidden_states": tensors_of(30, rows=100_000)["hidden_states"][99_000:]})
    assert _numbers_in_a_new_process(dataset) == f"{list(range(31))} {dataset.snapshot_id}"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_loader_workers_read_after_their_parent_did(dataset: Dataset) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset.__getitems__([0, 1])  # connections and pool of the parent exist before the fork
    loader = data.DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        collate_fn=lambda batch: [(s.id, s.meta["number"]) for s in batch],
        multiprocessing_context="fork",
    )
    for _ in range(2):
        seen = [item for batch in loader for item in batch]
        assert [sample_id for sample_id, _ in seen] == dataset.ids
        assert [number for _, number in seen] == list(range(31))
