"""How long an extraction waits for its last list: never longer than whoever stops it has time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from durastore.clock import ManualClock
from durastore.extract import failure_teller
from durastore.extract.failure_book import FailureBook
from durastore.extract.failure_teller import FailureTeller, telling_failures
from durastore.extract.switch import StopSwitch
from durastore.objectstore.memory import MemoryStore
from tests.unit.manifest_bucket import RUN


class Hanging(FailureTeller):
    """Of a bucket that never answers."""

    def __init__(self, book: FailureBook) -> None:
        super().__init__(book, lambda: nullcontext((MemoryStore(), "p")), run=RUN.digest)
        self.may_end, self.has_ended = threading.Event(), threading.Event()

    def tell(self) -> int:
        self.may_end.wait(60)
        self.has_ended.set()
        return 0


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    book = FailureBook(tmp_path, run=RUN.digest.hex, worker="pid 7", clock=ManualClock())
    made = Hanging(book)
    yield made
    made.may_end.set()
    book.close()


def _after(looks: int) -> Callable[[], bool]:
    """False so many times, then true."""
    left = iter([False] * looks)
    return lambda: next(left, True)


@pytest.mark.parametrize("looks", [0, 2])
def test_a_stop_before_the_last_list_or_while_it_is_told_is_heeded(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    monkeypatch.setattr(failure_teller, "_LAST_WORDS_S", 600.0)
    monkeypatch.setattr(failure_teller, "_LAST_WORDS_OF_A_STOP_S", 0.05)
    with telling_failures(hanging, is_stopping=_after(looks)):
        pass
    assert not hanging.has_ended.is_set()


def test_the_last_list_takes_no_longer_than_the_grace_time(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_teller, "_LAST_WORDS_OF_A_STOP_S", 600.0)
    with telling_failures(hanging, is_stopping=lambda: True, is_out_of_time=_after(2)):
        pass
    assert not hanging.has_ended.is_set()


def test_an_error_does_not_wait_for_long_either(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_teller, "_LAST_WORDS_OF_A_STOP_S", 0.05)
    with pytest.raises(ZeroDivisionError), telling_failures(hanging, is_stopping=lambda: False):
        raise ZeroDivisionError
    assert not hanging.has_ended.is_set()


def test_a_switch_of_no_grace_time_waits_for_nothing(hanging: Hanging) -> None:
    switch = StopSwitch(grace_s=0.0, clock=ManualClock())
    with telling_failures(
        hanging, is_stopping=lambda: switch.signal is not None, is_out_of_time=lambda: switch.is_expired
    ):
        switch.request(15)
    assert not hanging.has_ended.is_set()
