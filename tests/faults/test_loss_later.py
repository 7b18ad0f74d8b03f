"""What a server loses after it was seen to hold it: between the proof and the unlink, and in a power cut."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from durastore.errors import DurastoreError
from durastore.testing.strict_s3 import Lie, Rule, StrictS3
from tests.faults.loss_lies import SMALL_PARTS, Scene, When
from tests.faults.loss_table import (
    BUCKET,
    PREFIX,
    QUICK,
    SPEED,
    Outcome,
    Stage,
    environment,
    judge,
    put_all,
    samples_of,
)

VOLATILE_S = 1.0  # of the server's time
SETTLE_S = 3.0  # of the server's time: longer than it may forget


@pytest.fixture
def stage(strict_s3: StrictS3, tmp_path: Path) -> Iterator[Stage]:
    strict_s3.make_bucket(BUCKET)
    strict_s3.script(SMALL_PARTS)
    with environment(strict_s3, QUICK):
        yield Stage(server=strict_s3, local=tmp_path / "spool", samples=samples_of(QUICK))


def pack_keys(stage: Stage) -> list[str]:
    return [key for key in stage.server.keys(BUCKET) if key.startswith(f"{PREFIX}/packs/")]


def outcome_of(name: str) -> Outcome:
    return Outcome(scene=Scene(name=name, when=When.AFTER, rules=()))


def lose(stage: Stage, key: str) -> None:
    stage.server.lose(BUCKET, key)


def hollow(stage: Stage, key: str) -> None:
    stage.server.damage(BUCKET, key, lie=Lie.HOLLOW)


def zero(stage: Stage, key: str) -> None:
    stage.server.damage(BUCKET, key, lie=Lie.ZERO_BLOCK)


@pytest.mark.parametrize(
    "harm,step",
    [
        pytest.param(lose, 2, id="every second object gone"),
        pytest.param(hollow, 2, id="every second object an entry without data, case B61"),
        pytest.param(zero, 1, id="a block of zeros in each"),
    ],
)
def test_what_goes_bad_between_proof_and_unlink_is_kept(
    stage: Stage, harm: Callable[[Stage, str], None], step: int
) -> None:
    outcome = outcome_of(harm.__name__)
    store = stage.open(reclaim="lazy")
    tickets = put_all(store, stage.samples, outcome=outcome)
    store.flush(400)
    for key in pack_keys(stage)[::step]:
        harm(stage, key)
    with contextlib.suppress(DurastoreError, TimeoutError):
        store.drain(20)
    store.abandon()
    judge(stage, set(tickets), outcome=outcome)
    assert (outcome.lost, outcome.unreadable) == ([], {})
    assert outcome.put == len(stage.samples)


def test_power_cuts_of_a_server_that_forgets_less_than_the_settle_time_lose_nothing(stage: Stage) -> None:
    # case B62
    stage.settle_s = SETTLE_S * SPEED
    outcome = outcome_of("power cuts")
    store = stage.open(reclaim="eager")
    ended = threading.Event()
    cutter = threading.Thread(target=cut_power, args=(stage.server, ended))
    cutter.start()
    try:
        tickets = put_all(store, stage.samples, outcome=outcome)
        with contextlib.suppress(DurastoreError, TimeoutError):
            store.drain(10 * SPEED)
    finally:
        ended.set()
        cutter.join()
        store.abandon()
    stage.server.restart_losing(VOLATILE_S)
    judge(stage, set(tickets), outcome=outcome)
    assert (outcome.lost, outcome.unreadable) == ([], {})


def cut_power(server: StrictS3, ended: threading.Event) -> None:
    while not ended.wait(VOLATILE_S * 0.7):
        server.restart_losing(VOLATILE_S)


def test_a_power_cut_that_takes_the_manifest_segment_finds_the_packs_still_here(stage: Stage) -> None:
    """The packs have long settled when their segment gets through: it has to settle as well before they go."""
    stage.settle_s = SETTLE_S * SPEED
    outcome = outcome_of("segment forgotten")
    store = stage.open(reclaim="eager")
    stage.server.script(SMALL_PARTS, Rule(lie=Lie.ERROR, op="put", key_part="/manifest/"))
    tickets = put_all(store, stage.samples, outcome=outcome)
    with contextlib.suppress(DurastoreError, TimeoutError):
        store.flush((SETTLE_S + 1) * SPEED)
    stage.server.script(SMALL_PARTS)
    store.flush(400)
    with contextlib.suppress(DurastoreError, TimeoutError):
        store.drain(VOLATILE_S / 2 * SPEED)
    stage.server.restart_losing(VOLATILE_S)
    store.abandon()
    judge(stage, set(tickets), outcome=outcome)
    assert (outcome.lost, outcome.unreadable) == ([], {})
