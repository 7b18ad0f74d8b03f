"""Selections: less of a snapshot, and of what is left out nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durastore.dataset.dataset import Dataset
from durastore.errors import IntegrityError, InvalidInput, InvalidSampleId, SampleAbsent
from durastore.objectstore.memory import MemoryStore
from tests.unit.manifest_bucket import Bucket, assert_tensors, encode, tensors_of


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    bucket = Bucket(MemoryStore.named(f"select-{abs(hash(request.node.nodeid))}"))
    bucket.mark()
    bucket.add_segment(bucket.add_tar([encode(f"s{i:02d}", i % 4) for i in range(20)]))
    return bucket


@pytest.fixture
def dataset(bucket: Bucket) -> Iterator[Dataset]:
    with Dataset(f"{bucket.store.url}/{bucket.prefix}") as dataset:
        yield dataset


def test_by_ids(dataset: Dataset) -> None:
    chosen = dataset.select(ids=["s07", "s03", "s19"])
    assert len(chosen) == 3
    assert chosen.ids == ["s03", "s07", "s19"]
    assert [sample.id for sample in chosen] == chosen.ids
    assert [chosen[at].id for at in (-1, 0, 1)] == ["s19", "s03", "s07"]
    assert chosen["s07"].id == "s07"
    assert "s04" not in chosen
    assert chosen.missing(["s07", "s04", "zz"]) == ["s04", "zz"]
    with pytest.raises(SampleAbsent):
        chosen["s04"]
    with pytest.raises(IndexError):
        chosen[3]
    assert dataset.ids == [f"s{i:02d}" for i in range(20)]
    assert len(dataset.select(ids=[])) == 0


def test_by_meta(dataset: Dataset) -> None:
    for where in ({"number": 2}, lambda meta: meta["number"] == 2):
        assert dataset.select(where=where).ids == ["s02", "s06", "s10", "s14", "s18"]
    assert len(dataset.select(where={"number": 2, "split": "train"})) == 0
    assert dataset.select(where={}).ids == dataset.ids


def test_selections_of_a_selection(dataset: Dataset) -> None:
    chosen = dataset.select(where={"number": 2}).select(ids=["s10", "s18"])
    assert chosen.ids == ["s10", "s18"]
    assert dataset.select(ids=["s10", "s11"], where={"number": 2}).ids == ["s10"]
    with pytest.raises(SampleAbsent, match="s11"):
        dataset.select(where={"number": 2}).select(ids=["s10", "s11"])


def test_what_is_not_there_is_named(dataset: Dataset) -> None:
    with pytest.raises(SampleAbsent, match=r"2 of 3 .*'nope'"):
        dataset.select(ids=["s01", "nope", "neither"])
    with pytest.raises(InvalidInput, match="twice"):
        dataset.select(ids=["s01", "s01"])
    with pytest.raises(InvalidInput, match="list"):
        dataset.select(ids="s01")
    with pytest.raises(InvalidSampleId):
        dataset.select(ids=["../s01"])


def test_tensors_and_rows_hold_for_every_way_of_reading(dataset: Dataset) -> None:
    chosen = dataset.select(ids=["s01", "s02"], tensors=["token_ids"], rows=slice(1, 3))
    wanted = {"token_ids": tensors_of(1)["token_ids"][1:3]}
    for sample in (chosen[0], chosen["s01"], chosen.get(0), chosen.__getitems__([0, 1])[0], next(iter(chosen))):
        assert_tensors(sample.tensors, wanted)
    assert_tensors(next(iter(chosen.iterable(shuffle=None))).tensors, wanted)
    assert chosen.get(0, tensors=["hidden_states"]).tensors.keys() == {"hidden_states"}
    assert chosen.select(tensors=["hidden_states"])[0].tensors["hidden_states"].shape[0] == 2
    with pytest.raises(InvalidInput, match="no tensor"):
        dataset.select(tensors=["logits"])[0]


def test_only_the_bytes_of_the_rows_are_fetched(bucket: Bucket) -> None:
    bucket.add_segment([bucket.add_single(encode("large", 9, rows=200_000))])
    with Dataset(f"{bucket.store.url}/{bucket.prefix}") as dataset:
        row = dataset.row("large")
        bucket.damage(row.object.key, at=row.entry.length - 1)  # where the rows that nobody asks for are
        chosen = dataset.select(ids=["large"], tensors=["hidden_states"], rows=slice(0, 10))
        assert_tensors(chosen[0].tensors, {"hidden_states": tensors_of(9, rows=200_000)["hidden_states"][:10]})
        with pytest.raises(IntegrityError, match="'large'"):
            dataset.select(ids=["large"])[0]


def test_states_of_another_selection_are_refused(dataset: Dataset) -> None:
    state = dataset.select(where={"number": 2}).iterable(shuffle=1).state_dict()
    dataset.select(where={"number": 2}, tensors=["token_ids"]).iterable(shuffle=1).load_state_dict(state)
    for other in (dataset, dataset.select(where={"number": 3})):
        with pytest.raises(InvalidInput, match="selection"):
            other.iterable(shuffle=1).load_state_dict(state)
