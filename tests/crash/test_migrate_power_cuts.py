"""Power cuts of the destination's disk while a tree is migrated to it (M1, M4; case B102).

`migrate` writes to an ext4 file system whose disk records every write and every flush (`recording_disk`). For random
moments of it images are made of what the disk may hold after a cut: everything flushed, and of the rest nothing, all or
a random part. In each image a name is absent or complete, with its mode and times; what is on record has its name; and
the same command ends what was begun.
"""

from __future__ import annotations

import random
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from durastore.fsio.folder import Folder
from durastore.migrate import copying, reading
from durastore.migrate import record as record_module
from durastore.migrate.scan import PRIVATE_NAME
from tests.crash import test_power_cuts
from tests.crash.fork_servers import environment, memory_folder, tell
from tests.crash.power_look import mounted
from tests.crash.recording_disk import BLOCK, DiskFolder, PowerCut, write_image
from tests.unit.migrate_lab import MigrateLab, contents

LARGE = 600_000
CUTS = 30
EPISODES = 3
_RUN = """
import sys
from pathlib import Path
from durastore.migrate import copying, durable, reading
from durastore.migrate.run import MigrateRequest, migrate
from tests.unit.migrate_lab import FORMATS
copying._BATCH_FILES, copying.LARGE_BYTES, reading.BLOCK_BYTES, durable._UNRECORDED_BYTES = 9, 300_000, 100_000, 1 << 20
report = migrate(MigrateRequest(source=Path(sys.argv[1]), target=Path(sys.argv[2]), jobs=3), formats=FORMATS)
sys.exit(report.exit_code)
"""

pytestmark = pytest.mark.skipif(test_power_cuts._why_not() is not None, reason=str(test_power_cuts._why_not()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the images had, so that a run in which nothing was to be seen is no success."""

    names: int
    recorded: int
    dropped_bytes: int


def make_tree(lab: MigrateLab) -> None:
    lab.fill(60, size=300)
    for number in range(6):
        lab.write(f"large/{number}.bin", LARGE + number).chmod(0o640)


def look(lab: MigrateLab, tree: Path) -> tuple[int, int]:
    """How many names there are, and how many are on record: each of them complete."""
    there = contents(tree) if tree.exists() else {}
    for path, data in there.items():
        assert data == lab.written[path], f"{path} is there and not complete"
        one, other = (lab.source / path).stat(), (tree / path).stat()
        assert (stat.S_IMODE(one.st_mode), one.st_mtime_ns) == (stat.S_IMODE(other.st_mode), other.st_mtime_ns), path
    recorded = on_record(tree)
    assert recorded <= there.keys(), "on record, and not there"
    return len(there), len(recorded)


def on_record(tree: Path) -> set[str]:
    private = tree / PRIVATE_NAME
    if not private.exists():
        return set()
    with closing(Folder.open(private)) as folder:
        heads = [
            body[1]
            for path in private.glob("proven-*.log")
            for line in path.read_bytes().splitlines(keepends=True)
            if (body := record_module._body(line)) is not None and body[0] == "source"
        ]
        return {path for source in heads for path in record_module.load_proven(folder, source=source)}


@contextmanager
def cut(folder: DiskFolder, moment: int, rng: random.Random) -> Iterator[tuple[Path, int]]:
    """The disk after a cut at this moment, mounted; and how many bytes it lost."""
    with tempfile.TemporaryDirectory(dir=folder.path) as place:
        image = Path(place) / "image"
        how = PowerCut(
            moment=moment,
            kept_share=rng.choice((0.0, 0.0, 0.2, 0.5, 0.8, 1.0)),
            piece_bytes=BLOCK,  # a torn superblock, which lists unnamed files, would be for e2fsck first
            seed=rng.randrange(1 << 32),
        )
        dropped_bytes = write_image(folder, how, image=image)
        with mounted(image, Path(place) / "mount") as mount:
            yield mount, dropped_bytes


def cut_power(tmp_path: Path, *, options: str, cuts: int, seed: int) -> list[Seen]:
    rng = random.Random(seed)
    seen = []
    with memory_folder() as memory:
        lab = MigrateLab(tmp_path / f"source-{seed}", memory / "unused")
        make_tree(lab)
        folder = DiskFolder(memory / "disk")
        with test_power_cuts.disk(folder, options) as (mount, _):
            begun = folder.now()
            arguments = [sys.executable, "-c", _RUN, str(lab.source), str(mount / "data")]
            assert subprocess.run(arguments, env=environment(), check=False).returncode == 0
            ended = folder.now()
        for number in range(cuts):
            moment = ended if number == 0 else rng.randrange(begun, ended)
            with cut(folder, moment, rng) as (mount, dropped_bytes):
                names, recorded = look(lab, mount / "data")
                assert number or (names, recorded) == (66, 66), "it had said that all of it is durable"
                lab.target = mount / "data"
                again = lab.run()
                assert (again.exit_code, again.there_before) == (0, names), list(again.lines())
                assert contents(lab.target) == lab.written
            seen.append(Seen(names=names, recorded=recorded, dropped_bytes=dropped_bytes))
    return seen


def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "LARGE_BYTES", 300_000)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 100_000)


@pytest.mark.timeout(300)
def test_a_power_cut_leaves_no_half_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _small(monkeypatch)
    seed = random.randrange(1 << 32)
    tell(f"seed {seed}")
    seen = cut_power(tmp_path, options=test_power_cuts.MOUNTS[0], cuts=10, seed=seed)
    assert any(0 < each.names < 66 for each in seen)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("options", test_power_cuts.MOUNTS)
def test_no_power_cut_leaves_half_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    _small(monkeypatch)
    seen = []
    for _ in range(EPISODES):
        seed = random.randrange(1 << 32)
        tell(f"seed {seed}")
        seen += cut_power(tmp_path, options=options, cuts=CUTS, seed=seed)
    partial = [each for each in seen if each.names < 66]
    tell(f"migrate, {options}: {len(seen)} cuts, {len(partial)} of an unfinished copy, no half copy")
    assert any(each.dropped_bytes for each in seen)
    assert any(0 < each.recorded < each.names for each in seen)
