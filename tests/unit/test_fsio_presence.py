"""Places of live processes: counted by the kernel's locks, freed by any death, never trusted in a foreign folder."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from durastore.fsio import presence
from durastore.fsio.presence import Presence, Standing, open_runtime_folder

HOLDER = """
import sys
from durastore.fsio.presence import Presence
held = Presence("f")
print("held", flush=True)
for line in sys.stdin:
    found = held.look()
    print(found.rank, found.count, flush=True)
"""


class Holder:
    """A process that holds a place until its end."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "held"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def look(self) -> Standing:
        assert self.process.stdin is not None
        self.process.stdin.write("look\n")
        self.process.stdin.flush()
        rank, count = self._line().split()
        return Standing(rank=int(rank), count=int(count))

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=30)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def here(runtime: Path) -> Iterator[Presence]:
    held = Presence("f")
    yield held
    held.close()


def test_a_place_of_one_alone(here: Presence, runtime: Path) -> None:
    assert here.look() == Standing(rank=0, count=1)
    assert (runtime / "durastore" / "f").stat().st_size == 0
    assert (runtime / "durastore").stat().st_mode & 0o777 == 0o700


def test_processes_see_each_other_and_a_killed_one_frees_its_place(here: Presence) -> None:
    holders = [Holder() for _ in range(4)]
    try:
        assert here.look() == Standing(rank=0, count=5)
        assert [holder.look() for holder in holders] == [Standing(rank=n, count=5) for n in (1, 2, 3, 4)]
        holders[1].end()
        assert here.look() == Standing(rank=0, count=4)
        assert holders[3].look() == Standing(rank=3, count=4)
        again = Holder()  # the free place is the first one that is looked for
        holders.append(again)
        assert again.look() == Standing(rank=2, count=5)
        holders[0].end(signal.SIGTERM)
        assert here.look().count == 4
    finally:
        for holder in holders:
            holder.end()
    assert here.look() == Standing(rank=0, count=1)


def test_several_in_one_process_count_each(here: Presence) -> None:
    others = [Presence("f") for _ in range(3)]
    assert [held.look() for held in (here, *others)] == [Standing(rank=n, count=4) for n in range(4)]
    others[0].close()
    others[0].close()
    assert others[2].look() == Standing(rank=2, count=3)
    others[1].close()
    others[2].close()
    assert here.look().count == 1


def test_another_thing_is_counted_apart(here: Presence) -> None:
    other = Presence("g")
    assert (other.look().count, here.look().count) == (1, 1)
    other.close()


def test_a_forked_child_keeps_no_place(here: Presence) -> None:
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:  # the middle one: it takes a place, leaves it to a child of its own, and ends
        os.close(writing)
        held = Presence("f")
        if os.fork() == 0:
            os.read(reading, 1)  # until the test lets go of the other end
        os._exit(0 if held.look().count == 2 else 1)
    os.close(reading)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]) == 0
        assert here.look() == Standing(rank=0, count=1)
    finally:
        os.close(writing)


def test_a_forked_child_can_take_a_place_of_its_own_and_leaves_the_parents(here: Presence) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        here.close()  # the child's copy: the parent's lock is none of its business
        own = Presence("f")
        os.write(writing, f"{own.look().rank} {own.look().count}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"1 2"
    os.close(reading)
    os.close(writing)
    assert here.look() == Standing(rank=0, count=1)


def test_a_file_that_somebody_tidied_away_is_made_again(here: Presence, runtime: Path) -> None:
    (runtime / "durastore" / "f").unlink()
    other = Presence("f")
    assert other.look().count == 1, "nobody else is in the new file yet"
    assert here.look() == Standing(rank=1, count=2)
    other.close()
    (runtime / "durastore" / "f").unlink()
    (runtime / "durastore").rmdir()
    assert here.look() == Standing(rank=0, count=1)


def test_no_descriptor_stays_open(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")
    held = Presence("f")
    held.look()
    held.close()
    monkeypatch.setattr(presence, "_PLACES", 0)
    with pytest.raises(OSError, match="every place"):
        Presence("f")
    (runtime / "durastore" / "g").mkdir()
    with pytest.raises(OSError, match="directory"):
        Presence("g")
    assert os.listdir("/proc/self/fd") == before


def test_every_place_is_found_whoever_holds_it(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [Presence("f") for _ in range(30)]
    for one in held[::3]:
        one.close()
    left = [one for n, one in enumerate(held) if n % 3]
    assert [one.look() for one in left] == [Standing(rank=n, count=20) for n in range(20)]
    for one in left:
        one.close()


# --- the folder ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What /tmp is: anyone may make names in it, and take away only their own."""
    made = tmp_path / "shared"
    made.mkdir()
    made.chmod(0o1777)
    monkeypatch.setattr(presence, "_SHARED_TMP", made)
    return made


def test_without_a_runtime_dir_a_private_folder_of_the_user(shared: Path) -> None:
    for environ in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "relative"}, {"XDG_RUNTIME_DIR": "/nowhere/at"}):
        with open_runtime_folder(environ) as folder:
            assert folder.path == shared / f"durastore-{os.geteuid()}"
            assert folder.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trap", ["link", "file", "open-to-others", "another-user"])
def test_what_another_user_could_have_put_there_is_refused(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    name = shared / f"durastore-{os.geteuid()}"
    if trap == "link":
        (tmp_path / "target").mkdir(mode=0o700)
        name.symlink_to(tmp_path / "target")
    elif trap == "file":
        name.write_bytes(b"")
    else:
        name.mkdir(mode=0o700)
    if trap == "open-to-others":
        name.chmod(0o770)
    if trap == "another-user":
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", iter([mine, mine, mine + 1]).__next__)
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the trap
        open_runtime_folder({})
    if trap == "link":
        assert list((tmp_path / "target").iterdir()) == []


def test_a_folder_in_which_others_could_swap_names_is_refused(shared: Path) -> None:
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match="another user"):
        open_runtime_folder({})
    assert list(shared.iterdir()) == []


def test_the_file_itself_may_be_no_link(runtime: Path, tmp_path: Path) -> None:
    (runtime / "durastore").mkdir(mode=0o700)
    (runtime / "durastore" / "f").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - by its number
        Presence("f")
    assert caught.value.errno == errno.ELOOP
    assert not (tmp_path / "elsewhere").exists()


def test_a_system_without_such_locks_is_told_apart(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("fcntl.F_OFD_SETLK")
    with pytest.raises(OSError, match="locks"):
        Presence("f")
