"""SIGKILL at every write, sync, link, rename and unlink of a migration of 50 files (cases B40, B102, B113).

After each: the source is intact (or, while it is freed, every file is whole on one side or aside), a name in the
destination is absent or complete; and the same command ends what was begun.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from durastore.migrate import copying, reading
from durastore.migrate.scan import PRIVATE_NAME
from durastore.testing.killpoints import KillPoints
from tests.crash.fork_servers import memory_folder, tell
from tests.unit.migrate_lab import MigrateLab, contents
from tests.unit.spool_lab import make_ballasts_small
from tests.unit.test_migrate_roots import has_it_all, put, refuses, spool_in

FILES = 50
Make = Callable[[MigrateLab], None]


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    """Several batches and two large files among 50 of a few hundred bytes; no disk full of ballasts."""
    make_ballasts_small()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "_BATCH_FILES", 9)
        patch.setattr(copying, "LARGE_BYTES", 60_000)
        patch.setattr(reading, "BLOCK_BYTES", 30_000)  # large ones go past the page cache, as far as the folder can
        yield


def make_tree(lab: MigrateLab) -> None:
    lab.fill(FILES - 2, size=300)
    lab.write("d0/large", 100_000)
    lab.write("sub/deep/large", 70_000)
    (lab.source / "link").symlink_to("d0/large")


def make_root(lab: MigrateLab) -> None:
    with spool_in(lab.source) as spool:
        for number in range(FILES // 2):
            lab.samples += put(spool, f"s/{number}")
        lab.samples += put(spool, "open", is_sealed=False)
        (spool.path / "quarantine" / "odd").write_bytes(b"put aside")
    for number in range(FILES // 2):
        (lab.source / f"note-{number}.log").write_bytes(b"%d" % number)


def regular(tree: Path) -> list[Path]:
    return [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]


def killed_at(step: int, work: Callable[[], Any]) -> int | None:
    """Run in a forked child that is killed at this step (0: never): None, or how many steps there were."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            points = KillPoints(step)
            points.install()
            work()
            os.write(writer, str(points.count).encode())
            os._exit(0)
        except BaseException as exc:  # noqa: BLE001 - told to the parent, which fails the test
            os.write(writer, f"error {exc!r}".encode()[:4_000])
            os._exit(9)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGKILL:
        return None
    assert code == 0, told
    return int(told)


class Sweep:
    """One kind of migration, killed again and again in fresh places."""

    def __init__(self, tmp_path: Path, memory: Path, *, make: Make, asked: dict[str, Any]) -> None:
        self._places = (tmp_path, memory)
        self._make = make
        self._asked = asked
        self.kills = 0

    def count(self) -> int:
        """The steps of one that is not killed."""
        with self._scene("whole") as lab:
            steps = killed_at(0, lambda: self._run(lab))
            assert steps is not None
            return steps

    def kill(self, at: int) -> None:
        with self._scene(str(at)) as lab:
            before = {path: path.read_bytes() for path in regular(lab.source)}
            if killed_at(at, lambda: self._run(lab)) is not None:
                return
            self.kills += 1
            self._look(lab, before)
            report = lab.run(**self._asked)
            assert report.exit_code == 0, list(report.lines())
            self._look(lab, before)
            self._look_at_end(lab)

    def _run(self, lab: MigrateLab) -> None:
        assert lab.run(**self._asked).exit_code == 0

    def _look(self, lab: MigrateLab, before: dict[Path, bytes]) -> None:
        there, aside = lab.there(), lab.aside()
        for path, data in before.items():
            name = str(path.relative_to(lab.source))
            if not self._asked.get("is_reclaiming"):
                assert path.read_bytes() == data, f"{name} is not intact at the source"
            else:
                is_here = path.exists() and path.read_bytes() == data
                assert is_here or there.get(name) == data or data in aside, f"{name} is lost"
            is_of_both = name.endswith(("durastore-root.json", "lock"))  # each side has its own
            assert is_of_both or there.get(name, data) == data, f"{name} is there and not complete"

    def _look_at_end(self, lab: MigrateLab) -> None:
        if lab.samples:
            refuses(lab.source, match="moved to")
            has_it_all(lab.target, lab.samples)
        else:
            assert contents(lab.target) == lab.written
            assert os.readlink(lab.target / "link") == "d0/large"
        if self._asked.get("is_reclaiming") and not lab.samples:
            assert lab.here() == {}
        assert lab.aside() == set()
        assert list((lab.target / PRIVATE_NAME / "temp").iterdir()) == []

    def _scene(self, name: str) -> Any:
        return scene(self._places, name, make=self._make)


class scene:  # noqa: N801 - used as a context manager
    """A fresh pair of places, gone at the end."""

    def __init__(self, places: tuple[Path, Path], name: str, *, make: Make) -> None:
        self._paths = [place / f"{side}-{name}" for place, side in zip(places, ("source", "target"), strict=True)]
        self._make = make

    def __enter__(self) -> MigrateLab:
        lab = MigrateLab(*self._paths)
        self._make(lab)
        return lab

    def __exit__(self, *_: object) -> None:
        for path in self._paths:
            shutil.rmtree(path, ignore_errors=True)


KINDS: dict[str, tuple[Make, dict[str, Any]]] = {
    "copy": (make_tree, {"jobs": 1}),
    "copy, 3 at once": (make_tree, {"jobs": 3}),
    "free": (make_tree, {"jobs": 1, "is_reclaiming": True}),
    "root": (make_root, {"jobs": 1}),
    "root, free": (make_root, {"jobs": 1, "is_reclaiming": True}),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_leaves_the_source_and_no_half_copy(tmp_path: Path, kind: str) -> None:
    # cases B40, B102
    make, asked = KINDS[kind]
    with memory_folder() as memory:
        sweep = Sweep(tmp_path, memory, make=make, asked=asked)
        steps = sweep.count()
        assert steps >= FILES * 2
        seed = random.randrange(1 << 32)
        tell(f"seed {seed}")
        for at in sorted(random.Random(seed).sample(range(1, steps + 1), 7)):
            sweep.kill(at)
        assert sweep.kills >= 5


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_no_kill_loses_a_source_or_leaves_half_a_copy(tmp_path: Path, kind: str) -> None:
    # cases B40, B102
    make, asked = KINDS[kind]
    with memory_folder() as memory:
        sweep = Sweep(tmp_path, memory, make=make, asked=asked)
        steps = sweep.count()
        for at in range(1, steps + 1):
            sweep.kill(at)
        tell(f"migrate, {kind}: {sweep.kills} kills at {steps} steps: every source whole, no half copy")
        assert sweep.kills >= steps * 0.95
