"""The board of a store: several puts ask for room at once."""

from __future__ import annotations

import threading

from durastore.clock import ManualClock
from durastore.store.board import Board


def in_other_thread(board: Board, short_bytes: int, *, leave: threading.Event) -> threading.Thread:
    """A put of another thread that asked, and goes on waiting until it is told to leave."""
    has_asked = threading.Event()

    def ask() -> None:
        board.ask_for_room(short_bytes)
        has_asked.set()
        leave.wait(30)
        board.ask_for_room(0)

    thread = threading.Thread(target=ask)
    thread.start()
    assert has_asked.wait(30)
    return thread


def test_a_put_that_got_in_leaves_the_request_of_another() -> None:
    board, leave = Board(ManualClock()), threading.Event()
    thread = in_other_thread(board, 500, leave=leave)
    try:
        board.ask_for_room(2_000)
        assert board.short_bytes == 2_000
        board.ask_for_room(0)
        assert board.short_bytes == 500
        assert board.is_hurried
    finally:
        leave.set()
        thread.join()
    assert board.short_bytes == 0
    assert not board.is_hurried


def test_asking_again_replaces_what_the_same_put_asked() -> None:
    board = Board(ManualClock())
    board.ask_for_room(2_000)
    board.ask_for_room(100)
    assert board.short_bytes == 100
