"""A glance at a root: right beside a live process, right after a kill, and without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import durastore
from durastore.errors import StoreMissing
from durastore.fsio.lock import FlockedFile
from durastore.model import PackState
from durastore.spool.glance import look_at_root

ROOT = Path(__file__).parents[2]
LIFE = """
import sys
import numpy as np
import durastore
store = durastore.open(sys.argv[1], local=sys.argv[2], reclaim="never", pack_target_bytes=20_000, seal_age_s=1e6)
for number in range(10):
    store.put(f"s{number}", {"x": np.full(1_000, number)})
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def life(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a spool with ten samples."""
    (tmp_path / "bucket").mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", LIFE, str(tmp_path / "bucket"), str(tmp_path / "spool")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def traces(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file with its inode, time and bytes; those that the process itself goes on writing are left out."""
    return {
        str(path.relative_to(root)): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_a_live_process_is_seen_and_not_disturbed(life: subprocess.Popen[str], tmp_path: Path) -> None:
    glance = look_at_root(tmp_path / "spool")
    (spool,) = glance.spools
    assert spool.name == "w-00"
    assert spool.holders == (life.pid,)
    assert spool.journal is not None
    assert sum(totals.samples for totals in spool.journal.states.values()) == 10
    assert spool.journal.only_local_samples <= 10
    assert glance.free_bytes > 0
    life.communicate("")  # ends as usual: nothing it needs was taken
    assert life.returncode == 0


def test_a_look_after_a_kill_leaves_no_trace(life: subprocess.Popen[str], tmp_path: Path) -> None:
    life.send_signal(signal.SIGKILL)
    life.wait()
    before = traces(tmp_path / "spool")
    assert any(name.endswith("-wal") and data for name, (_, _, data) in before.items())
    glance = look_at_root(tmp_path / "spool")
    assert traces(tmp_path / "spool") == before
    (spool,) = glance.spools
    assert spool.holders == ()
    assert spool.journal is not None
    # what only the log holds is seen: the last sample too
    assert sum(totals.samples for totals in spool.journal.states.values()) == 10
    assert (spool.journal.oldest_only_local_ns is None) == (spool.journal.only_local_samples == 0)


def test_a_log_that_came_without_its_index_is_read(life: subprocess.Popen[str], tmp_path: Path) -> None:
    os.kill(life.pid, signal.SIGKILL)
    life.wait()
    (tmp_path / "spool/w-00/journal-1.sqlite-shm").unlink()  # as `durastore migrate` leaves it
    before = traces(tmp_path / "spool")
    glance = look_at_root(tmp_path / "spool").spools[0]
    assert glance.problem is None
    assert glance.journal is not None
    assert glance.journal.only_local_samples == 10
    assert traces(tmp_path / "spool") == before


def test_a_closed_spool_leaves_no_trace_either(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with durastore.open(tmp_path / "bucket", local=tmp_path / "spool", reclaim="never") as store:
        store.put("a", {"x": np.zeros(3)})
    before = traces(tmp_path / "spool")
    glance = look_at_root(tmp_path / "spool")
    assert traces(tmp_path / "spool") == before
    (spool,) = glance.spools
    assert spool.journal is not None
    totals = spool.journal.states[PackState.MANIFESTED]
    assert (totals.packs, totals.samples) == (1, 1)
    assert spool.journal.local_bytes == totals.size_bytes
    assert (spool.journal.only_local_samples, spool.journal.oldest_only_local_ns) == (0, None)
    assert spool.journal.bucket_url == (tmp_path / "bucket").as_uri()


def test_a_glance_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bucket").mkdir()
    durastore.open(tmp_path / "bucket", local=tmp_path / "spool", reclaim="never").close()

    def refuse(*_: object) -> None:
        raise AssertionError("a glance took a lock")

    monkeypatch.setattr(FlockedFile, "try_lock", refuse)
    (spool,) = look_at_root(tmp_path / "spool").spools
    assert (spool.name, spool.holders, spool.problem) == ("w-00", (), None)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    durastore.open(tmp_path / "bucket", local=tmp_path / "spool", reclaim="never").close()
    (tmp_path / "spool/w-01").mkdir()
    (tmp_path / "spool/w-02").mkdir()
    (tmp_path / "spool/w-02/journal-1.sqlite").write_bytes(b"no database" * 100)
    first, second, third = look_at_root(tmp_path / "spool").spools
    assert first.journal is not None
    assert (second.journal, second.problem) == (None, None)
    assert third.journal is None
    assert third.problem is not None
    assert "cannot be read" in third.problem
    with pytest.raises(StoreMissing):
        look_at_root(tmp_path)
    with pytest.raises(StoreMissing):
        look_at_root(tmp_path / "absent")
