"""Many pieces of work in a few threads, each with several under way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from durastore.adopt.side_by_side import Work, run_side_by_side

THREADS = 3


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool


class Book:
    """What was begun and ended, by which thread."""

    def __init__(self, *, sizes: dict[int, int] | None = None) -> None:
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.most = 0
        self.by_thread: dict[int, list[int]] = {}
        self.sizes = sizes or {}
        self._lock = threading.Lock()

    def begin(self, item: int) -> int | None:
        with self._lock:
            self.begun[item] += 1
            if item % 10 == 9:
                return None
            mine = self.by_thread.setdefault(threading.get_ident(), [])
            mine.append(item)
            self.most = max(self.most, len(mine))
            return item

    def end(self, begun: int) -> None:
        with self._lock:
            self.ended[begun] += 1
            assert self.by_thread[threading.get_ident()].pop(0) == begun  # in the order in which they were begun

    def run(self, items: int, pool: ThreadPoolExecutor) -> None:
        work = Work(begin=self.begin, end=self.end, size_bytes=lambda begun: self.sizes.get(begun, 1))
        run_side_by_side(range(items), work, pool=pool, threads=THREADS)


def test_each_is_begun_and_ended_once(pool: ThreadPoolExecutor) -> None:
    book = Book()
    book.run(500, pool)
    assert book.begun == Counter(range(500))
    assert book.ended == Counter(each for each in range(500) if each % 10 != 9)
    assert 2 <= book.most <= 17


def test_a_large_one_is_ended_before_the_next_begins(pool: ThreadPoolExecutor) -> None:
    book = Book(sizes=dict.fromkeys(range(100), 20 << 20))
    book.run(100, pool)
    assert (len(book.ended), book.most) == (90, 1)


def test_nothing_to_do(pool: ThreadPoolExecutor) -> None:
    book = Book()
    book.run(0, pool)
    assert not book.begun


@pytest.mark.parametrize("where", ["begin", "end"])
def test_what_is_raised_stops_the_rest_and_passes(pool: ThreadPoolExecutor, where: str) -> None:
    book = Book()
    step = getattr(book, where)

    def fail(item: int) -> int | None:
        if item == 40:
            raise ZeroDivisionError
        found: int | None = step(item)
        return found

    setattr(book, where, fail)
    with pytest.raises(ZeroDivisionError):
        book.run(100_000, pool)
    assert len(book.begun) < 100_000


def test_an_iterator_that_raises_is_no_end(pool: ThreadPoolExecutor) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    book = Book()
    work = Work(begin=book.begin, end=book.end, size_bytes=lambda begun: 1)
    with pytest.raises(ZeroDivisionError):
        run_side_by_side(items(), work, pool=pool, threads=THREADS)
