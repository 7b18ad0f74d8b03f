"""A migrated tree: what is kept, what is told, what is refused, and what an error of either side does."""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from durastore.clock import ManualClock
from durastore.errors import ConfigError, DiskFailed, SpoolLocked, StoreMissing
from durastore.fsio import folding, lock
from durastore.fsio.folder import Folder
from durastore.fsio.folding import Folding
from durastore.fsio.identity import identity_of
from durastore.fsio.rate import RateLimit
from durastore.fsio.sys import SYS
from durastore.migrate import copying, looking, metadata, outcome, places, reading
from durastore.migrate import run as run_module
from durastore.migrate.record import Intents, load_proven
from durastore.migrate.scan import PRIVATE_NAME
from durastore.model import Digest
from tests.unit.migrate_lab import MigrateLab, contents, mig
from tests.unit.reconcile_lab import npy
from tests.unit.test_migrate_plan import file

__all__ = ["mig"]

BIG = copying.LARGE_BYTES + 12_345


def failing(call: Callable[..., Any], number: int, *, when: Callable[..., bool]) -> Callable[..., Any]:
    """The call, refused with this errno for some arguments."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise OSError(number, os.strerror(number))
        return call(*args, **kwargs)

    return refuse


def _is_file(fd: int, mode: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def read_error(monkeypatch: pytest.MonkeyPatch, path: Path, *, at: int = 0) -> None:
    """The disk of the source cannot read this file from byte `at` on."""
    inode = path.stat().st_ino
    plain = os.preadv

    def preadv(fd: int, buffers: Any, offset: int) -> int:
        if os.fstat(fd).st_ino == inode and offset >= at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)


def test_a_tree_is_copied_and_looked_at_again(mig: MigrateLab) -> None:
    mig.fill(30)
    mig.write("big", BIG)
    mig.write("empty", b"")
    first = mig.run()
    assert (first.exit_code, first.copied, first.there_before) == (0, 32, 0)
    mig.check(is_all_there=True)
    again = mig.run()
    assert (again.exit_code, again.copied, again.there_before) == (0, 0, 32)
    mig.check(is_all_there=True)


def test_times_modes_and_links_are_kept(mig: MigrateLab) -> None:
    path_of = mig.write("sub/file.bin", 100)
    path_of.chmod(0o640)
    os.utime(path_of, ns=(1_234_567_891_000_000_123, 1_111_111_111_000_000_007))
    (mig.source / "sub/link").symlink_to("file.bin")
    (mig.source / "empty").mkdir(mode=0o750)
    os.utime(mig.source / "sub", ns=(5_000_000_000, 6_000_000_001))
    report = mig.run()
    assert (report.exit_code, report.links) == (0, 1)
    for path in ("sub/file.bin", "sub", "empty", "sub/link"):
        one, other = (mig.source / path).lstat(), (mig.target / path).lstat()
        assert (stat.S_IMODE(one.st_mode), one.st_mtime_ns) == (stat.S_IMODE(other.st_mode), other.st_mtime_ns), path
    assert (mig.target / "sub/file.bin").stat().st_atime_ns == 1_234_567_891_000_000_123
    assert os.readlink(mig.target / "sub/link") == "file.bin"


def test_links_are_never_followed(mig: MigrateLab, tmp_path: Path) -> None:
    # case B144
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "f").write_bytes(b"not ours")
    mig.write("a", 10)
    for name, target in (("out", str(secret)), ("up", "../outside"), ("broken", "nowhere"), ("loop", "loop")):
        (mig.source / name).symlink_to(target)
    report = mig.run()
    assert report.exit_code == 0
    assert set(report.links_out) == {"out", "up", "broken", "loop"}
    assert mig.there() == {"a": mig.written["a"]}
    assert {name: os.readlink(mig.target / name) for name in ("up", "loop")} == {"up": "../outside", "loop": "loop"}
    again = mig.run(is_reclaiming=True)
    assert (again.exit_code, again.reclaimed) == (0, 1)
    assert (secret / "f").read_bytes() == b"not ours"
    assert os.readlink(mig.source / "out") == str(secret)


def test_hard_links_sparse_and_odd_files_are_told(mig: MigrateLab) -> None:
    os.link(mig.write("one", 5_000), mig.source / "two")
    mig.written["two"] = mig.written["one"]
    mig.write("sparse", bytes(1 << 20))
    os.truncate(mig.source / "sparse", 0)
    os.truncate(mig.source / "sparse", 1 << 20)
    os.mkfifo(mig.source / "pipe")
    report = mig.run()
    assert report.exit_code == 0
    assert set(report.hard_links) == {"one", "two"}
    assert report.sparse == ("sparse",)
    assert report.odd == {"pipe": "a pipe"}
    mig.check(is_all_there=True)
    assert (mig.target / "one").stat().st_nlink == 1


def test_what_nothing_is_known_of_is_never_called_good(mig: MigrateLab) -> None:
    mig.write("whole.npy", npy(1))
    mig.write("notes.txt", 100)
    mig.write("cut.npy", npy(2)[:-9])
    mig.write("zeros.npy", bytes(400))
    report = mig.run()
    assert report.exit_code == 12
    assert set(report.damaged) == {"cut.npy", "zeros.npy"}
    assert report.unproven_paths == ("notes.txt",)
    assert {prior.name: count for prior, count in report.prior.items()} == {"LENGTH": 1, "NONE": 1}
    text = "\n".join(report.lines())
    assert "1 no prior evidence" in text
    assert " ok" not in text
    mig.check(is_all_there=True)


def test_names_that_are_no_text_are_copied(mig: MigrateLab) -> None:
    # case B132
    name = os.fsencode(mig.source) + b"/\xff\xfe.npy"
    Path(os.fsdecode(name)).write_bytes(npy(3))
    odd = "new\nline \U0001f600 '\"*?[]#&;\\"
    mig.write(odd, 10)
    report = mig.run()
    assert (report.exit_code, report.copied) == (0, 2)
    assert Path(os.fsdecode(os.fsencode(mig.target) + b"/\xff\xfe.npy")).read_bytes() == npy(3)
    assert (mig.target / odd).read_bytes() == mig.written[odd]
    assert report.facts()["no_prior_evidence"] == [odd]
    assert mig.run().there_before == 2


# --- refused before the first byte -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["same", "inside", "around", "link", "link above"])
def test_trees_that_overlap_are_refused(mig: MigrateLab, tmp_path: Path, case: str) -> None:
    # case B09
    mig.write("sub/a", 10)
    (tmp_path / "link").symlink_to(mig.source)
    mig.target = {
        "same": mig.source,
        "inside": mig.source / "sub" / "new",
        "around": mig.source.parent,
        "link": tmp_path / "link",
        "link above": tmp_path / "link" / "new",
    }[case]
    with pytest.raises(ConfigError, match="overlap"):
        mig.run(is_reclaiming=True)
    assert mig.here() == mig.written
    assert not (mig.source / "sub" / "new").exists()
    assert not (mig.source / PRIVATE_NAME).exists()


@pytest.mark.parametrize("case", ["inside", "around"])
def test_the_inodes_above_show_an_overlap_by_themselves(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Where the kernel's table of mounts cannot be read."""
    mig.write("sub/a", 10)
    monkeypatch.setattr(places, "disk_place", lambda _: None)
    monkeypatch.setattr(looking, "refuse_inside", lambda *_: None)
    mig.target = mig.source / "sub" / "new" if case == "inside" else mig.source.parent
    with pytest.raises(ConfigError, match=case.replace("around", "SRC lies inside")):
        mig.run()
    assert mig.here() == mig.written


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("is_source_bound", [True, False])
def test_a_bind_mount_is_seen_through(mig: MigrateLab, tmp_path: Path, is_source_bound: bool) -> None:
    mig.write("sub/a", 10)
    bound = tmp_path / "bound"
    bound.mkdir()
    subprocess.run(["mount", "--bind", mig.source / "sub", bound], check=True)
    try:
        (bound / "new").mkdir()
        mig.target = bound / "new"
        if is_source_bound:
            mig.source, mig.target = bound, mig.source
        with pytest.raises(ConfigError, match="overlap"):
            mig.run()
    finally:
        subprocess.run(["umount", bound], check=True)


