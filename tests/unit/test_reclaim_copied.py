"""Sources go after their copy was proven, through one door, one by one; in every doubt they stay."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durastore.errors import DiskFailed
from durastore.fsio import folder as folder_module
from durastore.fsio import identity as identity_module
from durastore.fsio.folder import Folder
from durastore.fsio.identity import FileIdentity
from durastore.fsio.lock import FlockedFile
from durastore.fsio.relocate import relocate_shared
from durastore.fsio.sys import SYS
from durastore.migrate import run as run_module
from durastore.migrate import scan as scan_module
from durastore.migrate.record import Intents
from durastore.migrate.report import MigrateReport
from durastore.migrate.scan import PRIVATE_NAME
from durastore.reclaim import copied as door
from durastore.verify.copied import verify_copy
from tests.unit.migrate_lab import FORMATS, MigrateLab, mig
from tests.unit.reconcile_lab import npy

__all__ = ["mig"]


@pytest.fixture
def before_reclaim(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Something that happens when all is copied and nothing is freed yet."""

    def install(act: Callable[[], None]) -> None:
        plain = door.reclaim_copied

        def late(*args: Any) -> Any:
            act()
            return plain(*args)

        monkeypatch.setattr(run_module, "reclaim_copied", late)

    return install


def freed(mig: MigrateLab) -> MigrateReport:
    return mig.run(is_reclaiming=True)


def test_proven_sources_go_and_nothing_else(mig: MigrateLab) -> None:
    mig.fill(7)
    (mig.source / "link").symlink_to("d0")
    report = freed(mig)
    assert (report.exit_code, report.reclaimed) == (0, 7)
    assert report.reclaimed_bytes == sum(map(len, mig.written.values()))
    assert mig.here() == {}
    assert (mig.source / "link").is_symlink()
    assert (mig.source / "d0").is_dir()
    assert mig.aside() == set()
    mig.check(is_all_there=True)


