"""The root is the directory it was, on a disk that keeps promises; each spool in it has one owner."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import (
    ConfigError,
    DurastoreError,
    FormatUnsupported,
    IntegrityError,
    RootMismatch,
    SpoolLocked,
    SpoolUnreadable,
    UnsupportedFilesystem,
)
from durastore.formats.spool_root import MOVED_NAME, ROOT_MARKER_NAME, RootRecord, parse_root, render_root
from durastore.fsio.folder import Folder
from durastore.fsio.lock import FlockedFile
from durastore.fsio.space import Filesystem
from durastore.fsio.sys import SYS
from durastore.model import PackState
from durastore.spool import root as root_module
from durastore.spool import spool as spool_module
from durastore.spool.root import SpoolRoot
from durastore.spool.spool import Spool, claim_idle_siblings
from durastore.spool.watermarks import Watermarks
from tests.unit.spool_lab import BALLAST_BYTES, advance, sample, spool_at, writer_of


def test_a_root_is_made_once_and_known_again(tmp_path: Path) -> None:
    first = SpoolRoot.open(tmp_path / "a")
    again = SpoolRoot.open(tmp_path / "a")
    assert first.identity == again.identity
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    first.check()
    first.close()
    again.close()


def test_a_root_on_a_disk_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SpoolUnreadable, match="nvme does not exist") as caught:
        SpoolRoot.open(tmp_path / "nvme" / "spool")
    assert "mkdir -p" in str(caught.value.hint)
    assert not (tmp_path / "nvme").exists()
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "spool")  # /data -> /nvme/data is the usual way to have it
    with pytest.raises(SpoolUnreadable, match="gone does not exist"):
        SpoolRoot.open(tmp_path / "link")


def test_a_root_that_cannot_even_be_looked_for_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(SpoolUnreadable, match="name too long"):
        SpoolRoot.open(tmp_path / ("n" * 300))


def test_a_file_is_no_root_and_the_error_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x")
    with pytest.raises(SpoolUnreadable, match="Not a directory") as caught:
        SpoolRoot.open(tmp_path / "notes")
    assert caught.value.hint == "it has to be a folder"


def test_a_link_to_the_root_is_the_root(tmp_path: Path) -> None:
    real = SpoolRoot.open(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    linked = SpoolRoot.open(tmp_path / "link")
    assert linked.identity == real.identity
    assert linked.path == real.path
    real.close()
    linked.close()


def test_an_unmounted_or_replaced_root_is_noticed(tmp_path: Path) -> None:
    # case B17, B20
    path = tmp_path / "root"
    root = SpoolRoot.open(path)
    os.rename(path, tmp_path / "elsewhere")
    with pytest.raises(RootMismatch, match="not there any more"):
        root.check()
    path.mkdir()
    with pytest.raises(RootMismatch):
        root.check()
    other = SpoolRoot.open(path)
    with pytest.raises(RootMismatch, match="another directory"):
        root.check()
    other.close()
    root.close()


def test_a_marker_replaced_by_its_equal_is_noticed(tmp_path: Path) -> None:
    root = SpoolRoot.open(tmp_path)
    marker = tmp_path / ROOT_MARKER_NAME
    marker.rename(tmp_path / "old")
    shutil.copy2(tmp_path / "old", marker)
    with pytest.raises(RootMismatch):
        root.check()
    root.close()


def test_another_directory_with_the_same_marker_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "root"
    root = SpoolRoot.open(path)
    path.rename(tmp_path / "away")
    path.mkdir()
    os.link(tmp_path / "away" / ROOT_MARKER_NAME, path / ROOT_MARKER_NAME)
    with pytest.raises(RootMismatch, match="another directory"):
        root.check()
    root.close()


def test_a_copied_root_does_not_pass_for_the_original(tmp_path: Path) -> None:
    SpoolRoot.open(tmp_path / "original").close()
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    with pytest.raises(RootMismatch, match="copy"):
        SpoolRoot.open(tmp_path / "copy")
    # what the hint says helps
    (tmp_path / "copy" / ROOT_MARKER_NAME).rename(tmp_path / "copy" / "before.json")
    original, copy = SpoolRoot.open(tmp_path / "original"), SpoolRoot.open(tmp_path / "copy")
    assert original.identity.root_id != copy.identity.root_id
    original.close()
    copy.close()


def test_a_root_on_another_file_system_is_refused_if_both_ids_are_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretend(uuid: str, *, is_local: bool = True) -> None:
        found = Filesystem(type_name="ext4", is_local_disk=is_local, uuid=uuid, st_dev=1)
        monkeypatch.setattr(root_module, "filesystem_of", lambda _: found)

    pretend("1111-2222")
    SpoolRoot.open(tmp_path).close()
    pretend("fsid-77")
    SpoolRoot.open(tmp_path).close()
    pretend("3333-4444")
    with pytest.raises(RootMismatch):
        SpoolRoot.open(tmp_path)
    pretend("1111-2222", is_local=False)
    # case B119
    with pytest.raises(UnsupportedFilesystem):
        SpoolRoot.open(tmp_path)
    SpoolRoot.open(tmp_path, is_any_filesystem_allowed=True).close()


@pytest.mark.parametrize(
    "recorded, now, type_name, is_other",
    [
        ("1111-2222", "1111-2222", "xfs", False),
        ("1111-2222", "3333-4444", "xfs", True),
        ("1111-2222", "fsid-77", "ext4", False),
        ("fsid-77", "1111-2222", "ext4", False),
        ("fsid-77", "fsid-78", "ext4", True),
        ("fsid-77", "fsid-78", "btrfs", True),
        ("fsid-77", "fsid-78", "xfs", False),  # made of the device number, which a reboot may change
        ("fsid-77", "fsid-77", "ext4", False),
    ],
)
def test_ids_of_one_kind_that_last_tell_file_systems_apart(
    recorded: str, now: str, type_name: str, is_other: bool
) -> None:
    found = Filesystem(type_name=type_name, is_local_disk=True, uuid=now, st_dev=1)
    assert found.is_surely_not(recorded) is is_other


def test_a_root_that_was_moved_says_where_to(tmp_path: Path) -> None:
    root = SpoolRoot.open(tmp_path)
    (tmp_path / MOVED_NAME).write_text("/mnt/new disk\n")
    for attempt in (root.check, lambda: SpoolRoot.open(tmp_path)):
        with pytest.raises(RootMismatch, match="/mnt/new disk"):
            attempt()
    root.close()


def test_the_marker_is_parsed_strictly() -> None:
    record = RootRecord(root_id="ab" * 16, fs_uuid="fsid-1", directory_inode=12)
    value = json.loads(render_root(record))
    assert parse_root(render_root(record)) == record
    with pytest.raises(FormatUnsupported):
        parse_root(json.dumps({**value, "format": 2}).encode())
    for bad in (
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        *(json.dumps({**value, name: None}).encode() for name in value),
        json.dumps({**value, "root_id": "AB" * 16}).encode(),
        json.dumps({**value, "directory_inode": True}).encode(),
    ):
        with pytest.raises(IntegrityError):
            parse_root(bad)


# --- spools ----------------------------------------------------------------------------------------------------------


def test_each_claim_gets_a_spool_and_a_writer_of_its_own(tmp_path: Path) -> None:
    root = SpoolRoot.open(tmp_path)
    first, second = Spool.claim(root, clock=SYSTEM_CLOCK), Spool.claim(root, clock=SYSTEM_CLOCK)
    assert (first.path.name, second.path.name) == ("w-00", "w-01")
    writers = {first.writer, second.writer}
    first.close()
    again = Spool.claim(root, clock=SYSTEM_CLOCK)
    assert again.path.name == "w-00"
    assert again.writer not in writers
    again.close()
    second.close()
    root.close()


def claim_and_tell(path: Path, go_fd: int, tell_fd: int, leave_fd: int) -> None:
    """A child: waits for the word, claims, tells which spool it got, and holds it until the parent lets go."""
    os.read(go_fd, 1)
    root = SpoolRoot.open(path)
    spool = Spool.claim(root, clock=SYSTEM_CLOCK)
    os.write(tell_fd, f"{spool.path.name}\n".encode())
    os.read(leave_fd, 1)
    spool.close()


def test_two_processes_never_share_a_spool(tmp_path: Path) -> None:
    SpoolRoot.open(tmp_path).close()
    (go_fd, start_fd), (heard_fd, tell_fd), (leave_fd, hold_fd) = os.pipe(), os.pipe(), os.pipe()
    pids = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for fd in (start_fd, heard_fd, hold_fd):  # so that the end of the parent ends the child too
                    os.close(fd)
                claim_and_tell(tmp_path, go_fd, tell_fd, leave_fd)
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the child must not come back into the test run
                os._exit(99)
        pids.append(pid)
    for fd in (go_fd, tell_fd, leave_fd, start_fd):
        os.close(fd)  # closing `start_fd` is the word for all of them at once
    names: list[str] = []
    while len(names) < 4 and (told := os.read(heard_fd, 1_000)):
        names += told.decode().split()
    os.close(hold_fd)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 4
    assert sorted(names) == ["w-00", "w-01", "w-02", "w-03"]
    os.close(heard_fd)


def test_locks_that_do_not_exclude_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # case B125
    root = SpoolRoot.open(tmp_path)
    monkeypatch.setattr(SYS, "flock", lambda *_: None)
    with pytest.raises(UnsupportedFilesystem, match="exclude"):
        Spool.claim(root, clock=SYSTEM_CLOCK)
    root.close()


def test_a_forked_child_neither_owns_nor_frees_the_lock(tmp_path: Path) -> None:
    with spool_at(tmp_path) as spool:
        pid = os.fork()
        if pid == 0:
            try:
                spool.check_held()
            except SpoolLocked:
                spool.close()
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the child must not come back into the test run
                os._exit(99)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        spool.check_held()
        spool.journal.set_fact("still", "usable")
        with Folder.open(spool.path) as folder:
            assert FlockedFile.try_lock(folder, "lock") is None


def test_a_spool_that_became_another_directory_is_noticed(tmp_path: Path) -> None:
    with spool_at(tmp_path) as spool:
        spool.check_held()
        (spool.path / "packs").rename(spool.path / "packs-old")
        (spool.path / "packs").mkdir()
        with pytest.raises(RootMismatch):
            spool.check_held()
        (spool.path / "packs").rmdir()
        (spool.path / "packs-old").rename(spool.path / "packs")
        spool.check_held()
        (spool.path / "lock").rename(spool.path / "lock-old")
        (spool.path / "lock").write_bytes(b"")
        with pytest.raises(RootMismatch):
            spool.check_held()


def test_a_spool_of_a_root_without_its_marker_is_not_held(tmp_path: Path) -> None:
    # case B17
    with spool_at(tmp_path) as spool:
        marker = tmp_path / ROOT_MARKER_NAME
        marker.rename(tmp_path / "aside")
        with pytest.raises(RootMismatch):
            spool.check_held()
        (tmp_path / "aside").rename(marker)
        spool.check_held()


def test_idle_spools_with_packs_are_drained_by_others(tmp_path: Path) -> None:
    root = SpoolRoot.open(tmp_path)
    spools = [Spool.claim(root, clock=SYSTEM_CLOCK) for _ in range(4)]
    for spool in (spools[1], spools[3]):
        spool.bind("p")
        writer = writer_of(spool)
        writer.append([sample("a")])
        writer.close()
    for spool in (spools[0], spools[1], spools[2]):
        spool.close()
    own = Spool.claim(root, clock=SYSTEM_CLOCK)
    siblings = claim_idle_siblings(root, clock=SYSTEM_CLOCK)
    assert [s.path.name for s in (own, *siblings)] == ["w-00", "w-01"], "busy and empty ones are left alone"
    siblings[0].bind("p")
    assert siblings[0].recover().sealed
    for spool in (*siblings, own, spools[3]):
        spool.close()
    root.close()


def test_a_spool_holds_packs_for_one_prefix_at_a_time(tmp_path: Path) -> None:
    with spool_at(tmp_path, prefix="one") as spool:
        spool.recover()
        writer = writer_of(spool)
        writer.append([sample("a")])
        record = writer.seal_open()
        writer.close()
        assert record is not None
        with pytest.raises(ConfigError, match="one"):
            spool.bind("two")
        advance(spool, record.pack_id, to=PackState.MANIFESTED)
        spool.journal.record_intent(record.pack_id, "receipt")
        spool.journal.record_reclaimed(record.pack_id)
        spool.bind("two")
        assert spool.prefix == "two"


def test_an_unbound_spool_makes_no_keys(tmp_path: Path) -> None:
    root = SpoolRoot.open(tmp_path)
    spool = Spool.claim(root, clock=SYSTEM_CLOCK)
    for attempt in (spool.recover, lambda: writer_of(spool)):
        with pytest.raises(DurastoreError, match="not bound"):
            attempt()
    spool.close()
    root.close()


def test_a_spool_opens_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SYS, "preallocate", full)
    with spool_at(tmp_path) as spool:
        spool.recover()


def test_names_left_unsynced_by_an_earlier_process_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "root"
    with spool_at(path):
        pass
    synced: set[int] = set()
    original = SYS.fsync

    def fsync(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        original(fd)

    monkeypatch.setattr(SYS, "fsync", fsync)
    with spool_at(path) as spool:
        for folder in (tmp_path, path, spool.path, spool.path / "packs", spool.path / "quarantine"):
            assert folder.stat().st_ino in synced, folder


def test_the_ballast_is_really_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BALLAST_BYTES == 32 << 20
    monkeypatch.setattr(spool_module, "_BALLAST_BYTES", 1 << 20)
    with spool_at(tmp_path) as spool:
        assert (spool.path / "ballast").stat().st_blocks * 512 >= 1 << 20


# --- watermarks ------------------------------------------------------------------------------------------------------


def test_watermarks_block_above_the_high_mark_or_below_the_reserve() -> None:
    marks = Watermarks(high_bytes=100, low_bytes=60, reserve_bytes=10)
    assert not marks.must_block(100, 10)
    assert marks.must_block(101, 10)
    assert marks.must_block(0, 9)
    assert (marks.to_free(60), marks.to_free(61), marks.to_free(0)) == (0, 1, 0)


@pytest.mark.parametrize("marks", [(10, 11, 0), (10, -1, 0), (0, 0, 0), (10, 5, -1)])
def test_watermarks_that_contradict_are_refused(marks: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError):
        Watermarks(high_bytes=marks[0], low_bytes=marks[1], reserve_bytes=marks[2])
