"""A lock ends when its owner lets go or is gone, whatever children it forked; and no child can take it away."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from durastore.fsio.alive import PresenceFile
from durastore.fsio.folder import Folder
from durastore.fsio.forks import FORKING
from durastore.fsio.lease import writers_among
from durastore.fsio.lock import FlockedFile
from durastore.fsio.sys import SYS
from tests.unit.forking import exit_code_of, fork_in_c, living_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder.open(tmp_path) as folder:
        yield folder


def is_free(folder: Folder, name: str = "lock") -> bool:
    lock = FlockedFile.try_lock(folder, name)
    if lock is not None:
        lock.close()
    return lock is not None


# --- flock ---------------------------------------------------------------------------------------------------------


def test_a_lock_that_was_let_go_is_free_while_a_child_of_that_time_lives(folder: Folder) -> None:
    lock = FlockedFile.try_lock(folder, "lock")
    assert lock is not None
    with living_child():
        assert lock.is_held
        assert not is_free(folder), "the child's end of it is not the lock's"
        lock.close()
        assert is_free(folder)


def test_a_lock_that_was_let_go_is_free_though_a_copy_is_left_that_nobody_knows(folder: Folder) -> None:
    taken: list[FlockedFile | None] = [FlockedFile.try_lock(folder, "lock"), FlockedFile.try_lock_folder(folder)]
    taken.append(FlockedFile.try_lock_existing(folder, "lock", is_shared=True))
    assert taken.pop() is None
    for lock in taken:
        assert lock is not None
        copy = os.dup(lock.fd)  # as of a child on its way to another program
        lock.close()
        lock.close()
        os.fstat(copy)
        again = (
            FlockedFile.try_lock_folder(folder) if lock.path == folder.path else FlockedFile.try_lock(folder, "lock")
        )
        assert again is not None
        again.close()
        os.close(copy)


def killed_owner(take: Callable[[], object]) -> int:
    """A process that takes something, forks a child that lives on, and is killed; what the child waits at."""
    told, tell = os.pipe()
    reading, writing = os.pipe()
    owner = os.fork()
    if owner == 0:
        os.close(writing)
        held = take()
        if os.fork() == 0:
            os.write(tell, b"1")
            os.read(reading, 1)  # until the test lets go
            os._exit(0)
        signal.pause()
        os._exit(0 if held is None else 1)
    os.close(reading)
    assert os.read(told, 1) == b"1"
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    os.close(told)
    os.close(tell)
    return writing


def test_a_lock_ends_with_its_owner_and_not_with_the_owners_children(folder: Folder) -> None:
    writing = killed_owner(lambda: FlockedFile.try_lock(folder, "lock"))
    try:
        assert is_free(folder)
    finally:
        os.close(writing)


def test_a_child_cannot_unlock_what_its_parent_holds(folder: Folder) -> None:
    lock = FlockedFile.try_lock(folder, "lock")
    assert lock is not None
    held = lock

    def let_go() -> None:
        assert not held.is_held
        held.close()

    assert exit_code_of(fork_in_c(let_go)) == 0
    child = os.fork()
    if child == 0:
        try:
            assert held.fd < 0
            let_go()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child must not come back into the test run
            os._exit(99)
    assert exit_code_of(child) == 0
    assert held.is_held
    assert not is_free(folder)
    held.close()


def forked_meanwhile(path: Path) -> tuple[threading.Thread, list[int]]:
    """Forks in another thread, as soon as it is started; the child's exit code says whether it has the file open."""
    codes: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
            os._exit(1 if os.path.realpath(path) in opened else 0)
        codes.append(exit_code_of(child))

    return threading.Thread(target=fork), codes


def test_a_fork_in_the_middle_of_taking_a_lock_copies_nothing_that_nobody_closes(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, codes = forked_meanwhile(folder.path / "lock")
    flock = SYS.flock

    def slowly(fd: int, operation: int) -> None:
        if thread.ident is None:
            thread.start()
            thread.join(0.5)  # its chance, were it not kept waiting
        flock(fd, operation)

    monkeypatch.setattr(SYS, "flock", slowly)
    lock = FlockedFile.try_lock(folder, "lock")
    thread.join()
    assert codes == [0]
    assert lock is not None
    lock.close()


def test_a_fork_in_the_middle_of_a_look_for_writers_keeps_no_lease(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / "file").write_bytes(b"x")
    thread, codes = forked_meanwhile(folder.path / "file")
    ask = fcntl.fcntl

    def slowly(*asked: Any) -> Any:
        if thread.ident is None:
            thread.start()
            thread.join(0.5)
        return ask(*asked)

    monkeypatch.setattr(fcntl, "fcntl", slowly)
    assert writers_among(folder, ["file"]) == []
    thread.join()
    assert codes == [0]


def test_who_forks_with_a_lock_being_taken_in_the_same_thread_goes_on(folder: Folder) -> None:
    with FORKING, living_child():
        assert is_free(folder)
    with living_child():
        assert is_free(folder)


# --- bytes of a shared file ----------------------------------------------------------------------------------------


def test_a_workers_byte_ends_when_it_leaves_though_children_of_it_live(tmp_path: Path) -> None:
    mine, theirs = PresenceFile(tmp_path / "alive"), PresenceFile(tmp_path / "alive")
    mine.hold(3)
    mine.hold(70)
    copy = os.dup(mine._fd)
    with living_child():
        assert (theirs.is_held(3), theirs.is_held(70), theirs.is_held(4)) == (True, True, False)
        mine.close()
        mine.close()
        assert (theirs.is_held(3), theirs.is_held(70)) == (False, False)
    os.close(copy)
    theirs.close()


def test_a_workers_byte_ends_with_it_and_not_with_its_children(tmp_path: Path) -> None:
    def take() -> PresenceFile:
        held = PresenceFile(tmp_path / "alive")
        held.hold(3)
        return held

    writing = killed_owner(take)
    look = PresenceFile(tmp_path / "alive")
    try:
        assert not look.is_held(3)
    finally:
        os.close(writing)
        look.close()


def test_a_child_cannot_let_go_of_its_parents_byte(tmp_path: Path) -> None:
    mine, look = PresenceFile(tmp_path / "alive"), PresenceFile(tmp_path / "alive")
    mine.hold(3)
    assert exit_code_of(fork_in_c(mine.close)) == 0
    with living_child():
        assert look.is_held(3)
    assert look.is_held(3)
    mine.close()
    look.close()
