"""The membership index against a plain dict, over its dict, its runs and their merges."""

from __future__ import annotations

import numpy as np
import pytest

from durastore.manifest.index import IdIndex
from durastore.model import Digest, SampleId


def _digest(number: int) -> Digest:
    return Digest.of(str(number).encode())


@pytest.mark.parametrize("recent_limit", [1, 2, 7, 1000])
def test_every_added_pair_is_found_and_no_other(recent_limit: int) -> None:
    index = IdIndex(recent_limit=recent_limit)
    for number in range(200):
        index.add(SampleId(f"s{number}"), _digest(number) if number % 3 else None)
    for number in range(200):
        sample_id = SampleId(f"s{number}")
        expected = _digest(number) if number % 3 else None
        hit = index.find(sample_id)
        assert hit is not None
        assert hit.input_digests == (expected,)
        assert index.contains(sample_id, None)
        assert index.contains(sample_id, _digest(number)) is (expected is not None)
        assert not index.contains(sample_id, _digest(number + 1))
    assert index.find(SampleId("s200")) is None
    assert not index.contains(SampleId("s200"), None)
    assert len(index) == 200


@pytest.mark.parametrize("recent_limit", [1, 7, 1000])
def test_groups_are_added_as_one_by_one_and_told_what_was_held(recent_limit: int) -> None:
    index, held = IdIndex(recent_limit=recent_limit), set[str]()
    for start in range(0, 60, 4):
        names = [f"s{number}" for number in (*range(start, start + 10), start)]  # most of them again, one twice
        assert index.holds_any(names) is not held.isdisjoint(names)
        inputs = [_digest(len(name)).hex if name[-1] > "4" else None for name in names]
        expected = [name in held or name in names[:at] for at, name in enumerate(names)]
        assert index.add_many(names, inputs) == expected
        held.update(names)
    for name in held:
        assert not index.holds_any([f"{name}x"])
        hit = index.find(SampleId(name))
        assert hit is not None
        assert hit.input_digests == ((_digest(len(name)) if name[-1] > "4" else None),)
    assert not index.holds_any([])


def test_one_id_with_several_inputs_is_held_with_each() -> None:
    index = IdIndex(recent_limit=2)
    for number in (1, 2, 3):
        index.add(SampleId("a"), _digest(number))
        index.add(SampleId(f"filler{number}"), None)
    hit = index.find(SampleId("a"))
    assert hit is not None
    assert set(hit.input_digests) == {_digest(1), _digest(2), _digest(3)}
    assert not hit.has_input(_digest(4))


def test_adding_again_changes_nothing() -> None:
    index = IdIndex()
    for _ in range(3):
        index.add(SampleId("a"), _digest(1))
    assert len(index) == 1


def test_equal_high_halves_are_told_apart_by_the_low_half() -> None:
    sample_id = SampleId("a")
    value = int(sample_id.digest().hex, 16)
    high, low = value >> 64, value & ((1 << 64) - 1)
    ids = np.array([[high, low ^ 1], [high, low], [high, low ^ 2]], dtype=np.uint64)
    inputs = np.array([[1, 1], [0, 7], [2, 2]], dtype=np.uint64)
    index = IdIndex.of_columns(ids, inputs, has_input=np.array([True, True, True]))
    hit = index.find(sample_id)
    assert hit is not None
    assert hit.input_digests == (Digest(f"{7:032x}"),)
    assert index.holds_any(["a"])
    other = IdIndex.of_columns(ids[[0, 2]], inputs[[0, 2]], has_input=np.array([True, True]))
    assert not other.holds_any(["a"])
    assert other.add_many(["a"], [None]) == [False]


def test_a_row_of_columns_takes_33_bytes() -> None:
    ids = np.arange(2000, dtype=np.uint64).reshape(-1, 2)
    index = IdIndex.of_columns(ids, ids, has_input=np.ones(1000, dtype=np.bool_))
    assert index.size_bytes == 33 * 1000
    assert len(index) == 1000