def test_a_tree_that_shows_the_source_itself_is_no_copy_of_it(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.fill(3)
    mig.run()
    plain = door.reclaim_copied

    def with_one_tree(place: door.CopiedPlace, files: Any) -> Any:
        with place.source.again() as shown_again:  # what an overlay or a mount of the source would be
            return plain(replace(place, target=shown_again), files)

    monkeypatch.setattr(run_module, "reclaim_copied", with_one_tree)
    report = freed(mig)
    assert report.stopped is not None
    assert "show one tree" in report.stopped
    assert (report.exit_code, report.reclaimed) == (3, 0)
    assert mig.here() == mig.written


def test_without_the_flag_the_source_is_not_written_to(mig: MigrateLab) -> None:
    mig.fill(3)
    before = {path: path.lstat().st_ctime_ns for path in [mig.source, *mig.source.rglob("*")]}
    assert mig.run().exit_code == 0
    assert {path: path.lstat().st_ctime_ns for path in [mig.source, *mig.source.rglob("*")]} == before


def test_sources_of_an_earlier_run_are_proven_anew(mig: MigrateLab) -> None:
    mig.fill(4)
    mig.run()
    damaged = mig.target / "d0/f0000.bin"
    inode = damaged.stat()
    with damaged.open("r+b") as file:
        file.write(b"xx")
    os.utime(damaged, ns=(inode.st_atime_ns, inode.st_mtime_ns))
    report = freed(mig)
    assert (report.reclaimed, list(report.failed)) == (3, ["d0/f0000.bin"])
    mig.written = {"d0/f0000.bin": mig.written["d0/f0000.bin"]}
    assert mig.here() == mig.written


def test_a_damaged_source_stays(mig: MigrateLab) -> None:
    # case B25
    mig.write("cut.npy", npy(1)[:-5])
    mig.write("whole.npy", npy(2))
    report = freed(mig)
    assert (report.exit_code, report.reclaimed, list(report.kept)) == (3, 1, ["cut.npy"])
    assert list(mig.here()) == ["cut.npy"]
    mig.check()


def test_an_open_writer_keeps_its_file(mig: MigrateLab, before_reclaim: Callable[[Callable[[], None]], None]) -> None:
    mig.fill(2)
    live, late = mig.write("live.bin", 100), mig.write("late.bin", 100)
    with ExitStack() as writers:
        writers.enter_context(live.open("ab"))
        comes = [late]

        def open_late() -> None:
            if comes:
                writers.callback(os.close, os.open(comes.pop(), os.O_WRONLY))

        before_reclaim(open_late)
        report = freed(mig)
        assert (report.reclaimed, report.exit_code) == (2, 3)
        assert "open for writing while it was copied" in report.failed["live.bin"]
        assert "open for writing" in report.kept["late.bin"]
    assert sorted(mig.here()) == ["late.bin", "live.bin"]
    assert freed(mig).exit_code == 0
    mig.check(is_all_there=True)


def test_times_in_whole_seconds_are_not_believed_within_one(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, before_reclaim: Callable[[Callable[[], None]], None]
) -> None:
    """On ext4 with small inodes a second write in one second leaves no trace."""

    def in_seconds(stat: os.stat_result) -> FileIdentity:
        return FileIdentity(
            dev=stat.st_dev, inode=stat.st_ino, size_bytes=stat.st_size, mtime_ns=now_ns, ctime_ns=now_ns
        )

    now_ns = time.time_ns() // 1_000_000_000 * 1_000_000_000
    for module in (scan_module, folder_module, identity_module):
        monkeypatch.setattr(module, "identity_of", in_seconds)
    monkeypatch.setattr(FileIdentity, "is_of", lambda identity, stat: identity == in_seconds(stat))
    path = mig.write("f", b"A" * 100)

    def write_again() -> None:
        mig.write("f", b"B" * 100)

    before_reclaim(write_again)
    report = freed(mig)
    assert (report.exit_code, list(report.kept)) == (3, ["f"])
    assert path.read_bytes() == b"B" * 100
    report = mig.run()
    assert (report.exit_code, list(report.superseded)) == (0, ["f"])
    assert mig.there() == {"f": b"B" * 100}


def test_a_source_that_changed_since_stays(
    mig: MigrateLab, before_reclaim: Callable[[Callable[[], None]], None]
) -> None:
    mig.fill(2)
    path = mig.write("x.bin", 100)
    before_reclaim(lambda: path.chmod(0o600))  # a new change time is enough
    report = freed(mig)
    assert (report.exit_code, list(report.kept)) == (3, ["x.bin"])
    assert "changed since" in report.kept["x.bin"]
    assert list(mig.here()) == ["x.bin"]


def test_a_new_file_under_the_name_stays(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer finishes its next file at the last moment (ADR 0007)."""
    path = mig.write("x.bin", 100)
    plain = relocate_shared

    def swap(source: Folder, name: str, *, target: Folder, new_name: str) -> None:
        newer = path.with_name("newer")
        newer.write_bytes(b"the next one")
        newer.replace(path)
        plain(source, name, target=target, new_name=new_name)

    monkeypatch.setattr(door, "relocate_shared", swap)
    report = freed(mig)
    assert (report.exit_code, list(report.kept)) == (3, ["x.bin"])
    assert "another file came under its name" in report.kept["x.bin"]
    assert path.read_bytes() == b"the next one"


def test_a_copy_that_went_keeps_its_source(
    mig: MigrateLab, before_reclaim: Callable[[Callable[[], None]], None]
) -> None:
    mig.fill(3)
    before_reclaim((mig.target / "d1/f0001.bin").unlink)
    report = freed(mig)
    assert (report.reclaimed, list(report.kept)) == (2, ["d1/f0001.bin"])
    mig.check()


def test_an_unlink_that_fails_puts_the_file_back(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B43
    mig.fill(3)
    plain, calls = SYS.unlink, []

    def unlink(name: str, *, dir_fd: int) -> None:
        calls.append(name)
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        plain(name, dir_fd=dir_fd)

    monkeypatch.setattr(SYS, "unlink", unlink)
    report = freed(mig)
    assert report.exit_code == 3
    assert report.stopped is not None or report.kept
    assert mig.aside() == set()
    mig.check()
    monkeypatch.undo()
    assert freed(mig).exit_code == 0
    assert mig.here() == {}


def test_each_step_is_durable_before_the_next(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.write("x.bin", 100)
    steps: list[str] = []
    for name in ("rename_new", "unlink", "fdatasync", "fsync"):
        plain = getattr(SYS, name)

        def noted(*args: Any, _name: str = name, _plain: Any = plain, **kwargs: Any) -> Any:
            steps.append(_name)
            return _plain(*args, **kwargs)

        monkeypatch.setattr(SYS, name, noted)
    assert freed(mig).exit_code == 0
    begin = steps.index("rename_new")
    assert steps[begin - 1] == "fdatasync", "the intent, before the name is moved"
    assert steps[begin:] == ["rename_new", "fsync", "fsync", "fdatasync", "unlink", "fsync", "fdatasync"]
    (log,) = (mig.target / PRIVATE_NAME).glob("freed-*.log")
    bodies = [json.loads(line.split(" ", 1)[1]) for line in log.read_text().splitlines()]
    assert [body[0] for body in bodies] == ["source", "going", "receipt"]
    assert bodies[1][2] == "x.bin"


def test_an_intent_that_cannot_be_written_ends_it(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.fill(3)
    monkeypatch.setattr(Intents, "announce", _refuse)
    report = freed(mig)
    assert report.exit_code == 3
    assert report.reclaimed == 0
    assert mig.here() == mig.written


def _refuse(*_: object) -> None:
    raise DiskFailed("no room", errno=errno.ENOSPC)


def test_what_a_killed_run_moved_aside_is_taken_back(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B102
    mig.fill(3)

    class Killed(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(door, "verify_copy", kill)
    monkeypatch.setattr(door, "_is_restored", lambda *_, **__: False)
    with pytest.raises(Killed):
        freed(mig)
    monkeypatch.undo()
    assert len(mig.aside()) == 1
    assert len(mig.here()) == 2
    report = mig.run()
    assert (report.exit_code, report.restored) == (0, ("d0/f0000.bin",))
    assert mig.here() == mig.written
    assert freed(mig).exit_code == 0
    mig.check(is_all_there=True)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_folder_that_came_under_the_name_is_put_back(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """It has one name only: there is no second one to give it before the first goes."""
    path = mig.write("x.bin", 100)
    plain = relocate_shared

    def swap(source: Folder, name: str, *, target: Folder, new_name: str) -> None:
        path.unlink()
        (path / "below").mkdir(parents=True)
        plain(source, name, target=target, new_name=new_name)

    monkeypatch.setattr(door, "relocate_shared", swap)
    if is_killed:  # before it is put back
        monkeypatch.setattr(door, "_is_restored", lambda *_, **__: False)
    report = freed(mig)
    assert list(report.kept) == ["x.bin"]
    monkeypatch.undo()
    if is_killed:
        assert not path.exists()
        mig.run()
    assert (path / "below").is_dir()
    assert not mig.aside()


def test_what_cannot_be_taken_back_stays_aside_and_is_told(mig: MigrateLab) -> None:
    mig.fill(1)
    going = mig.source / PRIVATE_NAME / "going"
    going.mkdir(parents=True)
    (going / "unknown").write_bytes(b"whose is it")
    report = mig.run()
    assert (report.exit_code, list(report.failed)) == (3, [f"{PRIVATE_NAME}/going/unknown"])
    assert (going / "unknown").read_bytes() == b"whose is it"


# --- two at once -----------------------------------------------------------------------------------------------------


@pytest.fixture
def both_have_it(mig: MigrateLab) -> MigrateLab:
    """One file, on both sides."""
    mig.write("sub/f", 100)
    assert mig.run().exit_code == 0
    return mig


def test_a_source_that_is_a_copy_for_another_run_stays(both_have_it: MigrateLab) -> None:
    # case B21
    mig = both_have_it
    with Folder.open(mig.source / "sub") as folder:
        lock = FlockedFile.try_lock_existing(folder, "f", is_shared=True)  # as the other run holds it
        assert lock is not None
        report = freed(mig)
        lock.close()
    assert (report.reclaimed, list(report.kept)) == (0, ["sub/f"])
    with Folder.open(mig.target / "sub") as folder:
        lock = FlockedFile.try_lock_existing(folder, "f")  # and as it holds what it is about to free
        assert lock is not None
        assert list(freed(mig).kept) == ["sub/f"]
        lock.close()
    assert freed(mig).reclaimed == 1


def test_two_runs_in_opposite_directions_leave_a_copy(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B21: both have looked, and neither has freed yet
    mig.write("sub/f", b"the only two copies")
    assert mig.run().exit_code == 0
    plain, barrier = verify_copy, threading.Barrier(2)

    def together(*args: Any, **kwargs: Any) -> Any:
        receipt = plain(*args, **kwargs)
        try:
            barrier.wait(1.0)
        except threading.BrokenBarrierError:
            pass  # the other one was refused before it came so far
        return receipt

    monkeypatch.setattr(door, "verify_copy", together)
    back = _request(mig.target / "sub", mig.source / "sub")
    there = _request(mig.source, mig.target)
    threads = [
        threading.Thread(target=run_module.migrate, args=(each,), kwargs={"formats": FORMATS}) for each in (there, back)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = [mig.source / "sub/f", mig.target / "sub/f"]
    found = [path.read_bytes() for path in places if path.exists()]
    assert found
    assert set(found) == {b"the only two copies"}


def _migrate(request: run_module.MigrateRequest) -> None:
    run_module.migrate(request, formats=FORMATS)


def _request(source: Path, target: Path) -> run_module.MigrateRequest:
    return run_module.MigrateRequest(source=source, target=target, is_reclaiming=True)
