"""The order of an epoch: a permutation, the same for ever, and no worse than a shuffled list."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durastore.dataset.order import MIXED_BLOCKS, EpochOrder
from durastore.errors import InvalidInput

GOLDEN_TEN = [3, 7, 0, 2, 4, 6, 1, 8, 9, 5]
GOLDEN_BLOCKS = [7, 1, 8, 2, 0, 4, 6, 3, 5, 9, 10]
GOLDEN_LANES = [1, 8, 15, 3, 2, 6, 16, 4, 0, 7, 17, 5, 13, 18, 9, 14, 19, 10, 12, 20, 11, 21, 22]
GOLDEN_MILLION = [389397, 450986, 900927]


def _all(order: EpochOrder) -> list[int]:
    found: list[int] = order.positions(np.arange(order.size, dtype=np.int64)).tolist()
    return found


@given(size=st.integers(0, 3_000), seed=st.integers(-5, 2**70), epoch=st.integers(0, 2**40))
def test_every_position_stands_somewhere_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(_all(EpochOrder(size, seed, epoch))) == list(range(size))


@pytest.mark.parametrize("size", [99_991, 100_000, 131_073])
def test_many_positions_stand_somewhere_once(size: int) -> None:
    found = EpochOrder(size, 7, 3).positions(np.arange(size, dtype=np.int64))
    assert np.array_equal(np.sort(found), np.arange(size))
    assert abs(float(np.corrcoef(found, np.arange(size))[0, 1])) < 0.01


@given(size=st.integers(1, 2**56), seed=st.integers(0, 99), at=st.integers(0, 2**56 - 1))
def test_a_place_of_a_huge_epoch_is_found_by_itself(size: int, seed: int, at: int) -> None:
    order, at = EpochOrder(size, seed, 0), at % size
    alone = order.positions(np.array([at], dtype=np.int64)).tolist()
    among = order.positions(np.array([0, at, size - 1], dtype=np.int64)).tolist()
    assert alone == [among[1]]
    assert 0 <= alone[0] < size


def test_the_order_is_the_same_in_every_version() -> None:
    """Training states of earlier runs count on these: never adapt them, make a new format of the state."""
    assert _all(EpochOrder(10, 17, 0)) == GOLDEN_TEN
    assert EpochOrder(1_000_000, 17, 5).positions(np.array([0, 1, 999_999])).tolist() == GOLDEN_MILLION


def test_the_order_of_blocks_is_the_same_in_every_version() -> None:
    assert _all(EpochOrder(11, 17, 0, block=3)) == GOLDEN_BLOCKS


def test_the_order_of_lanes_is_the_same_in_every_version() -> None:
    assert _all(EpochOrder(23, 17, 0, block=3, lanes=4)) == GOLDEN_LANES


@given(size=st.integers(0, 3_000), epoch=st.integers(0, 99), block=st.integers(2, 40), lanes=st.integers(1, 50))
def test_lanes_read_through_a_block_each(size: int, epoch: int, block: int, lanes: int) -> None:
    order = EpochOrder(size, 3, epoch, block=block, lanes=lanes)
    found = _all(order)
    assert sorted(found) == list(range(size))
    assert [order.positions(np.array([at])).tolist() for at in range(0, size, 97)] == [[at] for at in found[::97]]
    whole = size // block * block
    assert found[whole:] == list(range(whole, size)), "what fills no block comes last"
    windows = order.windows(np.arange(whole)).tolist()
    for start in range(0, whole, lanes * block):
        window = found[start : min(start + lanes * block, whole)]
        assert set(windows[start : start + len(window)]) == {windows[start]}
        width = len(window) // block
        for lane in range(width):
            assert len({at // block for at in window[lane::width]}) == 1, "all of a block in one lane"
        assert len({at // block for at in window[:width]}) == width, "each lane has a block of its own"


def test_every_block_has_an_order_of_its_own_and_all_are_as_likely() -> None:
    """All 24 orders of four samples in 4,800 blocks: chi-squared of 23 degrees of freedom, 0.1 % point."""
    found = np.array(_all(EpochOrder(4 * 4_800, 5, 0, block=4, lanes=16))).reshape(-1, 4, 16).transpose(0, 2, 1)
    seen = Counter(map(tuple, (found % 4).reshape(-1, 4).tolist()))
    assert sum(seen.values()) == 4_800
    assert sum((count - 200) ** 2 / 200 for count in seen.values()) < 49.7
    assert len(seen) == 24


def test_lanes_shuffle_blocks_over_everything() -> None:
    found = _all(EpochOrder(64_000, 3, 0, block=32, lanes=16))
    assert abs(float(np.corrcoef(found, np.arange(len(found)))[0, 1])) < 0.1
    others = [
        _all(EpochOrder(64_000, 3, 1, block=32, lanes=16)),
        _all(EpochOrder(64_000, 4, 0, block=32, lanes=16)),
        _all(EpochOrder(64_000, 3, 0, block=32, lanes=15)),
        _all(EpochOrder(64_000, 3, 0, block=32)),
    ]
    assert found not in others


@given(size=st.integers(0, 3_000), epoch=st.integers(0, 99), block=st.integers(2, 40))
def test_blocks_hold_every_position_once_and_mix_only_so_many(size: int, epoch: int, block: int) -> None:
    order = EpochOrder(size, 3, epoch, block=block)
    found = _all(order)
    assert sorted(found) == list(range(size))
    assert [order.positions(np.array([at])).tolist() for at in range(0, size, 97)] == [[at] for at in found[::97]]
    whole = size // block * block
    assert found[whole:] == list(range(whole, size)), "what fills no block comes last"
    for start in range(0, whole, MIXED_BLOCKS * block):
        window = [at // block for at in found[start : min(start + MIXED_BLOCKS * block, whole)]]
        assert set(Counter(window).values()) == {block}


def test_blocks_are_shuffled_and_so_are_their_samples() -> None:
    found = _all(EpochOrder(64_000, 3, 0, block=32))
    blocks = [at // 32 for at in found]
    assert sum(left == right for left, right in itertools.pairwise(blocks)) < len(found) / 8
    assert abs(float(np.corrcoef(found, np.arange(len(found)))[0, 1])) < 0.1
    others = [_all(EpochOrder(64_000, 3, 1, block=32)), _all(EpochOrder(64_000, 3, 0, block=31))]
    assert found not in others
    first, second = ([at % 32 for at in found[start : start + 512]] for start in (0, 512))
    assert first != second, "each of them is mixed in a way of its own"


def test_without_a_seed_positions_stay_in_order() -> None:
    assert _all(EpochOrder(5, None, 3)) == [0, 1, 2, 3, 4]


def test_epochs_seeds_and_sizes_have_orders_of_their_own() -> None:
    orders = [_all(EpochOrder(size, seed, epoch))[:50] for size in (90, 91) for seed in (1, 2) for epoch in (0, 1)]
    assert all(left != right for left, right in itertools.combinations(orders, 2))


def test_small_orders_are_drawn_evenly() -> None:
    """All 24 orders of four samples, over 4,800 seeds: chi-squared of 23 degrees of freedom, 0.1 % point."""
    seen = Counter(tuple(_all(EpochOrder(4, seed, 0))) for seed in range(4_800))
    assert len(seen) == 24
    assert sum((count - 200) ** 2 / 200 for count in seen.values()) < 49.7


def test_each_sample_comes_everywhere() -> None:
    """Where the first and the last of 30 samples stand, over 3,000 seeds: 29 degrees of freedom, 0.1 % point."""
    for ordinal in (0, 29):
        places = Counter(
            int(EpochOrder(30, seed, 1).positions(np.array([ordinal], dtype=np.int64))[0]) for seed in range(3_000)
        )
        assert sum((places[at] - 100) ** 2 / 100 for at in range(30)) < 58.3


def test_what_no_order_has_is_refused() -> None:
    for ordinals in ([5], [-1], [0, 7]):
        with pytest.raises(IndexError):
            EpochOrder(5, 1, 0).positions(np.array(ordinals, dtype=np.int64))
    for size in (-1, 2**57):
        with pytest.raises(InvalidInput):
            EpochOrder(size, 1, 0)
    with pytest.raises(InvalidInput):
        EpochOrder(9, 1, 0, block=2, lanes=-1)
