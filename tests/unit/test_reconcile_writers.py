"""Which files of a folder somebody has open for writing, asked of all of them at once."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from durastore.fsio.folder import Folder
from durastore.reconcile.hashing import find_written

PATHS = ["top.npy", "a/0.npy", "a/1.npy", "a/b/c/0.npy", "a/2.npy", "other/0.npy"]


def test_writers_are_found_wherever_the_file_lies(tmp_path: Path) -> None:
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"data")
    asked = [*PATHS, "gone.npy", "gone/0.npy"]
    with Folder.open(tmp_path) as folder, ExitStack() as held:
        assert find_written(folder, asked) == frozenset()
        for path in ("top.npy", "a/1.npy", "a/b/c/0.npy", "a/2.npy"):
            held.enter_context((tmp_path / path).open("ab"))
        held.callback(os.close, os.open(tmp_path / "other/0.npy", os.O_RDONLY))
        assert find_written(folder, asked) == {"top.npy", "a/1.npy", "a/b/c/0.npy", "a/2.npy"}
        assert find_written(folder, []) == frozenset()
