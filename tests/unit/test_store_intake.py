"""Group commit: everybody gets exactly their own outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest

from durastore.codec.encode import EncodedSample
from durastore.errors import DiskFailed
from durastore.model import Tombstone
from durastore.store.intake import Intake, Placed


class Fake:
    """Stands for an encoded sample: only its length is looked at."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.length = 10


def samples(*names: str) -> list[EncodedSample]:
    return [cast(EncodedSample, Fake(name)) for name in names]


class Appender:
    """Records the groups it was given; slow enough that others queue up meanwhile."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.is_running = False

    def __call__(self, group: Sequence[EncodedSample], supersedes: Sequence[Tombstone]) -> list[Placed]:
        assert not supersedes
        assert not self.is_running, "two leaders at once"
        self.is_running = True
        names = [cast(Any, sample).name for sample in group]
        self.groups.append(names)
        time.sleep(0.002)
        self.is_running = False
        if "bad" in names:
            raise DiskFailed("no space")
        return [(len(self.groups), cast(Any, name)) for name in names]


def test_many_threads_share_groups_and_get_their_own_places() -> None:
    append = Appender()
    intake = Intake(append, group_bytes=1000)
    found: dict[str, list[Any]] = {}

    def work(number: int) -> None:
        for turn in range(10):
            names = [f"{number}-{turn}-{part}" for part in range(3)]
            found[names[0]] = [entry for _, entry in intake.put(samples(*names))]
            assert found[names[0]] == names

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 80
    written = [name for group in append.groups for name in group]
    assert len(written) == len(set(written)) == 240
    assert len(append.groups) < 80  # they did share


def test_an_error_reaches_every_waiter_of_its_group_and_no_other() -> None:
    append = Appender()
    intake = Intake(append, group_bytes=1000)
    with pytest.raises(DiskFailed):
        intake.put(samples("bad"))
    assert [cast(Any, entry) for _, entry in intake.put(samples("good"))] == ["good"]


def test_a_leader_whose_own_group_is_not_first_still_gets_it_written() -> None:
    append = Appender()
    intake = Intake(append, group_bytes=10)  # one group a write
    results: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: results.append(intake.put(samples(str(n))))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 20


def test_an_interrupted_leader_leaves_nobody_waiting() -> None:
    started = threading.Event()

    def append(group: Sequence[EncodedSample], _: Sequence[Tombstone]) -> list[Placed]:
        if cast(Any, group[0]).name == "first":
            started.set()
            time.sleep(0.05)
            raise KeyboardInterrupt
        return [(1, cast(Any, sample).name) for sample in group]

    intake = Intake(append, group_bytes=1000)
    errors: list[BaseException] = []

    def first() -> None:
        try:
            intake.put(samples("first"))
        except KeyboardInterrupt as exc:
            errors.append(exc)

    leader = threading.Thread(target=first)
    leader.start()
    started.wait()
    assert [cast(Any, entry) for _, entry in intake.put(samples("second"))] == ["second"]
    leader.join(10)
    assert [type(error) for error in errors] == [KeyboardInterrupt]
