"""How many requests one process makes at a time."""

from __future__ import annotations

import threading

from durastore.read.requests import RequestPool


def test_a_call_of_several_requests_waits_until_all_are_allowed() -> None:
    with RequestPool(4) as pool:
        let_go, has_begun = threading.Event(), threading.Event()

        def hold() -> None:
            has_begun.set()
            let_go.wait(30)

        holding = pool.begin(3, hold)
        assert has_begun.wait(30)
        late = threading.Event()
        waiting = pool.begin(2, late.set)
        assert pool.begin(1, lambda: 7).result(30) == 7, "one more is allowed"
        assert not late.is_set()
        let_go.set()
        holding.result(30)
        waiting.result(30)
        assert late.is_set()


def test_no_more_than_allowed_and_what_fails_gives_its_requests_back() -> None:
    lock, under_way, most = threading.Lock(), 0, 0

    def work(requests: int) -> None:
        nonlocal under_way, most
        with lock:
            under_way += requests
            most = max(most, under_way)
        try:
            if requests == 2:
                raise ValueError("x")
        finally:
            with lock:
                under_way -= requests

    with RequestPool(4) as pool:
        parts = [pool.begin(1 + number % 4, work, 1 + number % 4) for number in range(200)]
        failed = [part for part in parts if part.exception(30) is not None]
    assert len(failed) == 50
    assert most == 4
