"""`durastore manifest compact`: fewer segments, the same dataset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import durastore
from durastore_cli.main import run


def _fill(tmp_path: Path) -> Path:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for number in range(3):
        with durastore.open(bucket, local=tmp_path / f"spool{number}", reclaim="never") as store:
            store.put(f"s{number}", {"x": np.full(4, number)})
    return bucket


def _segments(bucket: Path) -> list[str]:
    return sorted(str(path.relative_to(bucket)) for path in (bucket / "manifest").rglob("*.parquet"))


def test_compacting_adds_one_segment_and_changes_no_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = _fill(tmp_path)
    before = _segments(bucket)
    assert run(["manifest", "compact", "--bucket", str(bucket), "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["segments_covered"], planned["samples"], planned["segment"]) == (3, 3, None)
    assert _segments(bucket) == before
    assert run(["manifest", "compact", "--bucket", str(bucket), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert sorted([*before, done["segment"]]) == _segments(bucket)
    with durastore.Dataset(str(bucket)) as dataset:
        assert dataset.ids == ["s0", "s1", "s2"]
        assert all(int(dataset[at].tensors["x"][0]) == at for at in range(3))
    assert run(["manifest", "compact", "--bucket", str(bucket)]) == 0
    out = capsys.readouterr().out
    assert "segments_covered: 0" in out
    assert "nothing to compact" in out
    assert "None" not in out
    assert len(_segments(bucket)) == 4


def test_an_old_snapshot_is_still_read(tmp_path: Path) -> None:
    bucket = _fill(tmp_path)
    with durastore.Dataset(str(bucket)) as dataset:
        pinned, text = dataset.snapshot_id, dataset.snapshot.render()
    assert run(["manifest", "compact", "--bucket", str(bucket)]) == 0
    for wanted in (pinned, text):
        with durastore.Dataset(str(bucket), snapshot=wanted) as dataset:
            assert dataset.snapshot_id == pinned
            assert dataset.ids == ["s0", "s1", "s2"]


def test_a_store_that_goes_on_after_it_knows_what_is_done(tmp_path: Path) -> None:
    bucket = _fill(tmp_path)
    assert run(["manifest", "compact", "--bucket", str(bucket)]) == 0
    with durastore.open(bucket, local=tmp_path / "spool0", reclaim="never") as store:
        assert all(f"s{n}" in store for n in range(3))
        assert not store.put("s1", {"x": np.full(4, 1)}).is_new
        store.put("s3", {"x": np.full(4, 3)})
    with durastore.Dataset(str(bucket)) as dataset:
        assert dataset.ids == ["s0", "s1", "s2", "s3"]
