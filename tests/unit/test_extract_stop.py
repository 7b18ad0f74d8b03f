"""`stop`: only lock holders get a SIGTERM, and nobody is ever killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.errors import ConfigError, InventoryIncomplete, StoreMissing
from durastore.extract import stop as stop_module
from durastore.extract.stop import StopOutcome, stop
from durastore.extract.switch import StopSwitch
from durastore.fsio.folder import Folder
from durastore.fsio.lock import FlockedFile

_HOLDER = """
import fcntl, os, signal, sys, time
for path in sys.argv[2:]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("held", flush=True)
time.sleep(60)
"""


@contextmanager
def _holder(manner: str, *locks: Path) -> Iterator[subprocess.Popen[str]]:
    for lock in locks:
        lock.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-S", "-c", _HOLDER, manner, *map(str, locks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_holder_is_stopped_and_named_with_its_spools(tmp_path: Path) -> None:
    with _holder("obedient", tmp_path / "w-00" / "lock", tmp_path / "w-01" / "lock") as process:
        (tmp_path / "w-02").mkdir()
        (tmp_path / "w-02" / "lock").touch()
        report = stop(tmp_path, 10)
        assert process.wait(5) == -signal.SIGTERM
    (found,) = report.processes
    assert (found.pid, found.spools, found.outcome) == (process.pid, ("w-00", "w-01"), StopOutcome.STOPPED)
    assert report.exit_code == 0


def test_a_holder_that_does_not_end_is_left_alone_and_reported(tmp_path: Path) -> None:
    with _holder("stubborn", tmp_path / "w-00" / "lock") as process:
        report = stop(tmp_path, 0.2)
        assert process.poll() is None
    assert [p.outcome for p in report.processes] == [StopOutcome.STILL_RUNNING]
    assert report.exit_code == 11


def test_who_holds_another_lock_is_not_touched(tmp_path: Path) -> None:
    with _holder("obedient", tmp_path / "other" / "lock", tmp_path / "root" / "w-00" / "data") as process:
        (tmp_path / "root" / "w-00" / "lock").write_text(str(process.pid))  # a pid in a file is only text
        report = stop(tmp_path / "root", 1)
        assert process.poll() is None
    assert (report.processes, report.exit_code) == ((), 0)


def test_a_process_that_lost_the_lock_before_the_signal_is_not_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _holder("obedient", tmp_path / "w-00" / "lock") as process:
        answers = iter([[process.pid], list[int]()])
        monkeypatch.setattr(stop_module, "holders", lambda _: next(answers))
        report = stop(tmp_path, 1)
        assert process.poll() is None
    assert [p.outcome for p in report.processes] == [StopOutcome.STOPPED]


def test_the_own_process_is_never_signalled(tmp_path: Path) -> None:
    (tmp_path / "w-00").mkdir()
    with Folder.open(tmp_path / "w-00") as folder:
        lock = FlockedFile.try_lock(folder, "lock")
        assert lock is not None
        try:
            with pytest.raises(ConfigError, match="this process"):
                stop(tmp_path, 1)
        finally:
            lock.close()


@pytest.mark.parametrize("hidden", ["", "w-00"])
def test_what_this_user_may_not_enter_is_not_told_as_nobody(hidden: str) -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:  # not below pytest's own folder, which is closed to all others
        root = Path(name)
        root.chmod(0o755)
        (root / "w-00").mkdir()
        (root / "w-00" / "lock").touch()
        (root / hidden).chmod(0)
        try:
            if user == 0:
                os.seteuid(65_534)  # root may enter everything
            with pytest.raises(InventoryIncomplete, match="Permission denied") as caught:
                stop(root, 1)
        finally:
            os.seteuid(user)
            (root / hidden).chmod(0o700)
    assert "ask as the user that the processes run as" in str(caught.value.hint)


def test_an_absent_root_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing):
        stop(tmp_path / "absent", 1)
    assert os.listdir(tmp_path) == []


def test_sigusr1_asks_for_the_same_stop_as_sigterm() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    switch = StopSwitch(grace_s=60, clock=SYSTEM_CLOCK)
    with switch.installed():
        signal.raise_signal(signal.SIGUSR1)
        assert (switch.signal, switch.is_expired) == (signal.SIGTERM, False)
    assert signal.getsignal(signal.SIGUSR1) == before
