"""Ctrl-C for the commands that run until they are interrupted."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from durastore_cli.interrupts import until_interrupted


def test_it_ends_the_block_at_once_and_gives_the_old_handler_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    went_on = False
    with until_interrupted() as is_over:
        assert not is_over()
        os.kill(os.getpid(), signal.SIGINT)
        went_on = True
    assert (went_on, is_over(), signal.getsignal(signal.SIGINT)) == (False, True, before)


def test_one_that_a_finaliser_swallowed_is_seen_in_the_next_turn() -> None:
    turns = 0
    with until_interrupted() as is_over:
        while not is_over():
            turns += 1
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    assert turns == 1


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="x"), until_interrupted():
        raise ValueError("x")
