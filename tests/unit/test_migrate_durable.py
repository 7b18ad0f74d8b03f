"""When a name of DST counts as durable: one sync for many who wait, and none is taken for good after a failed one."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from durastore.fsio.identity import FileIdentity
from durastore.fsio.sys import SYS
from durastore.migrate import durable
from durastore.migrate.durable import DurableNames
from durastore.migrate.outcome import StopCopying
from durastore.migrate.places import Target, hold_trees, make_target
from durastore.migrate.record import Prior, Proven, ProvenLog, load_proven
from durastore.model import Digest
from durastore.verify.copied import CopiedFile

SOURCE = "a tree"


def proven(path: str, *, size: int = 10) -> Proven:
    identity = FileIdentity(dev=1, inode=2, size_bytes=size, mtime_ns=3, ctime_ns=4)
    copied = CopiedFile(
        path=path, source=identity, target=identity, digest=Digest.of(b""), is_quiet=True, is_read_back=True
    )
    return Proven(copied=copied, prior=Prior.NONE)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    (tmp_path / "source").mkdir()
    with ExitStack() as stack:
        trees = hold_trees(tmp_path / "source", tmp_path / "target", stack=stack)
        yield make_target(trees, stack=stack)


@pytest.fixture
def names(target: Target) -> DurableNames:
    return DurableNames(target, ProvenLog(target.private, source=SOURCE))


def on_record(target: Target) -> list[str]:
    return sorted(load_proven(target.private, source=SOURCE))


def test_a_name_is_on_record_after_the_sync_that_covers_it(
    target: Target, names: DurableNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = SYS.syncfs

    def syncfs(fd: int) -> None:
        assert on_record(target) == []  # INV-2: not before
        names.note([proven("while it runs")])
        plain(fd)

    monkeypatch.setattr(SYS, "syncfs", syncfs)
    names.note([proven("before")])
    names.sync([])
    assert on_record(target) == ["before"]
    monkeypatch.undo()
    names.finish()
    assert on_record(target) == ["before", "while it runs"]


def test_who_waits_while_one_runs_shares_the_next(names: DurableNames, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that one: it may have passed by what was written after it began."""
    runs, may_end = [], threading.Event()
    begun = threading.Event()

    def syncfs(fd: int) -> None:
        runs.append(fd)
        begun.set()
        assert may_end.wait(30)

    monkeypatch.setattr(SYS, "syncfs", syncfs)
    first = threading.Thread(target=names.sync, args=([],))
    first.start()
    assert begun.wait(30)
    others = [threading.Thread(target=names.sync, args=([],)) for _ in range(5)]
    asked = threading.Barrier(6)
    plain = names._turn

    class Turn:
        """Tells when all of them have asked."""

        def __enter__(self) -> None:
            asked.wait(30)
            plain.acquire()

        def __exit__(self, *_: object) -> None:
            plain.release()

    names._turn = Turn()  # type: ignore[assignment]
    for other in others:
        other.start()
    asked.wait(30)
    may_end.set()
    for thread in (first, *others):
        thread.join(30)
    assert len(runs) == 2


def test_a_sync_that_failed_is_never_taken_for_good(
    target: Target, names: DurableNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells of a failed write once to each descriptor: the next call says nothing of it."""
    calls: list[int] = []

    def syncfs(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(SYS, "syncfs", syncfs)
    names.note([proven("written before")])
    for _ in range(2):
        with pytest.raises(StopCopying, match="Input/output error"):
            names.sync([])
    with pytest.raises(StopCopying):
        names.finish()
    assert len(calls) == 1
    assert on_record(target) == []


def test_many_bytes_do_not_wait_for_the_end(
    target: Target, names: DurableNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "_UNRECORDED_BYTES", 100)
    names.note([proven("a", size=60)])
    names.sync_due()
    assert on_record(target) == []
    names.note([proven("b", size=60)])
    names.sync_due()
    assert on_record(target) == ["a", "b"]
    names.note([proven("c", size=60)])
    names.sync_due()
    assert on_record(target) == ["a", "b"]


def test_where_one_call_does_not_sync_all_folders_are_synced_for_the_record(
    target: Target, names: DurableNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    def syncfs(fd: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    synced: list[str] = []
    plain = SYS.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        plain(fd)

    monkeypatch.setattr(SYS, "syncfs", syncfs)
    monkeypatch.setattr(SYS, "fsync", fsync)
    folder = target.trees.target_path / "d"
    folder.mkdir()
    file = os.open(folder / "f", os.O_RDWR | os.O_CREAT)
    names.note([proven("d/e")])
    names.sync([file])
    os.close(file)
    assert (synced, on_record(target)) == ([str(folder / "f")], [])
    names.finish()
    assert str(folder) in synced
    assert on_record(target) == ["d/e"]
