"""A tree on disk and a folder on another device, migrated; and the oracles that every test of it ends with.

Duty: make trees, run, look at both sides. The target lies in memory (tmpfs), so that the two are two devices.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durastore.adopt.inspect import is_data, tell_damage
from durastore.codec.encode import EncodedSample
from durastore.fsio import traces
from durastore.fsio.one_tree import ASKED_PREFIX
from durastore.migrate.reading import Formats
from durastore.migrate.report import MigrateReport
from durastore.migrate.run import MigrateRequest, migrate
from durastore.migrate.scan import PRIVATE_NAME

__all__ = ["FORMATS", "MigrateLab", "contents", "mig"]

_IS_IN_MEMORY = traces._is_in_memory
FORMATS = Formats(is_known=is_data, find_damage=tell_damage)


def contents(tree: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every regular file, but for the private folder and names that a killed run asked by."""
    return {
        str(path.relative_to(tree)): path.read_bytes()
        for path in sorted(tree.rglob("*"))
        if path.is_file()
        and not path.is_symlink()
        and path.relative_to(tree).parts[0] != PRIVATE_NAME
        and not path.relative_to(tree).parts[0].startswith(ASKED_PREFIX)
    }


class MigrateLab:
    """SRC and DST."""

    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self.target = target
        self.written: dict[str, bytes] = {}
        self.samples: list[EncodedSample] = []
        """Of a spool root at the source."""
        self.is_in_memory = _IS_IN_MEMORY
        """As it is outside of this lab."""
        source.mkdir()

    def write(self, path: str, data: bytes | int) -> Path:
        """A file of these bytes, or of so many random ones."""
        target = self.source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, int):
            data = random.Random(path).randbytes(data)
        target.write_bytes(data)
        self.written[path] = data
        return target

    def fill(self, count: int, *, size: int = 700) -> None:
        """Files in a few folders."""
        for number in range(count):
            self.write(f"d{number % 3}/f{number:04d}.bin", size + number)

    def run(self, **asked: Any) -> MigrateReport:
        asked.setdefault("is_any_filesystem_allowed", True)
        asked.setdefault("jobs", 2)
        return migrate(MigrateRequest(source=self.source, target=self.target, **asked), formats=FORMATS)

    def here(self) -> dict[str, bytes]:
        return contents(self.source)

    def there(self) -> dict[str, bytes]:
        return contents(self.target) if self.target.exists() else {}

    def aside(self) -> set[bytes]:
        """What an interrupted reclaim moved into the private folder."""
        return {path.read_bytes() for path in self.source.glob(f"{PRIVATE_NAME}/going/*")}

    def check(self, *, is_all_there: bool = False) -> None:
        """Every file that was written is whole somewhere; every name in the target is complete."""
        here, there, aside = self.here(), self.there(), self.aside()
        for path, data in self.written.items():
            assert there.get(path, data) == data, f"{path} is there and not complete"
            assert data in (here.get(path), there.get(path)) or data in aside, f"{path} is lost"
        if is_all_there:
            assert there == self.written


@pytest.fixture
def mig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MigrateLab]:
    """The memory stands for a disk: of one, who writes leaves new times (`test_migrate_traces`)."""
    monkeypatch.setattr(traces, "_is_in_memory", lambda _: False)
    memory = Path("/dev/shm") / f"durastore-migrate-{os.getpid()}-{random.randrange(1 << 30):x}"
    memory.mkdir()
    try:
        yield MigrateLab(tmp_path / "source", memory / "target")
    finally:
        shutil.rmtree(memory, ignore_errors=True)
