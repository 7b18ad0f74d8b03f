"""What a migration knows before its first byte: a dry run says it, and ends with the exit code of it."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK, ManualClock
from durastore.errors import ConfigError
from durastore.fsio.folder import Folder
from durastore.fsio.rate import RateLimit, RateStopped
from durastore.migrate import looking
from durastore.migrate import run as run_module
from durastore.migrate.scan import Scan, scan_tree
from durastore_cli.main import run
from tests.unit.migrate_lab import MigrateLab, mig
from tests.unit.test_migrate_roots import put, spool_in

__all__ = ["mig"]


def test_a_dry_run_names_what_will_not_be_as_it_was(mig: MigrateLab, capsys: pytest.CaptureFixture[str]) -> None:
    mig.write("a", 10)
    os.mkfifo(mig.source / "pipe")
    (mig.source / "out").symlink_to("../elsewhere")
    os.link(mig.source / "a", mig.source / "b")
    command = ["migrate", str(mig.source), str(mig.target), "--dry-run"]
    assert run(command) == 0
    out = capsys.readouterr().out
    assert "not copied: pipe: a pipe" in out
    assert "link that leads out of the tree or nowhere, kept as it is: out" in out
    assert "hard link, then a file of its own: a" in out
    assert run([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["executed"], facts["odd"][0]["path"], facts["links_out"]) == (False, "pipe", ["out"])
    assert not mig.target.exists()


def test_a_dry_run_ends_as_the_run_would_with_what_cannot_be_read(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    mig.fill(3)

    def scan(source: Folder, *, begin: str = "") -> Scan:
        found = scan_tree(source, begin=begin)
        found.unreadable["d1"] = "cannot be read: Permission denied"
        return found

    monkeypatch.setattr(looking, "scan_tree", scan)
    planned = mig.run(is_dry=True)
    assert (planned.exit_code, planned.failed) == (3, {"d1": "cannot be read: Permission denied"})
    assert any(line.startswith("FAILED: d1") for line in planned.lines())
    monkeypatch.setattr(run_module, "scan_tree", scan)
    assert mig.run().exit_code == 3


@pytest.mark.parametrize("why", ["is on a file system that is mounted read-only", "may not be written by this user"])
def test_a_place_that_cannot_be_written_is_refused_before_the_first_byte(
    why: str, mig: MigrateLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    mig.fill(2)
    monkeypatch.setattr(
        looking, "find_unwritable", lambda folder: f"({folder.path}) {why}" if folder.path != mig.source else None
    )
    for is_dry in (True, False):
        report = mig.run(is_dry=is_dry)
        assert report.exit_code == 2
        assert any(line.startswith("REFUSED: the folder of DST") and why in line for line in report.lines())
    assert not mig.target.exists()


def test_a_source_that_cannot_be_written_frees_nothing(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.fill(2)
    read_only = "is on a file system that is mounted read-only"
    monkeypatch.setattr(looking, "find_unwritable", lambda folder: read_only if folder.path == mig.source else None)
    assert mig.run(is_dry=True, is_reclaiming=True).exit_code == 2
    assert mig.run(is_reclaiming=True).exit_code == 2
    assert mig.run().exit_code == 0  # a copy of a disk that failed is worth having
    assert mig.here() == mig.there() == mig.written


def test_a_dry_run_of_a_root_in_use_ends_as_the_run_would(mig: MigrateLab, capsys: pytest.CaptureFixture[str]) -> None:
    with spool_in(mig.source) as spool:
        put(spool, "a")
        command = ["migrate", str(mig.source), str(mig.target), "--any-filesystem"]
        assert run([*command, "--dry-run"]) == 11
        assert f"spool root {mig.source} is in use (w-00): its sealed packs can go" in capsys.readouterr().out
        assert not mig.target.exists()
        assert run(command) == 11
        out = capsys.readouterr().out
        assert f"spool root {mig.source} is still here" in out
        assert "spool root . " not in out


def test_a_single_file_is_no_tree(mig: MigrateLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = mig.write("a", 10)
    target = mig.target
    mig.target = path
    with pytest.raises(ConfigError, match=r"DST .* is no folder"):
        mig.run()
    mig.source, mig.target = path, target
    with pytest.raises(ConfigError, match=r"SRC .* is no folder"):
        mig.run()
    assert run(["migrate", str(path), str(tmp_path / "x")]) == 2
    assert "never a single file" in capsys.readouterr().err


def test_a_rate_ends_in_the_middle_of_a_wait() -> None:
    clock, over = ManualClock(), threading.Event()
    pace = RateLimit(1, clock=clock, is_over=over.is_set)
    begun_s = clock.monotonic()
    pace.spend(3)
    over.set()
    for size_bytes in (1, 1_000_000):
        with pytest.raises(RateStopped):
            pace.spend(size_bytes)
    assert clock.monotonic() - begun_s < 4
    with pytest.raises(RateStopped):  # also without a rate: a large file ends in its middle
        RateLimit(0, clock=clock, is_over=over.is_set).spend(1)


def test_an_interrupt_does_not_wait_for_the_rate(
    mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mig.fill(30, size=100_000)
    command = ["migrate", str(mig.source), str(mig.target), "--limit-rate", "1KiB"]  # a file: 100 s
    plain, once = RateLimit.spend, threading.Lock()

    def spend(limit: RateLimit, size_bytes: int) -> None:
        if once.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)  # whoever reads a file waits from here on
        plain(limit, size_bytes)

    monkeypatch.setattr(RateLimit, "spend", spend)
    begun_s = SYSTEM_CLOCK.monotonic()
    assert run(command) == 130
    assert SYSTEM_CLOCK.monotonic() - begun_s < 50
    monkeypatch.undo()
    assert "interrupted; the same command again goes on" in capsys.readouterr().err
    mig.check()
    assert run(command[:3]) == 0
    mig.check(is_all_there=True)


def test_the_record_of_a_folder_stays_while_a_file_of_it_does(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    mig.fill(3)
    with spool_in(mig.source / ".durastore") as spool:
        put(spool, "a")

    unreadable = {"d1/more": "cannot be read: Permission denied"}

    def scan(source: Folder, *, begin: str = "") -> Scan:
        found = scan_tree(source, begin=begin)
        found.unreadable |= unreadable
        return found

    monkeypatch.setattr(looking, "scan_tree", scan)
    monkeypatch.setattr(run_module, "scan_tree", scan)
    report = mig.run()
    assert (report.exit_code, [root.is_active for root in report.roots]) == (3, [False])
    with spool_in(mig.source / ".durastore"):
        pass  # whoever adopts what was left behind finds the record here
    unreadable.clear()
    report = mig.run()
    assert (report.exit_code, [root.is_active for root in report.roots]) == (0, [True])
