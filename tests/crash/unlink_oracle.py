"""O2: no pack file is unlinked unless intent, manifest segment and object are there at that very moment.

Judges from the files themselves (SQLite and the bucket's directory), through no code that is under test.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from durastore.fsio.sys import SYS

__all__ = ["UnlinkOracle"]


class UnlinkOracle:
    """O2: at each unlink of a pack file, the journal holds a durable intent for it, its rows are in a segment that the
    bucket holds, and the bucket's object has exactly the bytes of the file. Works on a directory bucket.
    """

    def __init__(self, bucket: Path, *, report: Callable[[str], None]) -> None:
        self._bucket = bucket
        self._report = report
        self.checked = 0

    def install(self) -> None:
        """Wrap the unlink system call in this process, for good."""
        plain = SYS.unlink

        def unlink(name: str, *, dir_fd: int) -> None:
            folder = Path(os.readlink(f"/proc/self/fd/{dir_fd}"))
            if folder.name == "packs" and not name.startswith("."):
                self._judge(folder, name)
            plain(name, dir_fd=dir_fd)

        vars(SYS)["unlink"] = unlink

    def _judge(self, folder: Path, name: str) -> None:
        """A relocated file (another name of the inode is in quarantine) loses no data; everything else is judged."""
        self.checked += 1
        inode = (folder / name).stat().st_ino
        if any(entry.stat().st_ino == inode for entry in (folder.parent / "quarantine").iterdir()):
            return
        fault = self._fault(folder, name)
        if fault is not None:
            self._report(f"unlink of {name}: {fault}")

    def _fault(self, folder: Path, name: str) -> str | None:
        row = self._recorded(folder.parent, name)
        if row is None:
            return "not in the journal"
        state, key, intent, segment = row
        if state != "manifested" or not intent or not segment or not key:
            return f"journal says {state}, intent {bool(intent)}, segment {segment}"
        if not (self._bucket / segment).is_file():
            return f"segment {segment} is not in the bucket"
        if not (self._bucket / key).is_file() or (self._bucket / key).read_bytes() != (folder / name).read_bytes():
            return f"object {key} does not hold the bytes of the file"
        return None

    @staticmethod
    def _recorded(spool: Path, name: str) -> tuple[str, str | None, str | None, str | None] | None:
        journals = sorted(spool.glob("journal-*.sqlite"), key=lambda p: int(p.stem.rpartition("-")[2]))
        connection = sqlite3.connect(f"file:{journals[-1]}?mode=ro", uri=True)
        try:
            found = connection.execute(
                "SELECT state, key, intent, manifested_in FROM packs WHERE name = ?", (name,)
            ).fetchone()
        finally:
            connection.close()
        return None if found is None else (found[0], found[1], found[2], found[3])
