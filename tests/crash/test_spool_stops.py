"""Stop at a step of putting, sealing or recovering; recover; every acknowledged sample is there, byte for byte.

Oracles after each stop: O1 (all acknowledged samples are obtainable), no record said more than was durable (INV-2),
the spool is settled, a second recovery changes nothing (INV-9), and no file was unlinked: every inode that had a name
before recovery still has one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from durastore.codec.encode import EncodedSample
from durastore.model import PackState
from durastore.spool.pack_writer import PackLimits
from durastore.spool.spool import Spool
from tests.crash.spool_stops import Ending, cut_power, run_stopped
from tests.unit.spool_lab import assert_obtainable, assert_settled, sample, spool_at, state_of, writer_of

LIMITS = PackLimits(target_bytes=12_000, single_bytes=9_000)
GROUPS: list[list[EncodedSample]] = [
    [sample("a1"), sample("a2")],
    [sample("b1"), sample("b2", size=9_500)],  # a tar and a pack of its own in one group; the tar is sealed here
    [sample("c1")],
    [sample("d1"), sample("d2"), sample("d3")],
    [sample("e1")],
]
SAMPLES = {encoded.sample_id.text: encoded for group in GROUPS for encoded in group}


def put_all(root: Path, acks: Path) -> None:
    """What an extractor does; each acknowledged id goes to `acks`, which is no part of the spool."""
    fd = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with spool_at(root) as spool:
        spool.recover()
        writer = writer_of(spool, limits=LIMITS)
        for group in GROUPS:
            for _, entry in writer.append(group):
                os.write(fd, f"{entry.sample_id}\n".encode())
        writer.seal_open()
        writer.close()


def recover(root: Path) -> None:
    with spool_at(root) as spool:
        spool.recover()


def acknowledged(acks: Path) -> list[EncodedSample]:
    lines = acks.read_text().split() if acks.exists() else []
    return [SAMPLES[line] for line in lines]


def files_of(spool: Spool) -> set[int]:
    folders = (spool.packs_folder, spool.quarantine_folder)
    return {folder.identity(name).inode for folder in folders for name in folder.names()}


def hold_against_oracles(root: Path, acks: Path) -> None:
    with spool_at(root) as spool:
        before = files_of(spool)
        for record in spool.journal.packs(PackState.SEALED):
            assert spool.is_intact(record), "sealed on record, not on disk (INV-2)"
        assert spool.recover().lost == [], "a row was written before its bytes were durable (INV-2)"
        assert before <= files_of(spool), "recovery dropped the last name of a file"
        after = state_of(spool)
        assert_obtainable(spool, acknowledged(acks))
        assert_settled(spool)
        spool.recover()
        assert state_of(spool) == after
    with spool_at(root) as spool:
        spool.recover()
        assert state_of(spool) == after, "recovered in another process, it is something else"
        # and it goes on: what was not acknowledged is put again
        writer = writer_of(spool, limits=LIMITS)
        known = {encoded.sample_id for encoded in acknowledged(acks)}
        missing = [encoded for encoded in SAMPLES.values() if encoded.sample_id not in known]
        if missing:
            writer.append(missing)
        assert_obtainable(spool, list(SAMPLES.values()))
        writer.close()


def stop_at(steps: Iterable[int], case: Callable[[int], bool]) -> int:
    """Run the case for each step until it says that the work came to its end; how many stops there were."""
    stops = 0
    for step in steps:
        if not case(step):
            break
        stops += 1
    return stops


def a_few(rest: int) -> range:
    """Every 13th step, beginning where this run's seed says; all of them are `exhaustive`."""
    return range(1 + rest, 2_000, 13)


@pytest.fixture
def offset() -> int:
    chosen = random.randrange(13)
    print(f"steps {1 + chosen}, {14 + chosen}, ...")  # noqa: T201 - shown by pytest if the test fails
    return chosen


def stop_while_putting(tmp_path: Path, ending: Ending, steps: Iterable[int]) -> int:
    def case(step: int) -> bool:
        root, acks, notes = tmp_path / f"root-{step}", tmp_path / f"acks-{step}", tmp_path / f"notes-{step}"
        is_stopped = run_stopped(lambda: put_all(root, acks), at=step, ending=ending, notes=notes) is None
        if is_stopped and ending is Ending.POWER:
            cut_power(root, notes)
        hold_against_oracles(root, acks)
        return is_stopped

    return stop_at(steps, case)


@pytest.mark.parametrize("ending", list(Ending))
def test_nothing_acknowledged_is_lost_when_putting_stops(tmp_path: Path, ending: Ending, offset: int) -> None:
    # cases B02, B94, B113
    assert stop_while_putting(tmp_path, ending, a_few(offset)) >= 11


@pytest.mark.exhaustive
@pytest.mark.parametrize("ending", list(Ending))
def test_nothing_acknowledged_is_lost_wherever_putting_stops(tmp_path: Path, ending: Ending) -> None:
    assert stop_while_putting(tmp_path, ending, range(1, 2_000)) >= 150


def stop_while_recovering(tmp_path: Path, ending: Ending, steps: Iterable[int], *, first_stop: int) -> int:
    """A torn spool with a SEALED, an OPEN and an untracked file, whose recovery stops too."""

    def case(step: int) -> bool:
        root, acks, notes = tmp_path / f"root-{step}", tmp_path / f"acks-{step}", tmp_path / f"notes-{step}"
        assert run_stopped(lambda: put_all(root, acks), at=first_stop, ending=Ending.TORN, notes=notes) is None
        (root / "w-00" / "packs" / "stray").write_bytes(b"stray")
        is_stopped = run_stopped(lambda: recover(root), at=step, ending=ending, notes=notes) is None
        if is_stopped and ending is Ending.POWER:
            cut_power(root, notes)
        hold_against_oracles(root, acks)
        return is_stopped

    return stop_at(steps, case)


@pytest.fixture(scope="module")
def torn_group(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The step at which a group is torn whose tar already holds acknowledged samples: found by trying."""
    tmp_path = tmp_path_factory.mktemp("tries")
    for step in range(60, 400):
        root, acks, notes = tmp_path / f"try-{step}", tmp_path / f"try-acks-{step}", tmp_path / f"try-notes-{step}"
        assert run_stopped(partial(put_all, root, acks), at=step, ending=Ending.TORN, notes=notes) is None
        with spool_at(root) as spool:
            for record in spool.journal.packs():
                size_bytes = spool.packs_folder.identity(record.name).size_bytes
                if record.sample_count and record.digest is None and size_bytes > (record.size_bytes or 0) + 2_000:
                    return step
    raise AssertionError("no step tears a group")


@pytest.mark.parametrize("ending", [Ending.KILL, Ending.POWER])
def test_nothing_acknowledged_is_lost_when_recovery_stops(
    tmp_path: Path, ending: Ending, offset: int, torn_group: int
) -> None:
    assert stop_while_recovering(tmp_path, ending, a_few(offset), first_stop=torn_group) >= 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("ending", [Ending.KILL, Ending.POWER])
def test_nothing_acknowledged_is_lost_wherever_recovery_stops(tmp_path: Path, ending: Ending, torn_group: int) -> None:
    assert stop_while_recovering(tmp_path, ending, range(1, 2_000), first_stop=torn_group) >= 40
