"""What a migration says of copies whose names are not known to be durable: stopped, or where one sync is not enough."""

from __future__ import annotations

import errno
import os

import pytest

from durastore.fsio import space
from durastore.fsio.sys import SYS
from durastore.migrate.scan import PRIVATE_NAME
from tests.unit.migrate_lab import MigrateLab, mig

__all__ = ["mig"]

LARGE = 3 << 20


def _fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("is_one_call", [True, False])
def test_a_name_that_no_sync_covered_is_not_called_proven(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, *, is_one_call: bool
) -> None:
    for number in range(3):
        mig.write(f"d/{number}", LARGE)
    if is_one_call:
        monkeypatch.setattr(SYS, "syncfs", _fail)
    else:
        plain = SYS.fsync

        def fsync(fd: int) -> None:
            if os.path.isdir(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}").endswith("/d"):
                _fail()
            plain(fd)

        def no_syncfs(_: int) -> None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(SYS, "syncfs", no_syncfs)
        monkeypatch.setattr(SYS, "fsync", fsync)
    report = mig.run(is_reclaiming=True)
    assert (report.exit_code, report.reclaimed, sum(report.prior.values())) == (3, 0, 0)
    assert set(report.failed) == {"d/0", "d/1", "d/2"}
    assert any("0 files and 0 links proven" in line for line in report.lines())
    monkeypatch.undo()
    assert mig.run().there_before == 3
    mig.check(is_all_there=True)


def test_names_of_a_run_that_was_stopped_are_durable_and_on_record(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        mig.write(str(number), LARGE)
    plain, synced = SYS.syncfs, []
    plain_link = SYS.link_fd
    named: list[str] = []

    def link_fd(fd: int, name: str, *, target_fd: int) -> None:
        if len(named) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain_link(fd, name, target_fd=target_fd)
        named.append(name)

    def syncfs(fd: int) -> None:
        plain(fd)
        synced.append(fd)

    monkeypatch.setattr(SYS, "link_fd", link_fd)
    monkeypatch.setattr(SYS, "syncfs", syncfs)
    report = mig.run(jobs=1)
    assert (report.exit_code, sum(report.prior.values()), len(synced)) == (3, 2, 1)
    (log,) = (mig.target / PRIVATE_NAME).glob("proven-*.log")
    assert len(log.read_bytes().splitlines()) == 1 + 2


@pytest.mark.parametrize("kind", ["fuse.sshfs", "overlay", "nfs4", "unknown"])
def test_each_is_synced_where_one_call_may_not_do_it(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """`syncfs` is not passed to a FUSE server, and an overlay does not tell of what the disk below could not write."""
    mig.fill(6)
    mig.write("big", LARGE)
    synced: list[str] = []
    plain = SYS.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        plain(fd)

    monkeypatch.setattr(space, "_type_of", lambda *_: kind)
    monkeypatch.setattr(SYS, "syncfs", _fail)
    monkeypatch.setattr(SYS, "fsync", fsync)
    assert mig.run().exit_code == 0
    assert {str(mig.target / name) for name in ("d0", "d1", "d2")} | {str(mig.target)} <= set(synced)
    assert sum("(deleted)" in path for path in synced) >= 7
    mig.check(is_all_there=True)
