"""A fork is over when nobody has the memory of that moment any more, and not before."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Iterator

import pytest

from durastore.dataset.forks import Fork

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux only"),
]


class _Child:
    """A forked process that does something, says so, and waits for the word to end."""

    def __init__(self, work: Callable[[int], None] = lambda _: None) -> None:
        self.fork = Fork()
        said, says = os.pipe()
        self._word = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.fork.begin_in_child()
            del self.fork
            gc.collect()
            os.dup2(self._word[0], 200)
            work(200)
            os.write(says, b"x")
            os.read(200, 1)
            os._exit(0)
        self.fork.begin_in_parent()
        os.close(says)
        assert os.read(said, 1) in (b"x", b""), "b'' where it closed all it had"
        os.close(said)

    def end(self) -> None:
        os.write(self._word[1], b"xx")
        os.waitpid(self.pid, 0)

    def close(self) -> None:
        for fd in self._word:
            os.close(fd)


def _is_over(child: _Child) -> bool:
    return child.fork.is_over


@pytest.fixture
def children() -> Iterator[list[_Child]]:
    made: list[_Child] = []
    yield made
    for child in made:
        child.close()


def test_a_fork_is_over_when_its_child_has_ended(children: list[_Child]) -> None:
    child = _Child()
    children.append(child)
    assert not child.fork.is_over
    assert not child.fork.is_over, "asking changes nothing"
    child.end()
    assert child.fork.is_over


def test_a_child_that_closes_all_descriptors_is_there_all_the_same(children: list[_Child]) -> None:
    def as_daemons_do(word: int) -> None:
        os.closerange(0, word)
        os.closerange(word + 1, 4096)
        os.read(word, 1)
        os._exit(0)

    child = _Child(as_daemons_do)
    children.append(child)
    assert not child.fork.is_over
    child.end()
    assert child.fork.is_over


def test_a_childs_child_counts(children: list[_Child]) -> None:
    reader, writer = os.pipe()

    def forks(_: int) -> None:
        if os.fork() == 0:
            os.read(reader, 1)
            os._exit(0)

    gone, answer = os.pipe()
    child = _Child(forks)
    children.append(child)
    child.end()
    assert not child.fork.is_over
    os.write(writer, b"x")
    os.close(answer)
    assert os.read(gone, 1) == b"", "it ends"
    while not _is_over(child):
        os.sched_yield()  # descriptors go before memory or after it
    for fd in (reader, writer, gone):
        os.close(fd)


def test_a_child_that_runs_another_program_has_the_memory_no_more(children: list[_Child]) -> None:
    def another(word: int) -> None:
        os.set_inheritable(word, True)
        os.execv(sys.executable, [sys.executable, "-S", "-c", f"import os; os.read({word}, 1)"])  # noqa: S606

    child = _Child(another)
    children.append(child)
    assert child.fork.is_over
    child.end()


def test_a_fork_that_failed_is_over() -> None:
    fork = Fork()
    assert not fork.is_over, "this process has it mapped"
    fork.begin_in_parent()
    assert fork.is_over


@pytest.mark.parametrize("call", ["memfd_create", "pwrite"])
def test_what_cannot_be_told_is_never_over(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, call, refused)
    fork = Fork()
    fork.begin_in_parent()
    assert not fork.is_over
    del fork
    assert len(os.listdir("/proc/self/fd")) == before
