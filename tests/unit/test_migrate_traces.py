"""Sources and copies on a file system in memory: who writes to them may leave no new time (ADR 0023)."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from durastore.fsio import traces
from durastore.migrate import run as run_module
from durastore.reclaim.copied import CopiedReport, reclaim_copied
from tests.unit.migrate_lab import MigrateLab, mig

__all__ = ["mig"]

SIZE = 3 * mmap.PAGESIZE


@pytest.fixture
def lab(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> MigrateLab:
    """SRC in memory, DST on this disk."""
    monkeypatch.setattr(traces, "_is_in_memory", mig.is_in_memory)
    memory = mig.target.parent
    if traces.Traces().are_left(memory.stat().st_dev) or not traces.Traces().are_left(mig.source.stat().st_dev):
        pytest.skip("needs a file system in memory and one on a disk")
    return MigrateLab(memory / "source", mig.source.parent / "target")


def write_without_trace(path: Path) -> None:
    before = path.stat()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[0] = view[0] ^ 1  # reads it first
    after = path.stat()
    if (before.st_mtime_ns, before.st_ctime_ns) != (after.st_mtime_ns, after.st_ctime_ns):
        pytest.skip("this kernel sets the times of a mapped write in memory")


@pytest.mark.parametrize("asked", [{}, {"is_reclaiming": True}])
def test_a_source_that_changed_without_a_trace_is_not_called_copied(lab: MigrateLab, asked: dict[str, bool]) -> None:
    path = lab.write("a.bin", SIZE)
    assert lab.run().exit_code == 0
    write_without_trace(path)
    changed = path.read_bytes()
    report = lab.run(**asked)
    assert (report.exit_code, report.there_before, list(report.superseded)) == (0, 0, ["a.bin"])
    assert lab.there() == {"a.bin": changed}


def test_a_copy_that_changed_without_a_trace_is_made_again(mig: MigrateLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_is_in_memory", mig.is_in_memory)
    path = mig.write("a.bin", SIZE)
    assert mig.run().exit_code == 0
    write_without_trace(mig.target / "a.bin")
    report = mig.run(is_reclaiming=True)
    assert (report.exit_code, report.there_before, list(report.superseded)) == (0, 0, ["a.bin"])
    assert (mig.there(), path.exists()) == (mig.written, False)


@pytest.mark.parametrize("is_source", [True, False])
def test_who_writes_without_a_trace_before_it_is_freed_keeps_it(
    lab: MigrateLab, mig: MigrateLab, monkeypatch: pytest.MonkeyPatch, *, is_source: bool
) -> None:
    at = lab if is_source else mig
    path = at.write("a.bin", SIZE)

    def written_before(*args: object) -> CopiedReport:
        write_without_trace(path if is_source else at.target / "a.bin")
        return reclaim_copied(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(run_module, "reclaim_copied", written_before)
    report = at.run(is_reclaiming=True)
    assert (report.exit_code, report.reclaimed, list(report.kept)) == (3, 0, ["a.bin"])
    assert path.exists()
