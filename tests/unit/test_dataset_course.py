"""Ranks, places and states: whatever changes between two parts of an epoch, every sample is read once."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import types
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durastore.dataset.course import START, Course, Place, Uneven
from durastore.dataset.order import EpochOrder
from durastore.dataset.share import Share, find_share
from durastore.errors import ConfigError, InvalidInput
from durastore.model import Digest

ALL = Digest.of(b"all")
SNAPSHOT = Digest.of(b"snapshot")


def course(size: int, *, rank: int = 0, world: int = 1, shuffle: int | None = 3, uneven: Uneven = "pad") -> Course:
    share = Share(rank=rank, world_size=world)
    return Course(snapshot=SNAPSHOT, selection=ALL, size=size, shuffle=shuffle, share=share, uneven=uneven)


def laned(size: int, lanes: int, *, block: int = 5, rank: int = 0, world: int = 1, uneven: Uneven = "pad") -> Course:
    plain = course(size, rank=rank, world=world, uneven=uneven)
    return dataclasses.replace(plain, block=block, lanes=lanes, layout=np.arange(size))


Making = Callable[..., Course]


def _read(
    size: int, place: Place, steps: int | None, *, world: int, uneven: Uneven, make: Making = course
) -> tuple[list[int], Place]:
    """What all ranks read in `steps` samples each (None: to the end), in the order of the epoch, and the place then."""
    ranks = [make(size, rank=rank, world=world, uneven=uneven) for rank in range(world)]
    counts = {one.count(place) for one in ranks}
    assert len(counts) == 1, "a rank that gets fewer samples hangs the others"
    count = counts.pop() if steps is None else min(steps, counts.pop())
    own = np.arange(count, dtype=np.int64)
    columns = [one.positions(place, own).tolist() for one in ranks]
    places = {one.after(place, count) for one in ranks}
    assert len(places) == 1
    return [columns[rank][step] for step in range(count) for rank in range(world)], places.pop()


@given(
    size=st.integers(0, 200),
    epoch=st.integers(0, 9),
    parts=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), max_size=6),
    last_world=st.integers(1, 9),
    uneven=st.sampled_from(["pad", "drop"]),
)
def test_an_epoch_in_parts_with_other_worlds_is_the_same_epoch(
    size: int, epoch: int, parts: list[tuple[int, int]], last_world: int, uneven: Uneven
) -> None:
    if uneven == "drop":
        size = max(size, 9)
    place, seen, last = Place(epoch=epoch), list[int](), last_world
    whole = EpochOrder(size, 3, epoch).positions(np.arange(size, dtype=np.int64)).tolist()
    for world, steps in [*parts, (last_world, None)]:
        if place.epoch != epoch:
            break
        found, after = _read(size, place, steps, world=world, uneven=uneven)
        left = size - place.taken
        if uneven == "pad" and len(found) > left:
            assert found[left:] == [whole[at % size] for at in range(size, size + len(found) - left)]
            found = found[:left]
        seen += found
        last = world
        place = after if steps is None or after.epoch != epoch else _resumed(after, size)
    assert place == Place(epoch=epoch + 1)
    assert seen == whole[: len(seen)]
    assert len(seen) == size if uneven == "pad" else size - len(seen) < last


def _resumed(place: Place, size: int) -> Place:
    text = json.dumps(course(size, world=1).render(place))
    return course(size, rank=4, world=5).parse(json.loads(text))


@given(
    size=st.integers(0, 200),
    epoch=st.integers(0, 9),
    block=st.integers(2, 9),
    begun=st.integers(0, 20),
    parts=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40), st.integers(0, 20)), max_size=6),
    last_world=st.integers(1, 9),
)
def test_an_epoch_in_parts_with_other_worlds_and_lanes_is_the_epoch_that_was_begun(
    size: int, epoch: int, block: int, begun: int, parts: list[tuple[int, int, int]], last_world: int
) -> None:
    whole = EpochOrder(size, 3, epoch, block, begun).positions(np.arange(size, dtype=np.int64)).tolist()
    place, seen = Place(epoch=epoch), list[int]()
    lanes = begun
    for world, steps, next_lanes in [*parts, (last_world, 10_000, 7)]:
        if place.epoch != epoch:
            break
        make = functools.partial(laned, lanes=lanes, block=block)
        found, place = _read(size, place, steps, world=world, uneven="pad", make=make)
        seen += found
        text = json.dumps(make(size).render(place))
        lanes = next_lanes
        place = laned(size, lanes, block=block, rank=4, world=5).parse(json.loads(text))
    assert place.epoch == epoch + 1
    assert seen[:size] == whole
    assert len(seen) - size < 9


def test_a_state_of_a_version_without_lanes_ends_its_epoch_as_it_was_begun() -> None:
    state = laned(100, 0).render(Place(epoch=2, taken=40))
    assert state == {
        "format": "durastore-epoch/1",
        "snapshot": SNAPSHOT.hex,
        "selection": ALL.hex,
        "samples": 100,
        "shuffle": 3,
        "block": 5,
        "epoch": 2,
        "taken": 40,
    }
    now = laned(100, 16)
    place = now.parse(state)
    old = EpochOrder(100, 3, 2, 5, 0).positions(np.arange(40, 100))
    assert now.count(place) == 60
    assert now.positions(place, np.arange(60)).tolist() == old.tolist()
    assert now.windows(place, np.arange(60)).tolist() == [at // 80 for at in range(40, 100)]
    assert now.render(place) == state
    assert now.render(now.after(place, 1)) == state | {"taken": 41}
    after = now.render(now.after(place, 60))
    assert (after["epoch"], after["lanes"], after["format"]) == (3, 16, "durastore-epoch/2")


def test_lanes_are_part_of_the_state() -> None:
    state = laned(100, 16).render(Place(epoch=2, taken=40))
    assert state["format"] == "durastore-epoch/2", "versions that know no lanes refuse it"
    assert laned(100, 16).parse(state) == Place(epoch=2, taken=40)
    assert laned(100, 48).parse(state) == Place(epoch=2, taken=40, lanes=16)
    assert laned(100, 0).parse(state) == Place(epoch=2, taken=40, lanes=16)
    changes: list[dict[str, object]] = [
        {"lanes": 0},
        {"lanes": -1},
        {"lanes": True},
        {"lanes": 1.5},
        {"lanes": None},
        {"format": "durastore-epoch/1"},
        {"block": None},
    ]
    for change in changes:
        with pytest.raises(InvalidInput, match="training state"):
            laned(100, 16).parse(state | change)
    del state["lanes"]
    with pytest.raises(InvalidInput, match="None lanes"):
        laned(100, 16).parse(state)
    with pytest.raises(InvalidInput, match="16 lanes"):
        course(100).parse(course(100).render(START) | {"format": "durastore-epoch/2", "lanes": 16})
    for lanes, block in ((-1, 5), (16, 1)):
        with pytest.raises(ConfigError, match="lanes"):
            laned(100, lanes, block=block)


@given(lanes=st.integers(0, 40), batch=st.integers(1, 12), world=st.integers(1, 4), workers=st.integers(1, 6))
def test_who_reads_a_block_is_known(lanes: int, batch: int, world: int, workers: int) -> None:
    own = laned(max(lanes, 1) * 2 * 300, lanes, block=300, world=world)
    at = np.arange(own.size)
    readers = at % world * workers + at // world // batch % workers
    blocks = EpochOrder(own.size, 3, 0, 300, lanes).positions(at) // 300
    most = max(len(np.unique(readers[blocks == one])) for one in range(own.size // 300))
    assert own.readers_of_a_block(START, batch_size=batch, workers=workers) == (most if lanes else world * workers)
    if lanes and lanes % (batch * world * workers) == 0:
        assert most == 1


def test_a_state_is_small_at_a_million_samples() -> None:
    for one in (course(1_000_000, shuffle=2**63), laned(1_000_000, 10**6, block=1000)):
        state = one.render(Place(epoch=10**6, taken=999_999))
        assert len(json.dumps(state)) < 400  # the promise is 4 KB


@pytest.mark.parametrize(
    "change",
    [
        {"format": "durastore-epoch/2"},
        {"snapshot": "0" * 32},
        {"selection": "0" * 32},
        {"samples": 101},
        {"shuffle": 4},
        {"shuffle": None},
        {"epoch": -1},
        {"epoch": True},
        {"taken": 101},
        {"taken": 1.5},
        {"taken": None},
    ],
)
def test_the_state_of_another_run_is_refused(change: dict[str, object]) -> None:
    state = course(100).render(Place(epoch=2, taken=40))
    assert course(100, rank=1, world=4).parse(state) == Place(epoch=2, taken=40)
    with pytest.raises(InvalidInput, match="training state"):
        course(100).parse(state | change)
    nothing: list[object] = [[], None, {}]
    for other in nothing:
        with pytest.raises(InvalidInput):
            course(100).parse(other)  # type: ignore[arg-type]  # the point


def test_blocks_are_part_of_the_state() -> None:
    layout = np.arange(100)[::-1].copy()

    def of(block: int) -> Course:
        share = Share(rank=0, world_size=1)
        return Course(
            snapshot=SNAPSHOT, selection=ALL, size=100, shuffle=3, share=share, block=block, layout=layout[: block * 99]
        )

    place = Place(epoch=2, taken=40)
    state = of(5).render(place)
    assert of(5).parse(state) == place
    for other, reader in ((state, course(100)), (state, of(4)), (course(100).render(place), of(5))):
        with pytest.raises(InvalidInput, match="block"):
            reader.parse(other)
    with pytest.raises(ConfigError, match="block=5"):
        dataclasses.replace(of(5), shuffle=None)
    with pytest.raises(ConfigError, match="block=0"):
        dataclasses.replace(of(5), block=0)


def test_a_remainder_is_padded_or_dropped_as_said() -> None:
    padded, _ = _read(10, START, None, world=4, uneven="pad")
    assert len(padded) == 12
    assert padded[10:] == padded[:2]
    dropped, _ = _read(10, START, None, world=4, uneven="drop")
    assert dropped == padded[:8]


def test_more_ranks_than_samples() -> None:
    padded, place = _read(2, START, None, world=5, uneven="pad")
    assert len(padded) == 5
    assert set(padded) == {0, 1}
    assert place == Place(epoch=1)
    with pytest.raises(ConfigError, match="5 ranks"):
        course(2, world=5, uneven="drop")
    assert _read(0, START, None, world=3, uneven="pad") == ([], Place(epoch=1))


@pytest.mark.parametrize("shuffle", [True, 1.5, "7"])
def test_a_seed_is_a_whole_number(shuffle: object) -> None:
    with pytest.raises(ConfigError, match="shuffle"):
        course(5, shuffle=shuffle)  # type: ignore[arg-type]  # the point
    with pytest.raises(ConfigError, match="uneven"):
        course(5, uneven="repeat")  # type: ignore[arg-type]  # the point


def test_the_share_is_as_given_then_of_torch_then_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"RANK": "2", "WORLD_SIZE": "3"}
    assert find_share(None, None, environ={}) == Share(rank=0, world_size=1)
    assert find_share(None, None, environ=environ) == Share(rank=2, world_size=3)
    monkeypatch.setattr("os.environ", environ)
    assert find_share(None, None) == Share(rank=2, world_size=3)
    distributed = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 8
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert find_share(None, None) == Share(rank=1, world_size=8)
    assert find_share(0, 4) == Share(rank=0, world_size=4)
    distributed.is_initialized = lambda: False
    assert find_share(None, None) == Share(rank=2, world_size=3)


def test_half_a_share_is_refused() -> None:
    for rank, world in ((1, None), (None, 2), (2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError):
            find_share(rank, world, environ={})
    for rank_text, world_text in (("1", None), (None, "2"), ("x", "2"), ("", "")):
        texts = {"RANK": rank_text, "WORLD_SIZE": world_text}
        with pytest.raises(ConfigError):
            find_share(None, None, environ={name: text for name, text in texts.items() if text is not None})
