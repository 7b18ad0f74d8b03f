"""Entries of a dump folder whose name is used again while they are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from durastore.clock import SYSTEM_CLOCK
from durastore.extract.dumped import NotWhole, read_done_entry, read_entry
from durastore.extract.staged_files import StagedFiles
from durastore.extract.staging_room import StagingRoom
from durastore.model import Digest
from durastore.reclaim.staging import StagedFile, StagingFolder

TICK_NS = 10_000_000


class Dump:
    """One entry of two files, dumped again and again; `after` is done once the named file was read."""

    def __init__(self, folder: Path) -> None:
        door = StagingFolder.open(folder, served=Digest.of(b"x"), clock=SYSTEM_CLOCK)
        self.folder = folder / "req_1"
        self.folder.mkdir()
        self.at_ns = SYSTEM_CLOCK.now_ns()
        self.after: dict[str, Callable[[], None]] = {}
        self.files = StagedFiles(door, StagingRoom(door.free_bytes), clock=SYSTEM_CLOCK)
        self._read = self.files.read
        self.files.read = self.read  # type: ignore[method-assign]  # to act in between

    def read(self, path: str, *, is_quiet: bool = False) -> tuple[bytes, StagedFile]:
        found = self._read(path, is_quiet=is_quiet)
        self.after.pop(path, lambda: None)()
        return found

    def write(self, name: str, generation: int) -> None:
        path = self.folder / name
        if name == "done":
            path.write_bytes(b"")
        else:
            save_file({name[0]: np.full(4, generation)}, path)
        self.at_ns += TICK_NS
        os.utime(path, ns=(self.at_ns, self.at_ns))

    def dump(self, generation: int) -> None:
        for name in ("a.safetensors", "b.safetensors", "done"):
            self.write(name, generation)

    def seen(self) -> list[int]:
        arrays = read_done_entry("req_1", "req_1/done", files=self.files).contents.arrays
        return [int(np.asarray(array)[0]) for array in arrays.values()]


@pytest.fixture
def dump(tmp_path: Path) -> Dump:
    made = Dump(tmp_path / "staging")
    made.dump(1)
    return made


def test_an_entry_that_stays_is_read(dump: Dump) -> None:
    assert dump.seen() == [1, 1]


def test_an_entry_dumped_again_between_two_of_its_files_is_not_taken(dump: Dump) -> None:
    dump.after["req_1/a.safetensors"] = lambda: dump.dump(2)
    with pytest.raises(NotWhole, match="while the others were read"):
        dump.seen()
    assert dump.seen() == [2, 2]


def test_an_entry_dumped_again_in_another_order_is_not_taken(dump: Dump) -> None:
    def finish() -> None:
        dump.write("a.safetensors", 2)
        dump.write("done", 2)

    dump.after["req_1/a.safetensors"] = lambda: dump.write("b.safetensors", 2)
    dump.after["req_1/done"] = finish  # the last that is read of the folder
    with pytest.raises(NotWhole, match="while the others were read"):
        dump.seen()
    assert dump.seen() == [2, 2]


def test_an_entry_without_a_marker_is_not_mixed_either(dump: Dump) -> None:
    dump.after["req_1/a.safetensors"] = lambda: dump.dump(2)
    with pytest.raises(NotWhole, match="while the others were read"):
        read_entry("req_1", dump.files)