def test_a_target_that_turns_up_in_the_scan_is_refused(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind mount where the kernel's table cannot be read."""
    mig.write("sub/a", 10)
    monkeypatch.setattr(places, "_refuse_overlap", lambda *_, **__: None)
    mig.target = mig.source / "sub"
    with pytest.raises(ConfigError, match="DST lies inside SRC"):
        mig.run()
    assert contents(mig.source) == mig.written


def test_an_unmounted_place_is_not_filled(mig: MigrateLab) -> None:
    # case B20
    mig.write("a", 10)
    mig.target = mig.target / "mount" / "data"
    with pytest.raises(StoreMissing, match="mounted"):
        mig.run()
    assert not mig.target.parent.exists()
    mig.source = mig.source / "absent"
    with pytest.raises(StoreMissing):
        mig.run()


def test_a_dry_run_makes_nothing(mig: MigrateLab) -> None:
    mig.fill(3)
    report = mig.run(is_dry=True)
    assert (report.exit_code, report.plan.files, report.copied) == (0, 3, 0)
    assert report.plan.size_bytes == sum(map(len, mig.written.values()))
    assert not mig.target.exists()
    assert set(os.listdir(mig.source)) == {"d0", "d1", "d2"}


def test_too_little_room_is_refused(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.fill(3, size=5_000)
    monkeypatch.setattr(looking, "free_bytes", lambda _: 30_000)
    report = mig.run()
    assert report.exit_code == 2
    assert "too few" in report.plan.problems[0]
    assert not mig.target.exists()


@pytest.mark.parametrize("is_known_before", [True, False])
def test_names_that_fall_together_are_refused(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, is_known_before: bool
) -> None:
    # case B127
    accent = "caf\u00e9.npy"
    for name in ("A.npy", "a.npy", "b.npy", accent, unicodedata.normalize("NFD", accent)):
        mig.write(name, 10)
    found = Folding(by_case=True, by_accent=True)
    monkeypatch.setattr(run_module, "find_folding", lambda _: found)
    if is_known_before:
        monkeypatch.setattr(places, "find_folding", lambda _: found)
    report = mig.run()
    said = report.plan.problems[0] if is_known_before else report.stopped
    assert said is not None
    assert "2 names of SRC" in said
    assert report.exit_code == (2 if is_known_before else 3)
    assert mig.there() == {}


def test_a_file_system_is_asked_by_names_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Abc", "caf\u00e9", "12"):
        (tmp_path / name).touch()
    with Folder.open(tmp_path) as folder:
        assert folding.find_folding(folder) == Folding(by_case=False, by_accent=False)
        plain = os.stat

        def blind(name: Any, **kwargs: Any) -> os.stat_result:
            for real in ("Abc", "caf\u00e9"):
                if isinstance(name, str) and folding.folded(name, Folding(by_case=True, by_accent=True)) == (
                    folding.folded(real, Folding(by_case=True, by_accent=True))
                ):
                    return plain(tmp_path / real)
            return plain(name, **kwargs)

        monkeypatch.setattr(os, "stat", blind)
        assert folding.find_folding(folder) == Folding(by_case=True, by_accent=True)
    empty = tmp_path / "12x"
    empty.mkdir()
    monkeypatch.undo()
    with Folder.open(empty) as folder:
        assert folding.find_folding(folder) == Folding(by_case=None, by_accent=None)


def test_one_migrate_at_a_time(mig: MigrateLab) -> None:
    mig.write("a", 10)
    for path in (mig.source, mig.target):
        path.mkdir(exist_ok=True)
        with Folder.open(path) as folder:
            held = lock.FlockedFile.try_lock_folder(folder)
            assert held is not None
            with pytest.raises(SpoolLocked):
                mig.run()
            held.close()
    assert mig.run().exit_code == 0


# --- errors of the source --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3_000, BIG])
def test_a_read_error_marks_its_file_and_the_rest_goes_on(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    # case B06
    mig.fill(10)
    bad = mig.write("bad.bin", size)
    read_error(monkeypatch, bad, at=size // 2 if size == BIG else 0)
    report = mig.run(is_reclaiming=True)
    assert report.exit_code == 3
    assert list(report.failed) == ["bad.bin"]
    assert "Input/output error" in report.failed["bad.bin"]
    assert mig.here() == {"bad.bin": mig.written["bad.bin"]}
    assert "bad.bin" not in mig.there()
    monkeypatch.undo()
    assert mig.run(is_reclaiming=True).exit_code == 0
    mig.check()


def test_a_read_error_leaves_what_the_destination_has(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B41
    bad = mig.write("model.bin", BIG)
    mig.target.mkdir()
    (mig.target / "model.bin").write_bytes(b"an older valid one")
    read_error(monkeypatch, bad, at=1 << 20)
    report = mig.run(is_reclaiming=True)
    assert (report.exit_code, list(report.failed)) == (3, ["model.bin"])
    assert (mig.target / "model.bin").read_bytes() == b"an older valid one"
    assert mig.here() == mig.written


@pytest.mark.parametrize("how", ["grows", "shrinks", "same length"])
@pytest.mark.parametrize("size", [3_000, BIG])
def test_a_source_that_changes_is_marked(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, how: str, size: int) -> None:
    # cases B44, B124
    mig.fill(4)
    path = mig.write("live.bin", size)
    plain, inode = os.preadv, path.stat().st_ino
    done: list[bool] = []

    def preadv(fd: int, buffers: Any, offset: int) -> int:
        count = plain(fd, buffers, offset)
        if os.fstat(fd).st_ino == inode and not done:
            done.append(True)
            with path.open("r+b") as live:
                if how == "shrinks":
                    live.truncate(size // 2)
                else:
                    live.seek(0 if how == "same length" else size)
                    live.write(b"now")
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    report = mig.run(is_reclaiming=True)
    assert report.exit_code == 3
    assert list(report.failed) == ["live.bin"]
    assert "live.bin" not in mig.there()
    assert list(mig.here()) == ["live.bin"]


def test_a_source_that_shrinks_unnoticed_is_still_short(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may go on telling the old size."""
    path = mig.write("live.bin", 3_000)
    inode, plain = path.stat().st_ino, os.preadv

    def preadv(fd: int, buffers: Any, offset: int) -> int:
        return 0 if os.fstat(fd).st_ino == inode and offset else plain(fd, [buffers[0][:2_000]], offset)

    monkeypatch.setattr(os, "preadv", preadv)
    report = mig.run()
    assert (report.exit_code, list(report.failed)) == (3, ["live.bin"])
    assert "2000 bytes were read" in report.failed["live.bin"]


def test_a_change_after_the_copy_is_noticed_and_copied_by_the_next_run(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    mig.fill(4)
    path = mig.write("live.bin", 100)
    plain = metadata.make_links

    def late(*args: Any, **kwargs: Any) -> int:
        path.write_bytes(b"newer")
        (mig.source / "d0" / "new.bin").write_bytes(b"made meanwhile")
        return plain(*args, **kwargs)

    monkeypatch.setattr("durastore.migrate.run.make_links", late)
    report = mig.run()
    assert (report.exit_code, set(report.failed)) == (3, {"live.bin", "d0/new.bin"})
    monkeypatch.undo()
    again = mig.run()
    assert (again.exit_code, again.copied, list(again.superseded)) == (0, 2, ["live.bin"])
    assert mig.there()["live.bin"] == b"newer"
    (aside,) = (mig.target / PRIVATE_NAME / "superseded").iterdir()
    assert aside.read_bytes() == mig.written["live.bin"]


def test_a_folder_that_cannot_be_read_is_told(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.fill(6)
    plain = os.scandir
    bad = (mig.source / "d1").stat().st_ino

    def scandir(fd: Any) -> Any:
        if isinstance(fd, int) and os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(fd)

    monkeypatch.setattr(os, "scandir", scandir)
    report = mig.run()
    assert (report.exit_code, list(report.failed)) == (3, ["d1"])
    assert {path.partition("/")[0] for path in mig.there()} == {"d0", "d2"}


# --- errors of the destination ---------------------------------------------------------------------------------------


def test_a_full_disk_stops_at_once(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B115
    monkeypatch.setattr(copying, "_BATCH_FILES", 3)
    mig.fill(60)
    calls: list[int] = []

    def is_full(fd: int, buffers: Any) -> bool:
        if len(buffers[0]) >= 700:  # a file, not a line of the record
            calls.append(fd)
        return len(calls) > 9

    monkeypatch.setattr(SYS, "writev", failing(SYS.writev, errno.ENOSPC, when=is_full))
    report = mig.run(jobs=1, is_reclaiming=True)
    assert report.exit_code == 3
    assert report.stopped is not None
    assert "No space left" in report.stopped
    assert len(calls) == 10
    assert report.not_attempted >= 50
    assert report.reclaimed == 0
    assert mig.here() == mig.written
    mig.check()
    monkeypatch.undo()
    assert mig.run().exit_code == 0
    mig.check(is_all_there=True)


@pytest.mark.parametrize("size", [500, BIG])
def test_a_name_that_cannot_be_given_keeps_the_source(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    # case B12
    mig.fill(4)
    mig.write("x.bin", size)
    refuse = failing(SYS.link_fd, errno.EIO, when=lambda fd, name, **_: name == "x.bin")
    monkeypatch.setattr(SYS, "link_fd", refuse)
    report = mig.run(is_reclaiming=True)
    assert (report.exit_code, list(report.failed)) == (3, ["x.bin"])
    assert mig.here() == {"x.bin": mig.written["x.bin"]}
    assert len(mig.there()) == 4
    assert list((mig.target / PRIVATE_NAME / "temp").iterdir()) == []


def test_a_folder_that_cannot_be_made_keeps_its_sources(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B13
    mig.fill(6)
    monkeypatch.setattr(SYS, "mkdir", failing(SYS.mkdir, errno.EROFS, when=lambda name, *_, **__: name == "d1"))
    report = mig.run(is_reclaiming=True)
    assert report.exit_code == 3
    assert set(report.failed) == {"d1", "d1/f0001.bin", "d1/f0004.bin"}
    assert "Read-only" in report.failed["d1"]
    assert set(mig.here()) == {"d1/f0001.bin", "d1/f0004.bin"}
    mig.check()


def test_something_else_in_the_way_is_left(mig: MigrateLab) -> None:
    mig.write("d/a", 10)
    mig.write("b", 10)
    mig.write("c", 10)
    mig.target.mkdir()
    (mig.target / "d").write_bytes(b"a file where a folder should be")
    (mig.target / "b").mkdir()
    (mig.target / "c").symlink_to("/etc/passwd")
    report = mig.run(is_reclaiming=True)
    assert (report.exit_code, set(report.failed)) == (3, {"d", "d/a", "b", "c"})
    assert mig.here() == mig.written
    assert (mig.target / "d").read_bytes() == b"a file where a folder should be"


@pytest.mark.parametrize("size", [3_000, BIG])
def test_bytes_that_come_back_otherwise_are_no_copy(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    # cases B116, B79
    mig.fill(3)
    mig.write("x.bin", size)
    plain = SYS.writev

    def zeros(fd: int, buffers: Any) -> int:
        if len(buffers[0]) >= 2_000:
            return plain(fd, [bytes(len(buffers[0]))])  # reported as written, and is not what was handed in
        return plain(fd, buffers)

    monkeypatch.setattr(SYS, "writev", zeros)
    report = mig.run(is_reclaiming=True)
    assert (report.exit_code, report.mismatched) == (13, ("x.bin",))
    assert mig.here() == {"x.bin": mig.written["x.bin"]}
    assert "x.bin" not in mig.there()


@pytest.mark.parametrize("call", ["syncfs", "fsync"])
def test_a_sync_that_fails_names_nothing(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    mig.write("x.bin", 500 if call == "syncfs" else BIG)
    made = mig.run(is_dry=True)
    assert made.exit_code == 0
    mig.target.mkdir()
    inode_of = {"syncfs": lambda fd: True, "fsync": lambda fd: os.fstat(fd).st_size == BIG}[call]
    monkeypatch.setattr(SYS, call, failing(getattr(SYS, call), errno.EIO, when=inode_of))
    report = mig.run(is_reclaiming=True)
    assert report.exit_code == 3
    assert report.stopped is not None
    assert mig.there() == {}
    assert mig.here() == mig.written


def test_an_interruption_is_not_worked_through(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_BATCH_FILES", 1)
    mig.fill(40)
    plain = reading.read_dropped
    batches: list[int] = []

    def interrupt(fd: int, size_bytes: int) -> Digest:
        batches.append(fd)
        if len(batches) == 2:
            raise KeyboardInterrupt
        return plain(fd, size_bytes)

    monkeypatch.setattr(copying, "read_dropped", interrupt)
    with pytest.raises(KeyboardInterrupt):
        mig.run(jobs=1)
    assert len(batches) == 2
    monkeypatch.undo()
    mig.check()
    assert mig.run().exit_code == 0


@pytest.mark.parametrize("number, is_full", [(errno.EPERM, False), (errno.ENOSPC, True)])
def test_a_mode_that_cannot_be_set_is_the_destinations_fault(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, number: int, is_full: bool
) -> None:
    """It was told as a source that cannot be read, and a full disk (copy-on-write) did not stop the copying."""
    mig.fill(3)
    monkeypatch.setattr(SYS, "chmod", failing(SYS.chmod, number, when=_is_file))
    report = mig.run(jobs=1)
    if is_full:
        assert report.stopped is not None
        assert "the destination cannot be written" in report.stopped
    else:
        assert set(report.failed.values()) == {f"cannot be written: {os.strerror(number)}"}
    monkeypatch.undo()
    mig.check()
    assert mig.run().exit_code == 0


def test_a_record_that_fails_at_its_end_keeps_what_was_freed_in_the_report(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    mig.write("x.bin", 500)

    def close(log: Intents) -> NoReturn:
        raise DiskFailed("the disk of the copies failed")

    monkeypatch.setattr(Intents, "close", close)
    report = mig.run(is_reclaiming=True)
    assert (report.exit_code, report.reclaimed) == (3, 1)
    assert report.stopped == "while sources were freed: the disk of the copies failed"


def test_where_one_call_does_not_sync_all_each_is_synced(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.fill(9)
    monkeypatch.setattr(SYS, "syncfs", failing(SYS.syncfs, errno.ENOSYS, when=lambda fd: True))
    synced: set[int] = set()
    plain = SYS.fsync

    def fsync(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        plain(fd)

    monkeypatch.setattr(SYS, "fsync", fsync)
    assert mig.run().exit_code == 0
    wanted = [mig.target / path for path in mig.written] + [mig.target / name for name in ("d0", "d1", "d2")]
    assert {path.stat().st_ino for path in wanted} <= synced
    assert mig.run().there_before == 9


def test_a_destination_that_is_unmounted_stops_everything(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B20
    monkeypatch.setattr(copying, "_BATCH_FILES", 2)
    mig.fill(12)
    moved = mig.target.with_name("moved")
    plain = SYS.link_fd
    named = []

    def link_fd(fd: int, name: str, *, target_fd: int) -> None:
        plain(fd, name, target_fd=target_fd)
        named.append(name)
        if len(named) == 4:
            mig.target.rename(moved)
            mig.target.mkdir()

    monkeypatch.setattr(SYS, "link_fd", link_fd)
    report = mig.run(jobs=1, is_reclaiming=True)
    assert report.exit_code == 3
    assert report.stopped is not None
    assert "another directory" in report.stopped
    assert list(mig.target.iterdir()) == []
    assert len(contents(moved)) == 4
    assert mig.here() == mig.written


def test_a_source_that_is_replaced_stops_everything(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.fill(4)
    plain = metadata.make_folders

    def swap(*args: Any, **kwargs: Any) -> Any:
        mig.source.rename(mig.source.with_name("away"))
        mig.source.mkdir()
        return plain(*args, **kwargs)

    monkeypatch.setattr("durastore.migrate.run.make_folders", swap)
    report = mig.run(is_reclaiming=True)
    assert report.stopped is not None
    assert "another directory" in report.stopped
    assert mig.there() == {}


# --- what is there already -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3_000, BIG])
def test_a_damaged_beginning_is_no_beginning(mig: MigrateLab, size: int) -> None:
    # case B101: another tool's partial file is compared by every byte, never continued and never overwritten
    data = bytearray(mig.write("part.bin", size).read_bytes())
    data[10] ^= 1
    mig.target.mkdir()
    (mig.target / "part.bin").write_bytes(data[: size // 2])
    report = mig.run(is_reclaiming=True)
    assert (report.exit_code, list(report.failed)) == (3, ["part.bin"])
    assert (mig.target / "part.bin").read_bytes() == data[: size // 2]
    (mig.target / "part.bin").rename(mig.target / "old")
    assert mig.run().exit_code == 0
    assert mig.there()["part.bin"] == mig.written["part.bin"]


def test_the_same_bytes_by_another_tool_are_proven_and_not_copied(mig: MigrateLab) -> None:
    mig.fill(3)
    mig.target.mkdir()
    for path, data in mig.written.items():
        (mig.target / path).parent.mkdir(exist_ok=True)
        (mig.target / path).write_bytes(data)
    (mig.target / "d0/f0000.bin").write_bytes(bytes(len(mig.written["d0/f0000.bin"])))  # same length, other bytes
    report = mig.run()
    assert (report.copied, report.there_before, list(report.failed)) == (0, 2, ["d0/f0000.bin"])


def test_another_name_of_the_source_is_no_copy(mig: MigrateLab, tmp_path: Path) -> None:
    # case B11
    mig.write("a", 100)
    mig.target = tmp_path / "target"
    mig.target.mkdir()
    os.link(mig.source / "a", mig.target / "a")
    report = mig.run()
    assert (report.exit_code, list(report.failed)) == (3, ["a"])
    assert "the source itself" in report.failed["a"]
    assert mig.run(is_reclaiming=True).exit_code == 2, "one device frees nothing"
    assert (mig.source / "a").read_bytes() == (mig.target / "a").read_bytes() == mig.written["a"]


def test_a_record_counts_for_the_very_files_only(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.fill(4)
    mig.run()
    changed = mig.target / "d0/f0000.bin"
    data = bytearray(changed.read_bytes())
    data[0] ^= 1
    times = changed.stat()
    changed.write_bytes(data)
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    report = mig.run()
    assert (report.exit_code, list(report.failed), report.there_before) == (3, ["d0/f0000.bin"], 3)
    assert changed.read_bytes() == data
    for log in (mig.target / PRIVATE_NAME).glob("proven-*.log"):
        text = log.read_bytes()
        log.write_bytes(b"\n".join(line[:-3] + b"xxx" for line in text.split(b"\n")))
    reads: list[int] = []
    plain = reading.read_copy

    def counted(fd: int, size_bytes: int) -> Digest:
        reads.append(fd)
        return plain(fd, size_bytes)

    monkeypatch.setattr("durastore.migrate.existing.read_copy", counted)
    assert mig.run().there_before == 3
    assert len(reads) == 4, "a damaged record counts for nothing: every byte is compared"


def test_what_a_writer_had_mapped_is_not_taken_for_known(mig: MigrateLab) -> None:
    """A page that is dirty already is changed without a trace in the file's times."""
    path = mig.write("states.bin", b"1" * 8192)
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 8192)
    mapped[:4] = b"half"
    times = identity_of(path.stat())
    first = mig.run()
    assert (first.exit_code, list(first.failed)) == (3, ["states.bin"])
    mapped[:4] = b"done"
    assert identity_of(path.stat()) == times, "nothing tells"
    mapped.close()
    second = mig.run()
    assert (second.exit_code, second.copied, list(second.superseded)) == (0, 1, ["states.bin"])
    assert (mig.target / "states.bin").read_bytes() == path.read_bytes()
    third = mig.run()
    assert (third.exit_code, third.copied, third.there_before) == (0, 0, 1)


def test_an_outgrown_copy_of_the_longest_name_is_set_aside(mig: MigrateLab) -> None:
    name = "\u4e2d" * 85
    mig.write(name, b"1")
    assert mig.run().exit_code == 0
    mig.write(name, b"22")
    report = mig.run()
    assert (report.exit_code, list(report.superseded)) == (0, [name])
    mig.check(is_all_there=True)


def test_a_line_of_the_record_that_is_damaged_counts_for_nothing(mig: MigrateLab) -> None:
    mig.write("a", 10)
    mig.run()
    with Folder.open(mig.target / PRIVATE_NAME) as folder:
        (log,) = (mig.target / PRIVATE_NAME).glob("proven-*.log")
        source = json.loads(log.read_bytes().split(b"\n")[0].partition(b" ")[2])[1]
        assert list(load_proven(folder, source=source)) == ["a"]
        assert load_proven(folder, source="another") == {}
        head, line, _ = log.read_bytes().split(b"\n")
        for bad in (line[:-1], line.replace(b'"a"', b'"b"'), b"", line.partition(b" ")[2]):
            log.write_bytes(head + b"\n" + bad + b"\n")
            assert load_proven(folder, source=source) == {}
        log.write_bytes(head + b"\n" + line)  # torn before its end
        assert load_proven(folder, source=source) == {}


def test_the_destination_knows_no_unnamed_files(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.fill(5)
    mig.write("big.bin", BIG)
    unnamed = os.O_TMPFILE
    refuse = failing(SYS.open, errno.EOPNOTSUPP, when=lambda name, flags, **_: flags & unnamed == unnamed)
    monkeypatch.setattr(SYS, "open", refuse)
    assert mig.run().exit_code == 0
    monkeypatch.setattr(SYS, "link", failing(SYS.link, errno.EPERM, when=lambda *_, **__: True))
    mig.write("more.bin", 10)
    mig.write("more big.bin", BIG)
    (mig.target / PRIVATE_NAME / "temp" / "left").write_bytes(b"of a killed run")
    report = mig.run()
    assert (report.exit_code, report.copied) == (0, 2)
    assert report.leftovers == (f"{PRIVATE_NAME}/temp/left",)
    mig.check(is_all_there=True)
    assert [path.name for path in (mig.target / PRIVATE_NAME / "temp").iterdir()] == ["left"]


def test_a_rate_is_kept(mig: MigrateLab) -> None:
    clock = ManualClock()
    pace = RateLimit(1_000, clock=clock)
    for _ in range(10):
        pace.spend(500)
    assert clock.monotonic() >= ManualClock().monotonic() + 4.9
    mig.fill(2)
    assert mig.run(bytes_per_s=1 << 30).exit_code == 0


def test_units_are_bounded() -> None:
    items = [
        outcome.Item(file=file(f"d{n % 50:02d}/f{n}", size=n * 10)) for n in sorted(range(400), key=lambda n: n % 50)
    ]
    units = outcome.cut_units(items, large_bytes=3_900, limits=(16, 20_000, 4))
    assert [item for unit in units for item in unit if item.file.identity.size_bytes < 3_900] == [
        item for item in items if item.file.identity.size_bytes < 3_900
    ]
    for unit in units:
        small = [item.file for item in unit]
        assert len(unit) == 1 or all(each.identity.size_bytes < 3_900 for each in small)
        assert len(unit) <= 16
        assert len({each.path[:3] for each in small}) <= 4
        assert sum(each.identity.size_bytes for each in small) <= 20_000
